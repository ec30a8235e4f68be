package localgit

import (
	"context"
	"errors"
	"os"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/store"
)

// CreateRepository makes an empty repository, created now by the database's clock.
// Defaults: branch main, style merge. The errors' fields are those of the HTTP API.
func (h *Host) CreateRepository(ctx context.Context, r forge.Repository) (forge.Repository, error) {
	const op = "create repository"
	if r.DefaultBranch == "" {
		r.DefaultBranch = "main"
	}
	if r.MergeStyle == "" {
		r.MergeStyle = forge.MergeCommit
	}
	if err := CheckName(r.Name); err != nil {
		return forge.Repository{}, invalid(op, "name", "%v", err)
	}
	if err := git.CheckBranch(r.DefaultBranch); err != nil {
		return forge.Repository{}, invalid(op, "defaultBranch", "%v", err)
	}
	if r.MergeStyle != forge.MergeCommit && r.MergeStyle != forge.SquashCommit {
		return forge.Repository{}, invalid(op, "mergeStyle", "must be merge or squash")
	}
	if err := checkEach(r.RequiredChecks, "check"); err != nil {
		return forge.Repository{}, invalid(op, "requiredChecks", "%v", err)
	}
	if err := checkEach(r.Reviewers, "reviewer"); err != nil {
		return forge.Repository{}, invalid(op, "reviewers", "%v", err)
	}
	_, err := h.Store.Repo(ctx, r.Name)
	if err == nil {
		return forge.Repository{}, fromStore(op, "name", "repository "+r.Name, store.ErrExists)
	}
	if !errors.Is(err, store.ErrNotFound) {
		return forge.Repository{}, fromStore(op, "name", "repository "+r.Name, err)
	}

	// The directory first: a crash then leaves an empty repository that nobody
	// can reach and the next try takes over, never a row without a repository.
	repo := h.repo(r.Name)
	_, err = git.Init(ctx, repo.Dir, r.DefaultBranch)
	made := err == nil
	if err != nil && !errors.Is(err, os.ErrExist) {
		return forge.Repository{}, fromGit(op, err)
	}
	row, err := h.Store.CreateRepo(ctx, store.Repo{
		Name: r.Name, DefaultBranch: r.DefaultBranch, RequiredChecks: r.RequiredChecks, MergeStyle: string(r.MergeStyle),
		RequireUpToDate: r.RequireUpToDate, Reviewers: r.Reviewers,
	})
	if err != nil {
		if made && errors.Is(err, store.ErrExists) {
			h.removeUnowned(ctx, r.Name)
		}
		return forge.Repository{}, fromCreate(op, "name", "repository "+r.Name, err)
	}
	if !made {
		if err := repo.SetHead(ctx, r.DefaultBranch); err != nil {
			return forge.Repository{}, fromGit(op, err)
		}
	}
	return repository(row), nil
}

// removeUnowned drops the directory made for a name that differs from another
// repository's only in case. Somebody who took exactly this name meanwhile
// owns it.
func (h *Host) removeUnowned(ctx context.Context, name string) {
	if _, err := h.Store.Repo(ctx, name); errors.Is(err, store.ErrNotFound) {
		_ = os.RemoveAll(h.repo(name).Dir)
	}
}

func repository(r store.Repo) forge.Repository {
	return forge.Repository{
		Name: r.Name, DefaultBranch: r.DefaultBranch, RequiredChecks: r.RequiredChecks, MergeStyle: forge.MergeStyle(r.MergeStyle),
		RequireUpToDate: r.RequireUpToDate, Reviewers: r.Reviewers, CreatedAt: r.CreatedAt,
	}
}
