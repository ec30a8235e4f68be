package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mergeflow/mergeflow/internal/deploy"
)

// place is where one branch of a project is deployed.
type place struct {
	root     string
	name     string // of the link and of the folder of releases
	link     string
	releases string
	older    string // the folder of releases that earlier versions used
	nested   string // the project's path below root, where the link has another name
}

const (
	releasesDir = ".releases"
	tempPrefix  = ".new-"
)

// place works out where a release belongs. Nothing is written.
func (d *Deployer) place(ctx context.Context, r deploy.Release) (place, error) {
	if !filepath.IsLocal(r.Project) || strings.HasPrefix(r.Project, ".") {
		return place{}, fmt.Errorf("project %q can't be a folder", r.Project)
	}
	def, err := d.o.DefaultBranch(ctx, r.Project)
	if err != nil {
		return place{}, fmt.Errorf("reading the default branch: %w", err)
	}
	p := place{root: d.o.Path}
	if r.Branch == def {
		p.name = flat(r.Project, "")
		p.older = releasesDir + "/" + url.PathEscape(r.Project)
		if p.name != r.Project && path.Clean(r.Project) == r.Project {
			p.nested = r.Project
		}
	} else {
		p.name = flat(r.Project, r.Branch)
	}
	p.link, p.releases = filepath.Join(p.root, p.name), filepath.Join(p.root, releasesDir, p.name)
	return p, nil
}

// live is the commit that the link points to; empty where there is none.
func (p place) live() (string, error) {
	to, err := readLink(p.root, p.name)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && isAlias(p.name, to):
		return p.liveBefore()
	case err != nil && onlyAliases(p.root, p.name):
		return "", nil
	case errors.Is(err, syscall.EINVAL): // no link
		return "", inTheWay(p.name)
	case err != nil:
		return "", pathless(err)
	}
	if dir := path.Dir(to); dir != releasesDir+"/"+p.name && dir != p.older {
		return "", inTheWay(p.name)
	}
	return path.Base(to), nil
}

// liveBefore is what an earlier version left live: its link was the nested one.
func (p place) liveBefore() (string, error) {
	what, err := p.alias()
	if err != nil || what != earlier {
		return "", err
	}
	to, err := readLink(p.root, p.nested)
	return path.Base(to), pathless(err)
}

func inTheWay(name string) error {
	return fmt.Errorf("something that is no link of mergeflow's is in the way of the project's folder: %s", name)
}

// point swaps the link. What the project's nested path is to lead to is settled
// first: once the link is there, nobody comes back for it.
func (p place) point(ctx context.Context, commit string) error {
	unlock, err := lockFile(ctx, filepath.Join(p.root, releasesDir, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	what, err := p.alias()
	if err != nil {
		return err
	}
	if err := p.clear(p.name); err != nil {
		return err
	}
	if what == earlier {
		// The link takes over what is live before the old one leads to it.
		to, err := readLink(p.root, p.nested)
		if err != nil {
			return pathless(err)
		}
		if _, err := os.Lstat(p.link); errors.Is(err, fs.ErrNotExist) {
			if err := p.set(p.name, to); err != nil {
				return err
			}
		}
	}
	if what != taken {
		if err := p.setAlias(); err != nil {
			return err
		}
	}
	return p.set(p.name, releasesDir+"/"+p.name+"/"+commit)
}

// set makes a link below root lead to another place below root: a new one is
// made aside and renamed over it.
func (p place) set(at, to string) error {
	next := filepath.Join(p.releases, ".next")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return pathless(err)
	}
	up := strings.Repeat("../", strings.Count(at, "/"))
	if err := os.Symlink(filepath.FromSlash(up+to), next); err != nil {
		return pathless(err)
	}
	link := filepath.Join(p.root, filepath.FromSlash(at))
	if err := os.Rename(next, link); err != nil {
		return pathless(err)
	}
	return syncDirs(filepath.Dir(link))
}

// readLink answers where a link below root leads, as a path below root. A target
// elsewhere is no error and no path that mergeflow makes.
func readLink(root, at string) (string, error) {
	to, err := os.Readlink(filepath.Join(root, filepath.FromSlash(at)))
	if err != nil {
		return "", err
	}
	if filepath.IsAbs(to) {
		return to, nil
	}
	return path.Join(path.Dir(at), filepath.ToSlash(to)), nil
}

// sweep removes what a process that died has left half written. The caller
// holds the lock, so nobody is writing it.
func (p place) sweep() {
	left, _ := filepath.Glob(filepath.Join(p.releases, tempPrefix+"*")) // a bad pattern, which it is not
	for _, dir := range left {
		_ = os.RemoveAll(dir)
	}
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

// lock orders the processes that deploy to one place.
func (p place) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(p.releases, 0o755); err != nil {
		return nil, pathless(err)
	}
	return lockFile(ctx, filepath.Join(p.releases, ".lock"))
}

func lockFile(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
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
