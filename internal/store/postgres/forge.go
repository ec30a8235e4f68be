package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/mergeflow/mergeflow/internal/store"
)

const repoColumns = `name, default_branch, required_checks, merge_style, require_up_to_date, reviewers, created_at`

func scanRepo(r pgx.CollectableRow) (store.Repo, error) {
	var x store.Repo
	err := r.Scan(&x.Name, &x.DefaultBranch, &x.RequiredChecks, &x.MergeStyle, &x.RequireUpToDate, &x.Reviewers, &x.CreatedAt)
	x.CreatedAt = x.CreatedAt.UTC()
	return x, err
}

// CreateRepo stores a repository and answers it as stored.
func (db *DB) CreateRepo(ctx context.Context, r store.Repo) (store.Repo, error) {
	op := fmt.Sprintf("create repository %q", r.Name)
	for _, t := range append(append([]string{r.Name, r.DefaultBranch, r.MergeStyle}, r.RequiredChecks...), r.Reviewers...) {
		if err := refusedText(t); err != nil {
			return store.Repo{}, fmt.Errorf("%s: %w", op, err)
		}
	}
	rows, err := db.pool.Query(ctx, `INSERT INTO repositories (name, default_branch, required_checks, merge_style, require_up_to_date, reviewers, created_at)
		VALUES ($1, $2, to_jsonb($3::text[]), $4, $5, to_jsonb($6::text[]), coalesce($7, mergeflow_now())) RETURNING `+repoColumns,
		r.Name, r.DefaultBranch, notNil(r.RequiredChecks), r.MergeStyle, r.RequireUpToDate, notNil(r.Reviewers), optionalTime(r.CreatedAt))
	if err != nil {
		return store.Repo{}, wrapCreate(op, err)
	}
	out, err := pgx.CollectExactlyOneRow(rows, scanRepo)
	return out, wrapCreate(op, err)
}

func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// Repo reads one repository.
func (db *DB) Repo(ctx context.Context, name string) (store.Repo, error) {
	op := fmt.Sprintf("repository %q", name)
	if refusedText(name) != nil {
		return store.Repo{}, fmt.Errorf("%s: %w", op, store.ErrNotFound)
	}
	rows, err := db.pool.Query(ctx, `SELECT `+repoColumns+` FROM repositories WHERE name = $1`, name)
	if err != nil {
		return store.Repo{}, wrap(op, err)
	}
	out, err := pgx.CollectExactlyOneRow(rows, scanRepo)
	return out, wrap(op, err)
}

// Repos lists repositories by name.
func (db *DB) Repos(ctx context.Context, f store.RepoFilter) ([]store.Repo, error) {
	var q conditions
	if f.Query != "" {
		q.contains(f.Query, "name")
	}
	if f.After != "" {
		q.add(`name COLLATE "C" > ?`, f.After)
	}
	sql, args := q.sql(`SELECT `+repoColumns+` FROM repositories`, `ORDER BY name COLLATE "C"`, f.Limit)
	rows, err := db.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, wrap("repositories", err)
	}
	out, err := pgx.CollectRows(rows, scanRepo)
	return out, wrap("repositories", err)
}

