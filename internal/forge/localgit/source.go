package localgit

import (
	"context"
	"errors"

	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/search"
)

// Changes lists the plain files that differ between two commits, or all of to
// when from is empty. What became a link or a submodule counts as deleted.
func (h *Host) Changes(ctx context.Context, repo, from, to string) ([]search.Change, error) {
	const op = "list changes"
	_, r, err := h.open(ctx, op, repo)
	if err != nil {
		return nil, err
	}
	var changes []search.Change
	if from == "" {
		err = r.Tree(ctx, to, func(e git.Entry) error {
			if plain(e.Mode) {
				changes = append(changes, search.Change{Path: e.Path, Blob: e.Blob, Size: e.Size})
			}
			return nil
		})
	} else {
		changes, err = diff(ctx, r, from, to)
	}
	if err != nil {
		return nil, fromGit(op, err)
	}
	return changes, nil
}

func diff(ctx context.Context, r git.Repo, from, to string) ([]search.Change, error) {
	var changes []search.Change
	var blobs []string
	var at []int // where in changes each blob belongs
	err := r.Diff(ctx, from, to, func(c git.FileChange) error {
		switch {
		case plain(c.NewMode):
			blobs, at = append(blobs, c.NewBlob), append(at, len(changes))
			changes = append(changes, search.Change{Path: c.Path, Blob: c.NewBlob})
		case plain(c.OldMode):
			changes = append(changes, search.Change{Path: c.Path, Deleted: true})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = r.Sizes(ctx, blobs, func(i int, size int64) error {
		changes[at[i]].Size = size
		return nil
	})
	return changes, err
}

func plain(mode string) bool { return mode == git.ModeFile || mode == git.ModeExecutable }

// ReadBlobs streams contents; see search.Source.
func (h *Host) ReadBlobs(ctx context.Context, repo string, blobs []string, fn func(blob string, content []byte) error) error {
	const op = "read blobs"
	_, r, err := h.open(ctx, op, repo)
	if err != nil {
		return err
	}
	var own error
	err = r.Blobs(ctx, blobs, func(i int, content []byte) error {
		own = fn(blobs[i], content)
		return own
	})
	if own != nil || err == nil {
		return own
	}
	return fromGit(op, err)
}

// Contains says whether commit has ancestor in its history; see search.Source.
func (h *Host) Contains(ctx context.Context, repo, commit, ancestor string) (bool, error) {
	const op = "compare commits"
	_, r, err := h.open(ctx, op, repo)
	if err != nil {
		return false, err
	}
	in, err := r.IsAncestor(ctx, ancestor, commit)
	if errors.Is(err, git.ErrNotFound) {
		if _, err := r.Resolve(ctx, commit); err == nil {
			return false, nil
		}
	}
	if err != nil {
		return false, fromGit(op, err)
	}
	return in, nil
}
