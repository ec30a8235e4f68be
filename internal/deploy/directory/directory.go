// Package directory deploys into a folder: the merged tree is written beside
// the others, then a link is swapped, because a folder itself can't be replaced
// atomically. After the swap it calls back over HTTP, like a pipeline would.
//
//	<path>/<name>                        a link, to
//	<path>/.releases/<name>/<commit>/    a tree, never changed once it is there
//	<path>/<project>                     the default branch, where the name is another
//
// A name is one project's one branch; see flat. The link's target says which
// commit is live, so nothing else has to remember it. Several processes may
// share the folder: a lock file per name orders them, and what is live is only
// replaced by a commit that contains it.
package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/outbound"
)

// Source is where trees come from.
type Source interface {
	// Export writes a commit's tree into an empty folder. A tree that no folder
	// can hold is a *deploy.Refused.
	Export(ctx context.Context, project, commit, dir string) error
	// Contains says whether ancestor is commit or in its history.
	Contains(ctx context.Context, project, commit, ancestor string) (bool, error)
}

// Options say where to deploy and whom to tell.
type Options struct {
	Path   string
	Source Source
	// DefaultBranch is the branch whose folder has the project's plain name; the
	// other branches' folders name them.
	DefaultBranch func(ctx context.Context, project string) (string, error)
	Callback      func() string // the deploy callback's URL
	Secret        func() string // of the callback; nil: none
	Keep          int           // releases kept beside the live one; 0: 2
}

// Deployer is the driver. It is safe for concurrent use.
type Deployer struct {
	o      Options
	client *outbound.Client
	sync   func(ctx context.Context, dir string) error // syncTree, but in tests
}

var _ deploy.Deployer = (*Deployer)(nil)

// New makes a driver. Nothing is written yet.
func New(o Options) *Deployer {
	if o.Keep <= 0 {
		o.Keep = 2
	}
	return &Deployer{o: o, client: outbound.New(outbound.Options{Secret: o.Secret}), sync: syncTree}
}

// Close lets go of idle connections.
func (d *Deployer) Close() { d.client.Close() }

// Immediate is true: the first self-check deploys.
func (d *Deployer) Immediate() bool { return true }

// Look reads the link. Nothing is written.
func (d *Deployer) Look(ctx context.Context, r deploy.Release) (deploy.State, error) {
	p, err := d.place(ctx, r)
	if err != nil {
		return deploy.Unknown, err
	}
	live, err := p.live()
	if err != nil || live == "" {
		return deploy.Absent, err
	}
	in, err := d.contains(ctx, r.Project, live, r.MergeCommit)
	switch {
	case err != nil:
		return deploy.Unknown, err
	case in:
		return deploy.Live, nil
	}
	return deploy.Absent, nil
}

// Deploy writes the merge commit's tree, swaps the link to it, and calls back.
func (d *Deployer) Deploy(ctx context.Context, r deploy.Release) error {
	p, err := d.place(ctx, r)
	if err != nil {
		return err
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	live, err := p.live()
	if err != nil {
		return err
	}
	due, err := d.due(ctx, p, r, live)
	if err != nil {
		return err
	}
	if due {
		if err := d.swap(ctx, p, r); err != nil {
			return err
		}
	}
	return d.call(ctx, r)
}

// due says whether the release has to replace what is live. It doesn't where
// what is live contains it; it must not where neither contains the other.
func (d *Deployer) due(ctx context.Context, p place, r deploy.Release, live string) (bool, error) {
	if live == "" {
		return true, nil
	}
	if in, err := d.contains(ctx, r.Project, live, r.MergeCommit); err != nil || in {
		return false, err
	}
	newer, err := d.contains(ctx, r.Project, r.MergeCommit, live)
	if err != nil || newer {
		return newer, err
	}
	return false, &deploy.Refused{
		Cause: fmt.Sprintf("%s is live and not in the history of %s: the branch was rewritten", live, r.MergeCommit),
		Hint:  "remove the link " + p.name + " in the deploy folder if it may go, then retry",
	}
}

// contains is the source's, where a commit that is gone from the repository
// contains nothing that is still there.
func (d *Deployer) contains(ctx context.Context, project, commit, ancestor string) (bool, error) {
	if commit == ancestor {
		return true, nil
	}
	in, err := d.o.Source.Contains(ctx, project, commit, ancestor)
	if err != nil {
		if back, backErr := d.o.Source.Contains(ctx, project, ancestor, commit); backErr == nil && !back {
			return false, nil
		}
	}
	return in, err
}

func (d *Deployer) swap(ctx context.Context, p place, r deploy.Release) error {
	if _, err := p.alias(); err != nil { // before the work
		return err
	}
	release := filepath.Join(p.releases, r.MergeCommit)
	if _, err := os.Stat(release); errors.Is(err, fs.ErrNotExist) {
		if err := d.export(ctx, p, r, release); err != nil {
			return err
		}
	} else if err != nil {
		return pathless(err)
	}
	if err := p.point(ctx, r.MergeCommit); err != nil {
		return err
	}
	p.prune(d.o.Keep, r.MergeCommit)
	return nil
}

// export makes a release. It is on the disk before it has its name: a link that
// outlives a power cut must not lead to files that don't.
func (d *Deployer) export(ctx context.Context, p place, r deploy.Release, release string) error {
	p.sweep()
	dir, err := os.MkdirTemp(p.releases, tempPrefix)
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
	if err := d.sync(ctx, dir); err != nil {
		return err
	}
	if err := os.Rename(dir, release); err != nil {
		return pathless(err)
	}
	return syncDirs(p.releases, filepath.Dir(p.releases))
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
