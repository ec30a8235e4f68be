package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/store"
)

// CreateRepo stores a repository, created now unless it says when.
func (db *DB) CreateRepo(ctx context.Context, r store.Repo) (store.Repo, error) {
	r.CreatedAt = db.orNow(r.CreatedAt)
	err := db.write(ctx, "create repository "+r.Name, func(s *session) error {
		if err := errors.Join(checkText("a repository", r.Name, r.DefaultBranch, r.MergeStyle), checkText("a required check", r.RequiredChecks...),
			checkText("a reviewer", r.Reviewers...)); err != nil {
			return err
		}
		required, err := toJSON(append([]string{}, r.RequiredChecks...))
		if err != nil {
			return err
		}
		reviewers, err := toJSON(append([]string{}, r.Reviewers...))
		if err != nil {
			return err
		}
		_, err = s.exec(`
INSERT INTO repositories (name, default_branch, required_checks, merge_style, require_up_to_date, reviewers, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?)`, r.Name, r.DefaultBranch, required, r.MergeStyle, r.RequireUpToDate, reviewers, micros(r.CreatedAt))
		return taken(err)
	})
	if err != nil {
		return store.Repo{}, err
	}
	return r, nil
}

// taken turns a key that is there already into ErrExists.
func taken(err error) error {
	if isTaken(err) {
		return store.ErrExists
	}
	return err
}

// Repo reads a repository by its exact name.
func (db *DB) Repo(ctx context.Context, name string) (r store.Repo, err error) {
	err = db.read(ctx, "repository "+name, func(q querier) error {
		r, err = one(q, scanRepo, selectRepo+`WHERE name = ?`, name)
		return err
	})
	return r, err
}

// Repos lists repositories by name.
func (db *DB) Repos(ctx context.Context, f store.RepoFilter) (rs []store.Repo, err error) {
	var w where
	w.contains(f.Query, "name")
	if f.After != "" {
		w.add("name > ?", f.After)
	}
	end, args := w.list("name", f.Limit)
	err = db.read(ctx, "list repositories", func(q querier) error {
		rs, err = all(q, scanRepo, selectRepo+end, args...)
		return err
	})
	return rs, err
}

// CreatePull stores a pull request, created now unless it says when. One of another forge brings
// its number along; the local forge's gets the next one of its repository.
func (db *DB) CreatePull(ctx context.Context, p store.Pull, watchers []string) (store.Pull, error) {
	now := db.orNow(p.CreatedAt)
	p.CreatedAt, p.UpdatedAt = now, now
	if p.ID == "" {
		p.ID = uuid.Must(uuid.NewV7()).String()
	}
	if p.Forge == "" {
		p.Forge = "default"
	}
	if p.ForgeState == "" {
		p.ForgeState = "open"
	}
	err := db.write(ctx, "create pull request", func(s *session) (err error) {
		if err := errors.Join(checkID("a pull request's id", p.ID, p.OperationID), checkText("a pull request", p.Forge, p.Repo, p.Source,
			p.Target, p.Title, p.Description, p.Author, p.ForgeState, p.SagaStatus, p.MergeCommit)); err != nil {
			return err
		}
		if p.IID == 0 {
			p.IID, err = one(s, scanInt, `UPDATE repositories SET last_iid = last_iid + 1 WHERE name = ? RETURNING last_iid`, p.Repo)
			if err != nil {
				return fmt.Errorf("number it in repository %s: %w", p.Repo, err)
			}
		}
		if _, err := s.exec(`
INSERT INTO pull_requests
    (pull_id, forge, repo, iid, source, target, title, description, author, created_at, forge_state, saga_status, merge_commit, operation_id, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			p.ID, p.Forge, p.Repo, p.IID, p.Source, p.Target, p.Title, p.Description, p.Author, micros(now),
			p.ForgeState, p.SagaStatus, p.MergeCommit, null(p.OperationID), micros(now)); err != nil {
			return taken(err)
		}
		return s.addWatchers(p.ID, watchers)
	})
	if err != nil {
		return store.Pull{}, err
	}
	return p, nil
}

// PullByIID reads a pull request by its repository and number.
func (db *DB) PullByIID(ctx context.Context, forge, repo string, iid int64) (p store.Pull, err error) {
	err = db.read(ctx, fmt.Sprintf("pull request %s!%d", repo, iid), func(q querier) error {
		p, err = one(q, scanPull, selectPull+`WHERE forge = ? AND repo = ? AND iid = ?`, forge, repo, iid)
		return err
	})
	return p, err
}

// SetForgeState records what git has; merged stays merged, and a merge commit
// that is there stays.
func (db *DB) SetForgeState(ctx context.Context, pullID, state, mergeCommit string) error {
	return db.write(ctx, "forge state of pull request "+pullID, func(s *session) error {
		if err := checkText("a forge state", state, mergeCommit); err != nil {
			return err
		}
		_, err := one(s, scanInt, `
UPDATE pull_requests
SET forge_state = CASE WHEN forge_state = 'merged' THEN forge_state ELSE ?2 END,
    merge_commit = CASE WHEN merge_commit = '' THEN ?3 ELSE merge_commit END,
    updated_at = ?4
WHERE pull_id = ?1 RETURNING 1`, pullID, state, mergeCommit, micros(db.now()))
		return err
	})
}

// SetStatus stores a commit status over the one that was there, unless that
// one is newer.
func (db *DB) SetStatus(ctx context.Context, c store.CommitStatus) error {
	return db.write(ctx, "status of commit "+c.SHA, func(s *session) error {
		if err := checkText("a commit status", c.Repo, c.SHA, c.Context, c.State, c.Description, c.TargetURL); err != nil {
			return err
		}
		_, err := s.exec(`
INSERT INTO commit_statuses (repo, sha, context, state, description, target_url, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (repo, sha, context) DO UPDATE
SET state = excluded.state, description = excluded.description, target_url = excluded.target_url, updated_at = excluded.updated_at
WHERE commit_statuses.updated_at <= excluded.updated_at`,
			c.Repo, c.SHA, c.Context, c.State, c.Description, c.TargetURL, micros(db.orNow(c.UpdatedAt)))
		return err
	})
}

// Statuses lists a commit's statuses by context.
func (db *DB) Statuses(ctx context.Context, repo, sha string) (cs []store.CommitStatus, err error) {
	err = db.read(ctx, "statuses of commit "+sha, func(q querier) error {
		cs, err = all(q, func(sc scanner) (c store.CommitStatus, err error) {
			return c, sc.Scan(&c.Repo, &c.SHA, &c.Context, &c.State, &c.Description, &c.TargetURL, moment{&c.UpdatedAt})
		}, `
SELECT repo, sha, context, state, description, target_url, updated_at FROM commit_statuses
WHERE repo = ? AND sha = ? ORDER BY context`, repo, sha)
		return err
	})
	return cs, err
}
