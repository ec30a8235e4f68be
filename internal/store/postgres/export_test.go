package postgres

import (
	"context"
	"time"
)

// The parts that the tests outside the package look at.
var (
	ClaimAny     = claimAny
	ClaimOverdue = claimOverdue
	Unstorable   = unstorable
	IsID         = func(s string) bool { _, ok := idOf(s); return ok }
)

// SetPatience sets how long a lost commit is looked for.
func (db *DB) SetPatience(d time.Duration) { db.patience = d }

// Explain runs a statement as the store does, takes it back, and answers its
// plan as JSON.
func (db *DB) Explain(ctx context.Context, sql string, args ...any) (plan []byte, err error) {
	tx, err := db.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx)
	err = tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&plan)
	return plan, err
}
