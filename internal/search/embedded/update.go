package embedded

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/search"
)

// errMoved says that another process has indexed the branch in the meantime.
var errMoved = errors.New("the branch was indexed by another process")

// maxRounds bounds how often Index starts again because of errMoved.
const maxRounds = 5

// Covers says whether the branch's covered commit is t.Commit or a descendant.
func (x *Index) Covers(ctx context.Context, t search.Target) (bool, error) {
	if err := check("covers", t); err != nil {
		return false, err
	}
	_, covered, err := x.position(ctx, t)
	return covered, err
}

// Index makes t.Commit searchable, from what differs to the covered commit. It
// is one transaction: whatever ends it early leaves the state before.
func (x *Index) Index(ctx context.Context, t search.Target) error {
	if err := check("index", t); err != nil {
		return err
	}
	err := errMoved
	for round := 0; errors.Is(err, errMoved) && round < maxRounds; round++ {
		err = x.index(ctx, t)
	}
	if err != nil {
		return fmt.Errorf("index %s %s: %w", t.Repo, t.Branch, cause(ctx, err))
	}
	return nil
}

func check(op string, t search.Target) error {
	if t.Repo == "" || t.Branch == "" || t.Commit == "" {
		return &search.Error{Op: op, Detail: "repository, branch and commit are needed"}
	}
	return nil
}

func (x *Index) index(ctx context.Context, t search.Target) error {
	from, covered, err := x.position(ctx, t)
	if covered || err != nil {
		return err
	}
	// Git works before the file is locked for others.
	base := from
	changes, err := x.o.Source.Changes(ctx, t.Repo, base, t.Commit)
	if err != nil && base != "" && x.isGone(ctx, t.Repo, base) {
		base = ""
		changes, err = x.o.Source.Changes(ctx, t.Repo, base, t.Commit)
	}
	if err != nil {
		return fmt.Errorf("read the changes: %w", err)
	}
	return x.update(ctx, func(tx *sql.Tx) error {
		w := &writer{ctx: ctx, tx: tx, x: x, repo: t.Repo, replaced: map[int64]struct{}{}}
		if err := w.open(t.Branch, from); err != nil {
			return err
		}
		if base == "" {
			if err := w.clear(); err != nil {
				return err
			}
		}
		if err := w.apply(changes); err != nil {
			return err
		}
		if err := w.collect(); err != nil {
			return err
		}
		return w.close(t.Commit)
	})
}

// position reads which commit the branch covers, and whether t.Commit is in it.
func (x *Index) position(ctx context.Context, t search.Target) (from string, covered bool, err error) {
	from, err = coveredCommit(ctx, x.read, t.Repo, t.Branch)
	if err != nil || from == "" || from == t.Commit {
		return from, from != "" && from == t.Commit, err
	}
	covered, err = x.o.Source.Contains(ctx, t.Repo, from, t.Commit)
	if err != nil {
		// After a repository was restored or its history rewritten, the covered
		// commit may be gone. That is believed only while the asked one can be
		// read: an index never goes back because of a hiccup.
		if there, e := x.o.Source.Contains(ctx, t.Repo, t.Commit, t.Commit); e == nil && there && x.isGone(ctx, t.Repo, from) {
			return from, false, nil
		}
		return from, false, fmt.Errorf("compare with the covered commit: %w", err)
	}
	return from, covered, nil
}

// isGone says whether the repository can't show a commit that it once had.
func (x *Index) isGone(ctx context.Context, repo, commit string) bool {
	there, err := x.o.Source.Contains(ctx, repo, commit, commit)
	return ctx.Err() == nil && (err != nil || !there)
}

type rowQuerier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// coveredCommit is empty for a branch that has no index.
func coveredCommit(ctx context.Context, db rowQuerier, repo, branch string) (string, error) {
	var commit string
	err := db.QueryRowContext(ctx, "SELECT commit_id FROM branches WHERE repo = ? AND name = ?", repo, branch).Scan(&commit)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return commit, err
}
