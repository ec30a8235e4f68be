package localgit

import (
	"context"
	"errors"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/saga"
)

var _ forge.Changer = (*Host)(nil)

// The places where tests make a change's writes fail.
const (
	pointCommitBefore = fault.BranchBefore // the objects may be there, the branch is not
	pointCommitAfter  = fault.BranchDone   // the branch is there
	pointDeleteBefore = fault.DeleteBefore
	pointDeleteAfter  = fault.DeleteDone
)

// Branch looks at a branch and at the commit at its tip.
func (h *Host) Branch(ctx context.Context, project, name string) (forge.Branch, error) {
	const op = "look at branch"
	repo, err := h.openBranch(ctx, op, project, name)
	if err != nil {
		return forge.Branch{}, err
	}
	sha, err := repo.Resolve(ctx, "refs/heads/"+name)
	if errors.Is(err, git.ErrNotFound) {
		return forge.Branch{}, &forge.Error{Op: op, Kind: forge.KindNotFound, Field: "branch", Detail: "repository " + project + " has no branch " + name, Err: err}
	}
	if err != nil {
		return forge.Branch{}, fromGit(op, err)
	}
	c, err := repo.Commit(ctx, sha)
	if err != nil {
		return forge.Branch{}, fromGit(op, err)
	}
	return forge.Branch{Name: name, SHA: c.SHA, Parents: c.Parents, Message: c.Message}, nil
}

// openBranch is open for a call about one branch.
func (h *Host) openBranch(ctx context.Context, op, project, name string) (git.Repo, error) {
	if err := git.CheckBranch(name); err != nil {
		return git.Repo{}, invalid(op, "branch", "%v", err)
	}
	_, repo, err := h.open(ctx, op, project)
	return repo, err
}

// Files looks at paths of a commit, all in one run of git.
func (h *Host) Files(ctx context.Context, project, commit string, paths []string) (map[string]forge.File, error) {
	const op = "look at files"
	if !git.IsSHA(commit) {
		return nil, invalid(op, "commit", "%.60q is no full commit id", commit)
	}
	_, repo, err := h.open(ctx, op, project)
	if err != nil {
		return nil, err
	}
	found, err := repo.Lookup(ctx, commit, paths)
	if err != nil {
		return nil, fromEdit(op, err)
	}
	files := make(map[string]forge.File, len(paths))
	for i, p := range paths {
		f := forge.File{Blob: found[i].Blob}
		switch found[i].Mode {
		case "":
			f.Kind = forge.FileAbsent
		case git.ModeDir:
			f.Kind = forge.FileDir
		case git.ModeSymlink:
			f.Kind = forge.FileSymlink
		case git.ModeSubmodule:
			f.Kind = forge.FileOther
		default:
			f.Kind = forge.FileRegular
		}
		files[p] = f
	}
	return files, nil
}

// Blob is git's id of a content; no repository is asked.
func (h *Host) Blob(_ context.Context, _, content string) (string, error) {
	return git.BlobID(content), nil
}

// CreateCommit makes the branch with its one commit. The commit depends on
// nothing but in, so that a repeated call makes the same one; only the branch
// decides whether it was made.
func (h *Host) CreateCommit(ctx context.Context, in forge.NewChange) (string, error) {
	const op = "create commit"
	edited, err := h.edit(ctx, op, in)
	if err != nil {
		return "", err
	}
	if edited.Tree == edited.Base {
		return "", &forge.Error{Op: op, Kind: forge.KindNothingToMerge, Detail: "the base already holds these files as they are"}
	}
	repo := h.repo(in.Project)
	if err := edited.Store(ctx); err != nil {
		return "", fromGit(op, err)
	}
	sha, err := repo.CommitTree(ctx, git.NewCommit{
		Tree: edited.Tree, Parents: []string{in.Base}, Name: in.Author.Name, Email: in.Author.Email, When: in.When, Message: in.Message,
	})
	if err != nil {
		return "", fromGit(op, err)
	}
	make := git.Swap{Ref: "refs/heads/" + in.Branch, Old: git.Zero, New: sha}
	err = h.swap(ctx, op, repo, make, pointCommitBefore, pointCommitAfter)
	switch {
	case errors.Is(err, git.ErrMoved):
		return "", &forge.Error{Op: op, Kind: forge.KindExists, Field: "branch", Detail: "branch " + in.Branch + " exists already", Err: err}
	case errors.Is(err, git.ErrNested):
		return "", &forge.Error{Op: op, Kind: forge.KindInvalid, Field: "branch", Detail: "branch " + in.Branch + " would lie inside or around another one's name", Err: err}
	case err != nil:
		return "", err
	}
	return sha, nil
}

// IsChange makes the change's tree on head's parent and compares the two.
func (h *Host) IsChange(ctx context.Context, in forge.NewChange, head string) (parent string, ok bool, err error) {
	const op = "compare with a change"
	repo, err := h.openCommits(ctx, op, in.Project, head)
	if err != nil {
		return "", false, err
	}
	c, err := repo.Commit(ctx, head)
	if err != nil {
		return "", false, fromGit(op, err)
	}
	if len(c.Parents) != 1 {
		return "", false, nil
	}
	in.Base = c.Parents[0]
	edited, err := h.edit(ctx, op, in)
	switch {
	case forge.KindOf(err) == forge.KindInvalid:
		return in.Base, false, nil // the files don't even fit on that parent
	case err != nil:
		return in.Base, false, err
	}
	tree, err := repo.TreeOf(ctx, head)
	if err != nil {
		return in.Base, false, fromGit(op, err)
	}
	return in.Base, edited.Tree == tree, nil
}

