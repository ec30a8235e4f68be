package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/mergeflow/mergeflow/internal/store"
)

// PullsBySource lists the pull requests of two branches, the newest first.
func (db *DB) PullsBySource(ctx context.Context, forge, repo, source, target string, limit int) ([]store.Pull, error) {
	op := "pull requests of branch " + source
	for _, t := range []string{forge, repo, source, target} {
		if refusedText(t) != nil {
			return nil, nil // nothing of that name can be there
		}
	}
	rows, err := db.pool.Query(ctx, `SELECT `+pullColumns+` FROM pull_requests p
		WHERE p.forge = $1 AND p.repo = $2 AND p.source = $3 AND p.target = $4 ORDER BY p.iid DESC LIMIT $5`, forge, repo, source, target, limitOf(limit))
	if err != nil {
		return nil, wrap(op, err)
	}
	out, err := pgx.CollectRows(rows, scanPull)
	return out, wrap(op, err)
}
