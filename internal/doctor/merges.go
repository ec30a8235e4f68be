// Package doctor compares git with the database. Invariants that lie within the
// database are queries there (store.Auditor); this is the one between the two:
// every merge request that the database calls merged is on its branch, as the
// commit it names, exactly once.
//
// It reads only, and may run beside a working server: the database is read
// before git, and a merge is in git before the database hears of it. A merge is
// known by two trailers of its message, Mergeflow-Operation and Mergeflow-Pull;
// a change's own commit carries the first alone. Copies of a merge (cherry-picks)
// carry both and are told by their committer.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/store"
)

// onceMerged is the invariant's name in the architecture.
const onceMerged = "I13"

const page = 500

// Database is what a comparison asks.
type Database interface {
	Repos(ctx context.Context, f store.RepoFilter) ([]store.Repo, error)
	Pulls(ctx context.Context, f store.PullFilter) ([]store.Pull, error)
	OperationOf(ctx context.Context, project, mergeCommit string, mrIID int64) (string, error)
}

// Compared is what a comparison found.
type Compared struct {
	Findings []store.Finding
	Merges   int // merged merge requests that were looked for
	Gone     int // of those, on branches that were deleted since: not looked for
}

// Merges compares every repository of the local forge; repo answers where git
// has one. At most limit findings are answered. One repository at a
// time is kept in memory: its merges, a few hundred bytes each.
func Merges(ctx context.Context, db Database, forge string, repo func(name string) git.Repo, limit int) (Compared, error) {
	var out Compared
	for after := ""; ; {
		rs, err := db.Repos(ctx, store.RepoFilter{After: after, Limit: page})
		if err != nil {
			return out, err
		}
		for _, r := range rs {
			c := comparison{db: db, name: r.Name, git: repo(r.Name), out: &out, limit: limit}
			if err := c.run(ctx, forge); err != nil {
				return out, fmt.Errorf("repository %s: %w", r.Name, err)
			}
			if len(out.Findings) >= limit {
				return out, nil
			}
		}
		if len(rs) < page {
			return out, nil
		}
		after = rs[len(rs)-1].Name
	}
}

// comparison is that of one repository.
type comparison struct {
	db    Database
	name  string
	git   git.Repo
	out   *Compared
	limit int
}

// merged is what the database says of one merge.
type merged struct {
	iid       int64
	commit    string
	operation string // empty for a change's: its saga keeps that
}

// found is what a branch has of one merge request.
type found struct {
	commits   []string
	operation string // of one of them
}

func (c *comparison) run(ctx context.Context, forge string) error {
	branches, err := c.recorded(ctx, forge)
	if err != nil || len(branches) == 0 {
		return err
	}
	tips, err := c.git.Values(ctx, "refs/heads")
	if errors.Is(err, git.ErrNotFound) {
		c.report("", "repository %s is in the database and not in the data folder", c.name)
		return nil
	}
	if err != nil {
		return err
	}
	for _, branch := range slices.Sorted(maps.Keys(branches)) {
		tip := tips["refs/heads/"+branch]
		if tip == "" {
			c.out.Gone += len(branches[branch])
			continue
		}
		has, err := c.signed(ctx, tip)
		if err != nil {
			return err
		}
		if err := c.compare(ctx, branch, branches[branch], has); err != nil {
			return err
		}
	}
	return nil
}

// recorded are the merges that the database knows, by target branch.
func (c *comparison) recorded(ctx context.Context, forge string) (map[string][]merged, error) {
	out := map[string][]merged{}
	f := store.PullFilter{Repo: c.name, Limit: page}
	for {
		ps, err := c.db.Pulls(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, p := range ps {
			switch {
			case p.Forge != forge:
			case p.MergeCommit != "":
				out[p.Target] = append(out[p.Target], merged{p.IID, p.MergeCommit, p.OperationID})
				c.out.Merges++
			case p.Status() == "merged":
				c.report(p.OperationID, "says that %s!%d is merged and names no commit", c.name, p.IID)
			}
		}
		if len(ps) < page {
			return out, nil
		}
		last := ps[len(ps)-1]
		f.Before = &store.Cursor{At: last.CreatedAt, ID: last.ID}
	}
}

// signed is what the branch has of merges, by "repository!number".
func (c *comparison) signed(ctx context.Context, tip string) (map[string]found, error) {
	out := map[string]found{}
	err := c.git.Trailers(ctx, tip, []string{"Mergeflow-Pull", "Mergeflow-Operation"}, func(s git.Signed) error {
		if !s.Copied {
			name := s.Values[0]
			out[name] = found{append(out[name].commits, s.SHA), s.Values[1]}
		}
		return nil
	})
	return out, err
}

func (c *comparison) compare(ctx context.Context, branch string, ms []merged, has map[string]found) error {
	for _, m := range ms {
		name := fmt.Sprintf("%s!%d", c.name, m.iid)
		f := has[name]
		if len(f.commits) == 1 && f.commits[0] == m.commit {
			continue
		}
		operation, err := c.operation(ctx, m, f)
		if err != nil {
			return err
		}
		switch {
		case len(f.commits) > 1:
			c.report(operation, "merged %s into %s %d times: %s", name, branch, len(f.commits), strings.Join(f.commits, ", "))
		case len(f.commits) == 1:
			c.report(operation, "merged %s into %s as %s; the branch has it as %s", name, branch, m.commit, f.commits[0])
		default:
			c.report(operation, "merged %s into %s as %s, which the branch does not have: it was pushed away, or an older copy of the repository was put back", name, branch, m.commit)
		}
	}
	return nil
}

// operation is the saga that a merge belongs to: as the pull request says, as
// the merge says, or as the change remembers.
func (c *comparison) operation(ctx context.Context, m merged, f found) (string, error) {
	if id := cmp.Or(m.operation, f.operation); id != "" {
		return id, nil
	}
	id, err := c.db.OperationOf(ctx, c.name, m.commit, m.iid)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	return id, err
}

func (c *comparison) report(operation, format string, args ...any) {
	if len(c.out.Findings) < c.limit {
		c.out.Findings = append(c.out.Findings, store.Finding{Invariant: onceMerged, SagaID: operation, Detail: fmt.Sprintf(format, args...)})
	}
}
