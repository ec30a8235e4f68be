package postgres_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// What the statements of every tick and every commit read depends on what is
// asked for and due, not on what is stored: neither timers ahead, nor parked
// kinds, nor their sagas. That holds for every plan that a connection may come
// to use: made for the arguments or for all, made now or kept since the tables
// were small, and whatever the statistics say.
func TestWorkDependsOnWhatIsDue(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	c := connect(t, dsn)
	exec := func(sql string) {
		t.Helper()
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range []string{"saga_instances", "outbox_events", "pull_requests", "bindings"} {
		exec("ALTER TABLE " + table + " SET (autovacuum_enabled = false)")
	}
	exec("ANALYZE")
	db, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn, MaxConns: 1}) // one connection, which keeps its plans
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	explain := func(cache string, s statement) []byte {
		t.Helper()
		plan, err := db.Explain(t.Context(), cache, s.sql, s.args...)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		return plan
	}
	var due []string
	for _, r := range startSagas(t, db, 20) {
		due = append(due, r.ID)
	}
	for _, s := range perTick(due) {
		explain("force_generic_plan", s)
	}
	exec(`INSERT INTO saga_instances (saga_id, flow, flow_version, aggregate_id, created_at, state, version, waiting_since, updated_at)
		SELECT gen_random_uuid(), 'ring', 1, gen_random_uuid(), now(), 'A', 1, now(), now() FROM generate_series(1, 30000)`)
	exec(`INSERT INTO pull_requests (pull_id, repo, iid, source, target, title, created_at, forge_state, operation_id, updated_at)
		SELECT aggregate_id::uuid, 'r', 100 + row_number() OVER (), 's', 'main', 't', now(), 'open', saga_id, now()
		FROM saga_instances WHERE NOT saga_id = ANY ('{` + strings.Join(due, ",") + `}')`)
	exec(`INSERT INTO bindings (subject_id, target_key, operation_id, status, updated_at)
		SELECT 's', saga_id::text, saga_id, 'MERGING', now() FROM saga_instances`)
	exec(`INSERT INTO outbox_events (saga_id, type, available_at, queued_since)
		SELECT operation_id, 'ring/' || 1 + iid % 2 || '/A/Do', now() + (1 - iid % 2 * 2) * interval '1 day', now()
		FROM pull_requests WHERE iid > 100`)
	check := func(statistics string) {
		t.Helper()
		for _, s := range perTick(due) {
			for _, cache := range []string{"force_generic_plan", "force_custom_plan"} {
				plan := explain(cache, s)
				if n := blocks(t, plan); n > 350 {
					t.Errorf("%s, %s, %s statistics: %d blocks are read:\n%s", s.name, cache, statistics, n, plan)
				}
			}
		}
	}
	check("stale")
	exec("VACUUM ANALYZE")
	check("fresh")
}

// statement is one of the store's, with what an instance passes to it.
type statement struct {
	name, sql string
	args      []any
}

// perTick are the statements that run as long as an instance does, for some
// sagas that are due.
func perTick(due []string) []statement {
	all := func(v string) []string { return slices.Repeat([]string{v}, len(due)) }
	kinds := []string{"ring/1/A/Do", "ring/1/B/Do", "ring/1/W/Wait", "ring/1/X/Do", "ring/1/Y/Do"}
	caps := make([]int32, len(kinds))
	for i := range caps {
		caps[i] = 200
	}
	claim := []any{kinds, caps, make([]int64, len(kinds)), make([]bool, len(kinds)), 200, time.Hour.Microseconds(), time.Minute.Microseconds()}
	now := all("now")
	return []statement{
		{"claim", postgres.ClaimAny, claim},
		{"claim of what is overdue", postgres.ClaimOverdue, claim},
		{"reading what was claimed", postgres.ReadClaimed, []any{due}},
		{"next due", postgres.NextDue, []any{kinds}},
		{"heartbeat", postgres.Heartbeat, []any{due, due, time.Minute.Microseconds()}},
		{"release", postgres.Release, []any{due, due}},
		{"write of sagas", postgres.UpdateSagas, []any{due, all("1"), all("2"), all("B"), all(""), all(""), all(""), all(""), all("null"), all("{}"), now, now, now, all("null")}},
		{"write of commands", postgres.Requeue, []any{due, all("ring/1/B/Do"), now, now, now, all("1"), all("1"), all("f"), all(""), due, now, due, all("f"), all("f")}},
		{"write of pull requests", postgres.UpdatePulls, []any{due, due, all("merging"), all(""), all("f"), all("f"), time.Now()}},
		{"write of bindings", postgres.UpdateBindings, []any{due, all("MERGED"), time.Now()}},
	}
}

// blocks is how many blocks a plan's statement read.
func blocks(t *testing.T, plan []byte) int {
	t.Helper()
	var p []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(plan, &p); err != nil {
		t.Fatal(err)
	}
	return p[0].Plan.Hit + p[0].Plan.Read
}