// edit checks a change and computes its tree.
func (h *Host) edit(ctx context.Context, op string, in forge.NewChange) (git.Edited, error) {
	switch {
	case !git.IsSHA(in.Base):
		return git.Edited{}, invalid(op, "base", "%.60q is no full commit id", in.Base)
	case in.When.Unix() < 0:
		return git.Edited{}, invalid(op, "when", "a commit can't be dated before 1970")
	}
	repo, err := h.openBranch(ctx, op, in.Project, in.Branch)
	if err != nil {
		return git.Edited{}, err
	}
	edits := make([]git.Edit, len(in.Files))
	for i, f := range in.Files {
		edits[i] = git.Edit{Path: f.Path, Delete: f.Delete, Content: f.Content}
	}
	edited, err := repo.Edit(ctx, in.Base, edits)
	if err != nil {
		return git.Edited{}, fromEdit(op, err)
	}
	return edited, nil
}

func fromEdit(op string, err error) error {
	if p, ok := errors.AsType[*git.PathError](err); ok {
		return invalid(op, fmt.Sprintf("files[%d].path", p.Index), "%s", p.Why)
	}
	return fromGit(op, err)
}

// swap makes one reference move and says what is known about it. git.ErrMoved
// and git.ErrNested come back as they are.
func (h *Host) swap(ctx context.Context, op string, repo git.Repo, s git.Swap, before, after fault.Place) error {
	if err := h.point(before); err != nil {
		return notApplied(op, err)
	}
	err := repo.UpdateRef(ctx, s)
	switch {
	case errors.Is(err, git.ErrMoved), errors.Is(err, git.ErrNested):
		return err
	case err == nil:
		err = h.point(after)
	}
	if err == nil {
		return nil
	}
	if locked, ok := errors.AsType[*git.LockError](err); ok {
		return notApplied(op, locked)
	}
	return unclear(op, err)
}

func notApplied(op string, err error) error {
	return &forge.Error{Op: op, Kind: forge.KindTransient, Detail: saga.Clean(err.Error(), 1000), Err: err}
}

func unclear(op string, err error) error {
	return &forge.Error{Op: op, Kind: forge.KindUnclear, Detail: saga.Clean(err.Error(), 1000), Err: err}
}

// DeleteBranch deletes a branch that is still where the caller saw it. The
// default branch stays.
func (h *Host) DeleteBranch(ctx context.Context, project, name, sha string) error {
	const op = "delete branch"
	if !git.IsSHA(sha) {
		return invalid(op, "sha", "%.60q is no full commit id", sha)
	}
	if err := git.CheckBranch(name); err != nil {
		return invalid(op, "branch", "%v", err)
	}
	row, repo, err := h.open(ctx, op, project)
	if err != nil {
		return err
	}
	if name == row.DefaultBranch {
		return invalid(op, "branch", "%s is the default branch", name)
	}
	ref := "refs/heads/" + name
	err = h.swap(ctx, op, repo, git.Swap{Ref: ref, Old: sha, New: git.Zero}, pointDeleteBefore, pointDeleteAfter)
	if !errors.Is(err, git.ErrMoved) {
		return err
	}
	refs, err := repo.Values(ctx, ref)
	switch {
	case err != nil:
		return fromGit(op, err)
	case refs[ref] == "":
		return nil
	}
	return &forge.Error{Op: op, Kind: forge.KindHeadMoved, Detail: fmt.Sprintf("branch %s is at %s, not at %s", name, refs[ref], sha)}
}

// Diff shows what CreateCommit would change. The new files and folders are
// objects in a temporary directory while git compares them.
func (h *Host) Diff(ctx context.Context, in forge.NewChange, limit int) (string, error) {
	const op = "diff"
	edited, err := h.edit(ctx, op, in)
	if err != nil {
		return "", err
	}
	text, err := edited.Patch(ctx, limit)
	if err != nil {
		return "", fromGit(op, err)
	}
	return text, nil
}

// Digest is git.Repo.PatchID of base..head.
func (h *Host) Digest(ctx context.Context, project, base, head string) (string, error) {
	const op = "digest"
	repo, err := h.openCommits(ctx, op, project, base, head)
	if err != nil {
		return "", err
	}
	id, err := repo.PatchID(ctx, base, head)
	if err != nil {
		return "", fromGit(op, err)
	}
	return id, nil
}

// MergeBase is the best common ancestor; KindConflict where there is none.
func (h *Host) MergeBase(ctx context.Context, project, a, b string) (string, error) {
	const op = "merge base"
	repo, err := h.openCommits(ctx, op, project, a, b)
	if err != nil {
		return "", err
	}
	base, err := repo.MergeBase(ctx, a, b)
	if errors.Is(err, git.ErrUnrelated) {
		return "", &forge.Error{Op: op, Kind: forge.KindConflict, Detail: "the two commits have no commit in common", Err: err}
	}
	if err != nil {
		return "", fromGit(op, err)
	}
	return base, nil
}

func (h *Host) openCommits(ctx context.Context, op, project string, commits ...string) (git.Repo, error) {
	for _, c := range commits {
		if !git.IsSHA(c) {
			return git.Repo{}, invalid(op, "commit", "%.60q is no full commit id", c)
		}
	}
	_, repo, err := h.open(ctx, op, project)
	return repo, err
}

// Export writes a commit's files into the empty folder dir; see git.Repo.Export.
func (h *Host) Export(ctx context.Context, project, commit, dir string) error {
	const op = "export"
	repo, err := h.openCommits(ctx, op, project, commit)
	if err != nil {
		return err
	}
	err = repo.Export(ctx, commit, dir)
	if p, ok := errors.AsType[*git.PathError](err); ok {
		return &forge.Error{Op: op, Kind: forge.KindInvalid, Detail: saga.Clean(p.Error(), 1000), Err: err}
	}
	if err != nil {
		return fromGit(op, err)
	}
	return nil
}
