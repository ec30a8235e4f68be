package sqlite

import (
	"context"

	"github.com/mergeflow/mergeflow/internal/store"
)

// PullsBySource lists the pull requests of two branches, the newest first.
func (db *DB) PullsBySource(ctx context.Context, forge, repo, source, target string, limit int) (ps []store.Pull, err error) {
	err = db.read(ctx, "pull requests of branch "+source, func(q querier) error {
		ps, err = all(q, scanPull, selectPull+`
WHERE forge = ? AND repo = ? AND source = ? AND target = ? ORDER BY iid DESC LIMIT ?`, forge, repo, source, target, limitOf(limit))
		return err
	})
	return ps, err
}