// CreatePull stores a pull request with its watchers. One without a number gets
// its repository's next; one that has a number (it exists on another forge)
// keeps it, and ErrExists says that it is here already.
func (db *DB) CreatePull(ctx context.Context, p store.Pull, watchers []string) (store.Pull, error) {
	op := fmt.Sprintf("create pull request in %q", p.Repo)
	if p.ID == "" {
		p.ID = uuid.Must(uuid.NewV7()).String()
	}
	id, ok := idOf(p.ID)
	if !ok {
		return store.Pull{}, fmt.Errorf("%s: %w: %q is no id", op, store.ErrConflict, p.ID)
	}
	operation, ok := optionalID(p.OperationID)
	if !ok {
		return store.Pull{}, fmt.Errorf("%s: %w: %q is no operation's id", op, store.ErrConflict, p.OperationID)
	}
	for _, t := range append([]string{p.Forge, p.Repo, p.Source, p.Target, p.Title, p.Description, p.Author, p.SagaStatus, p.MergeCommit}, watchers...) {
		if err := refusedText(t); err != nil {
			return store.Pull{}, fmt.Errorf("%s: %w", op, err)
		}
	}
	if p.Forge == "" {
		p.Forge = "default"
	}
	if p.ForgeState == "" {
		p.ForgeState = "open"
	}
	var out store.Pull
	err := db.inTx(ctx, func(tx pgx.Tx) error {
		iid := p.IID
		if iid == 0 {
			err := tx.QueryRow(ctx, `UPDATE repositories SET last_iid = last_iid + 1 WHERE name = $1 RETURNING last_iid`, p.Repo).Scan(&iid)
			if err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, `INSERT INTO pull_requests AS p (pull_id, forge, repo, iid, source, target, title, description, author,
				forge_state, saga_status, merge_commit, operation_id, created_at, updated_at)
			SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, at, at FROM (SELECT coalesce($14, mergeflow_now()) AS at) x
			RETURNING `+pullColumns, id, p.Forge, p.Repo, iid, p.Source, p.Target, p.Title, p.Description, p.Author,
			p.ForgeState, p.SagaStatus, p.MergeCommit, operation, optionalTime(p.CreatedAt))
		if err != nil {
			return err
		}
		if out, err = pgx.CollectExactlyOneRow(rows, scanPull); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, insertWatchers, id, notNil(watchers))
		return err
	})
	if err != nil {
		return store.Pull{}, wrapCreate(op, err)
	}
	return out, nil
}

// SetForgeState records what the local forge did. A merge is never taken back,
// and the first merge commit stays.
func (db *DB) SetForgeState(ctx context.Context, pullID, state, mergeCommit string) error {
	op := "forge state of pull request " + pullID
	id, ok := idOf(pullID)
	if !ok {
		return fmt.Errorf("%s: %w", op, store.ErrNotFound)
	}
	for _, t := range []string{state, mergeCommit} {
		if err := refusedText(t); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	tag, err := db.pool.Exec(ctx, `UPDATE pull_requests SET
			forge_state = CASE WHEN forge_state = 'merged' THEN forge_state ELSE $2 END,
			merge_commit = CASE WHEN merge_commit = '' THEN $3 ELSE merge_commit END,
			updated_at = mergeflow_now()
		WHERE pull_id = $1`, id, state, mergeCommit)
	if err == nil && tag.RowsAffected() == 0 {
		err = store.ErrNotFound
	}
	return wrap(op, err)
}

// SetStatus stores the newest status of a check; one that is older than what is
// there changes nothing.
func (db *DB) SetStatus(ctx context.Context, s store.CommitStatus) error {
	op := fmt.Sprintf("status %q of %s", s.Context, s.SHA)
	for _, t := range []string{s.Repo, s.SHA, s.Context, s.State, s.Description, s.TargetURL} {
		if err := refusedText(t); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	_, err := db.pool.Exec(ctx, `INSERT INTO commit_statuses AS c (repo, sha, context, state, description, target_url, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, mergeflow_now()))
		ON CONFLICT (repo, sha, context) DO UPDATE SET state = excluded.state, description = excluded.description,
			target_url = excluded.target_url, updated_at = excluded.updated_at
		WHERE c.updated_at <= excluded.updated_at`,
		s.Repo, s.SHA, s.Context, s.State, s.Description, s.TargetURL, optionalTime(s.UpdatedAt))
	return wrap(op, err)
}

// Statuses are the statuses of a commit by context.
func (db *DB) Statuses(ctx context.Context, repo, sha string) ([]store.CommitStatus, error) {
	rows, err := db.pool.Query(ctx, `SELECT repo, sha, context, state, description, target_url, updated_at
		FROM commit_statuses WHERE repo = $1 AND sha = $2 ORDER BY context COLLATE "C"`, repo, sha)
	if err != nil {
		return nil, wrap("statuses", err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (s store.CommitStatus, err error) {
		var at time.Time
		err = r.Scan(&s.Repo, &s.SHA, &s.Context, &s.State, &s.Description, &s.TargetURL, &at)
		s.UpdatedAt = at.UTC()
		return s, err
	})
	return out, wrap("statuses", err)
}
