package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The parts that the tests outside the package look at.
var (
	ClaimAny       = claimAny
	ClaimOverdue   = claimOverdue
	ReadClaimed    = readClaimed
	NextDue        = nextDueSQL
	Heartbeat      = heartbeatSQL
	Release        = releaseSQL
	UpdateSagas    = updateSagas
	UpdatePulls    = updatePulls
	UpdateBindings = updateBindings
	Requeue        = updateCommands
	Unstorable     = unstorable
	IsID           = func(s string) bool { _, ok := idOf(s); return ok }
)

// SetPatience sets how long a lost commit is looked for.
func (db *DB) SetPatience(d time.Duration) { db.patience = d }

// Explain runs a statement as the store does, takes it back, and answers its
// plan as JSON. cache is PostgreSQL's plan_cache_mode: whether the plan is made
// for these arguments, or the one that the connection keeps for all.
func (db *DB) Explain(ctx context.Context, cache, sql string, args ...any) (plan []byte, err error) {
	tx, err := db.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "SET LOCAL plan_cache_mode = "+cache); err != nil {
		return nil, err
	}
	st, err := tx.Prepare(ctx, fmt.Sprintf("explained_%x", sha256.Sum256([]byte(sql))), sql)
	if err != nil {
		return nil, err
	}
	var places []string
	for i := range args {
		places = append(places, fmt.Sprint("$", i+1))
	}
	explain := "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE " + st.Name + " (" + strings.Join(places, ", ") + ")"
	err = tx.QueryRow(ctx, explain, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...).Scan(&plan)
	return plan, err
}
