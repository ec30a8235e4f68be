package localgit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/store"
)

// CreateMergeRequest stores and numbers a merge request. It refuses, naming the
// field: an unknown repository, an unknown or impossible branch, the same
// branch twice, an empty repository, and a source that the target holds already.
func (h *Host) CreateMergeRequest(ctx context.Context, in forge.NewMergeRequest) (forge.MergeRequest, error) {
	const op = "create merge request"
	for _, b := range []struct{ field, name string }{{"source", in.Source}, {"target", in.Target}} {
		if err := git.CheckBranch(b.name); err != nil {
			return forge.MergeRequest{}, invalid(op, b.field, "%v", err)
		}
	}
	if in.Source == in.Target {
		return forge.MergeRequest{}, invalid(op, "source", "source and target are the same branch")
	}
	if strings.TrimSpace(in.Title) == "" {
		return forge.MergeRequest{}, invalid(op, "title", "a merge request needs a title")
	}
	if err := checkLine(in.Title, maxTitle); err != nil {
		return forge.MergeRequest{}, invalid(op, "title", "the title %v", err)
	}
	if err := checkText(in.Description, forge.MaxDescription); err != nil {
		return forge.MergeRequest{}, invalid(op, "description", "the description %v", err)
	}
	if err := checkLine(in.Author, maxPerson); err != nil {
		return forge.MergeRequest{}, invalid(op, "author", "the author's name %v", err)
	}
	if err := checkEach(in.Watchers, "watcher"); err != nil {
		return forge.MergeRequest{}, invalid(op, "watchers", "%v", err)
	}
	row, repo, err := h.open(ctx, op, in.Project)
	if err != nil {
		return forge.MergeRequest{}, err
	}
	head, target, err := branches(ctx, op, repo, in)
	if err != nil {
		return forge.MergeRequest{}, err
	}
	if err := h.somethingToMerge(ctx, op, row, repo, target, head); err != nil {
		return forge.MergeRequest{}, err
	}
	p, err := h.Store.CreatePull(ctx, store.Pull{
		Forge: h.Forge, Repo: in.Project, Source: in.Source, Target: in.Target,
		Title: in.Title, Description: in.Description, Author: in.Author,
		ForgeState: string(forge.Open),
	}, in.Watchers)
	if err != nil {
		return forge.MergeRequest{}, fromCreate(op, "repo", "repository "+in.Project, err)
	}
	return (&look{host: h, pull: p, repo: repo, head: head, target: target}).mergeRequest(), nil
}

// branches looks up both tips, and says which one is missing.
func branches(ctx context.Context, op string, repo git.Repo, in forge.NewMergeRequest) (head, target string, err error) {
	source, dest := "refs/heads/"+in.Source, "refs/heads/"+in.Target
	refs, err := repo.Values(ctx, source, dest)
	if err != nil {
		return "", "", fromGit(op, err)
	}
	if len(refs) == 0 {
		if all, err := repo.Refs(ctx, "refs/heads"); err == nil && len(all) == 0 {
			return "", "", invalid(op, "repo", "repository %s is empty: push a branch first", in.Project)
		}
	}
	for _, b := range []struct{ field, name, ref string }{{"source", in.Source, source}, {"target", in.Target, dest}} {
		if refs[b.ref] == "" {
			return "", "", invalid(op, b.field, "repository %s has no branch %s", in.Project, b.name)
		}
	}
	return refs[source], refs[dest], nil
}

// MergeRequest looks: at git first, where a merge is or is not, then at the
// database, whose forge state it brings up to date.
func (h *Host) MergeRequest(ctx context.Context, ref forge.Ref) (forge.MergeRequest, error) {
	l, err := h.look(ctx, "look at merge request", ref)
	if err != nil {
		return forge.MergeRequest{}, err
	}
	return l.mergeRequest(), nil
}

// look is a merge request as it stands.
type look struct {
	host       *Host
	pull       store.Pull
	row        store.Repo
	repo       git.Repo
	head       string // tip of the source; empty when it is gone
	target     string // tip of the target; empty when it is gone
	marker     string // the intended or done merge; empty when there is none
	closed     bool   // in git; the database may not know yet, or know more
	merged     string // the commit that landed; empty while not merged
	mergedHead string
}

