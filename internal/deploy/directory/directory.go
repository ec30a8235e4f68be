// Package directory deploys into a folder: the merged tree is written beside
// the others, then a link is swapped, because a folder itself can't be replaced
// atomically. After the swap it calls back over HTTP, like a pipeline would.
//
//	<path>/<project>                        a link, to
//	<path>/.releases/<project>/<commit>/    a tree, never changed once it is there
//
// The link's target says which commit is live, so nothing else has to remember
// it. Several processes may share the folder: a lock file per project orders
// them, and an older commit never replaces a newer one.
package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/outbound"
)

// Source is where trees come from.
type Source interface {
	// Export writes a commit's tree into an empty folder.
	Export(ctx context.Context, project, commit, dir string) error
	// Contains says whether ancestor is commit or in its history.
	Contains(ctx context.Context, project, commit, ancestor string) (bool, error)
}

// Options say where to deploy and whom to tell.
type Options struct {
	Path     string
	Source   Source
	Callback func() string // the deploy callback's URL
	Secret   func() string // of the callback; nil: none
	Keep     int           // releases kept beside the live one; 0: 2
}

// Deployer is the driver. It is safe for concurrent use.
type Deployer struct {
	o      Options
	client *outbound.Client
}

var _ deploy.Deployer = (*Deployer)(nil)

// New makes a driver. Nothing is written yet.
func New(o Options) *Deployer {
	if o.Keep <= 0 {
		o.Keep = 2
	}
	return &Deployer{o: o, client: outbound.New(outbound.Options{Secret: o.Secret})}
}

// Close lets go of idle connections.
func (d *Deployer) Close() { d.client.Close() }

// Immediate is true: the first self-check deploys.
func (d *Deployer) Immediate() bool { return true }

// Look reads the link.
func (d *Deployer) Look(ctx context.Context, r deploy.Release) (deploy.State, error) {
	p, err := d.place(r.Project)
	if err != nil {
		return deploy.Unknown, err
	}
	return d.look(ctx, p, r)
}

func (d *Deployer) look(ctx context.Context, p place, r deploy.Release) (deploy.State, error) {
	live, err := p.live()
	if err != nil || live == "" {
		return deploy.Absent, err
	}
	if live == r.MergeCommit {
		return deploy.Live, nil
	}
	newer, err := d.o.Source.Contains(ctx, r.Project, live, r.MergeCommit)
	if err != nil {
		return deploy.Unknown, err
	}
	if newer {
		return deploy.Live, nil
	}
	return deploy.Absent, nil
}

// Deploy writes the merge commit's tree, swaps the link to it, and calls back.
func (d *Deployer) Deploy(ctx context.Context, r deploy.Release) error {
	p, err := d.place(r.Project)
	if err != nil {
		return err
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	state, err := d.look(ctx, p, r)
	if err != nil {
		return err
	}
	if state != deploy.Live {
		if err := d.swap(ctx, p, r); err != nil {
			return err
		}
	}
	return d.call(ctx, r)
}

func (d *Deployer) swap(ctx context.Context, p place, r deploy.Release) error {
	release := filepath.Join(p.releases, r.MergeCommit)
	if _, err := os.Stat(release); errors.Is(err, fs.ErrNotExist) {
		dir, err := os.MkdirTemp(p.releases, ".new-")
		if err != nil {
			return pathless(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil {
			return pathless(err)
		}
		if err := d.o.Source.Export(ctx, r.Project, r.MergeCommit, dir); err != nil {
			return err
		}
		if err := os.Rename(dir, release); err != nil {
			return pathless(err)
		}
	} else if err != nil {
		return pathless(err)
	}
	if err := p.point(r.MergeCommit); err != nil {
		return err
	}
	p.prune(d.o.Keep, r.MergeCommit)
	return nil
}

// call tells the flow, as a pipeline would. The id is the same on every try.
func (d *Deployer) call(ctx context.Context, r deploy.Release) error {
	id := "directory-" + r.OperationID + "-" + r.MergeCommit
	_, err := d.client.Do(ctx, outbound.Request{URL: d.o.Callback(), IdempotencyKey: id, Body: map[string]any{
		"requestId": id, "project": r.Project, "mrIid": r.MRIID, "operationId": r.OperationID, "mergeCommit": r.MergeCommit,
		"result": "live", "detail": "deployed into the project's folder",
	}})
	if err != nil {
		return fmt.Errorf("deployed, but the callback failed: %w", err)
	}
	return nil
}

// place is where a project is deployed.
type place struct {
	link     string
	releases string
}

func (d *Deployer) place(project string) (place, error) {
	if !filepath.IsLocal(project) || strings.HasPrefix(project, ".") {
		return place{}, fmt.Errorf("project %q can't be a folder", project)
	}
	p := place{link: filepath.Join(d.o.Path, filepath.FromSlash(project)), releases: filepath.Join(d.o.Path, ".releases", url.PathEscape(project))}
	for _, dir := range []string{p.releases, filepath.Dir(p.link)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return p, pathless(err)
		}
	}
	return p, nil
}

// live is the commit that the link points to; empty where there is no link.
func (p place) live() (string, error) {
	to, err := os.Readlink(p.link)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("something that is no link of mergeflow's is in the way of the project's folder: %w", pathless(err))
	}
	if filepath.Base(filepath.Dir(to)) != filepath.Base(p.releases) {
		return "", errors.New("the project's folder is a link that is not mergeflow's")
	}
	return filepath.Base(to), nil
}

// point swaps the link: a new one is made beside it and renamed over it.
func (p place) point(commit string) error {
	to, err := filepath.Rel(filepath.Dir(p.link), filepath.Join(p.releases, commit))
	if err != nil {
		return pathless(err)
	}
	next := filepath.Join(p.releases, ".next")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return pathless(err)
	}
	if err := os.Symlink(to, next); err != nil {
		return pathless(err)
	}
	return pathless(os.Rename(next, p.link))
}

// prune removes releases but the newest few; one that can't be removed stays.
func (p place) prune(keep int, live string) {
	entries, err := os.ReadDir(p.releases)
	if err != nil {
		return
	}
	type release struct {
		name string
		at   time.Time
	}
	var old []release
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || e.Name() == live || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		old = append(old, release{e.Name(), info.ModTime()})
	}
	for len(old) > keep {
		oldest := 0
		for i := range old {
			if old[i].at.Before(old[oldest].at) {
				oldest = i
			}
		}
		_ = os.RemoveAll(filepath.Join(p.releases, old[oldest].name))
		old = append(old[:oldest], old[oldest+1:]...)
	}
}

// lock orders the processes that deploy one project.
func (p place) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(p.releases, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, pathless(err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, pathless(err)
		}
		t := time.NewTimer(10 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			_ = f.Close()
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

// pathless drops the paths of this machine from an error that users see.
func pathless(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	return err
}