func (l *look) sourceRef() string { return "refs/heads/" + l.pull.Source }
func (l *look) targetRef() string { return "refs/heads/" + l.pull.Target }
func (l *look) markerRef() string { return markerPrefix + l.pull.ID }

func (l *look) closedRef() string { return closedPrefix + l.pull.ID }

// Where merges and closes are marked. Clients neither see nor push it.
const (
	markerPrefix = "refs/mergeflow/merged/"
	closedPrefix = "refs/mergeflow/closed/"
)

func (h *Host) look(ctx context.Context, op string, ref forge.Ref) (*look, error) {
	row, repo, err := h.open(ctx, op, ref.Project)
	if err != nil {
		return nil, err
	}
	p, err := h.Store.PullByIID(ctx, h.Forge, ref.Project, ref.IID)
	if err != nil {
		return nil, fromStore(op, "iid", fmt.Sprintf("merge request %s!%d", ref.Project, ref.IID), err)
	}
	l := &look{host: h, pull: p, row: row, repo: repo}
	return l, l.refresh(ctx, op)
}

// refresh looks at git again. The database's row stays as it was read.
func (l *look) refresh(ctx context.Context, op string) error {
	refs, err := l.repo.Values(ctx, l.sourceRef(), l.targetRef(), l.markerRef(), l.closedRef())
	if err != nil {
		return fromGit(op, err)
	}
	l.head, l.target, l.marker = refs[l.sourceRef()], refs[l.targetRef()], refs[l.markerRef()]
	l.closed = refs[l.closedRef()] != ""
	if l.marker != "" && l.target != "" {
		landed, err := l.repo.IsAncestor(ctx, l.marker, l.target)
		if err != nil {
			return fromGit(op, err)
		}
		if landed {
			return l.landed(ctx, op, l.marker)
		}
	}
	// A merge that once was in the target stays a merge, even when somebody has
	// pushed the target back since: it is never redone.
	if l.pull.ForgeState == string(forge.Merged) {
		return l.landed(ctx, op, l.pull.MergeCommit)
	}
	l.record(ctx)
	return nil
}

// landed completes a look at a merged request and repairs the database's view.
func (l *look) landed(ctx context.Context, op, commit string) error {
	l.merged = commit
	c, err := l.repo.Commit(ctx, commit)
	switch {
	case errors.Is(err, git.ErrNotFound): // pushed away and collected since
	case err != nil:
		return fromGit(op, err)
	default:
		l.mergedHead = headOf(c)
	}
	l.record(ctx)
	return nil
}

// record tells the database what git has. When that fails, nothing is lost:
// git is the truth, and the next look tries again.
func (l *look) record(ctx context.Context) {
	state := l.state()
	if l.pull.ForgeState == string(state) && l.pull.MergeCommit == l.merged {
		return
	}
	if err := l.host.Store.SetForgeState(ctx, l.pull.ID, string(state), l.merged); err != nil {
		l.host.Log.WarnContext(ctx, "not recorded yet", "repo", l.pull.Repo, "iid", l.pull.IID, "state", state, "commit", l.merged, "error", err)
	}
}

func (l *look) state() forge.State {
	switch {
	case l.merged != "":
		return forge.Merged
	case l.closed, l.pull.ForgeState == string(forge.Closed):
		return forge.Closed
	}
	return forge.Open
}

func (l *look) mergeRequest() forge.MergeRequest {
	p := l.pull
	mr := forge.MergeRequest{
		Ref: forge.Ref{Project: p.Repo, IID: p.IID}, ID: p.ID, Title: p.Title, Description: p.Description,
		Source: p.Source, Target: p.Target, State: l.state(), HeadSHA: l.head, TargetSHA: l.target,
		MergeCommit: l.merged, MergedHead: l.mergedHead,
	}
	if l.host.PullURL != nil {
		mr.URL = l.host.PullURL(p)
	}
	return mr
}
