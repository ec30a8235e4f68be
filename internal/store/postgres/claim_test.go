package postgres_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// What a claim reads depends on what is asked for and due, not on what is
// stored: neither timers ahead, nor parked kinds, nor finished sagas.
func TestClaimReadsWhatIsDue(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	db := open(t, dsn)
	startSagas(t, db, 20)
	c := connect(t, dsn)
	for _, fill := range []string{
		`INSERT INTO outbox_events (saga_id, type, available_at, queued_since)
			SELECT gen_random_uuid(), 'ring/1/' || (ARRAY['A', 'B'])[1 + i % 2] || '/Do', now() + interval '1 day', now() FROM generate_series(1, 20000) i`,
		`INSERT INTO outbox_events (saga_id, type, available_at, queued_since)
			SELECT gen_random_uuid(), 'ring/2/A/Do', now() - interval '1 day', now() FROM generate_series(1, 20000) i`,
	} {
		if _, err := c.Exec(t.Context(), fill); err != nil {
			t.Fatal(err)
		}
	}
	for _, sql := range []string{postgres.ClaimAny, postgres.ClaimOverdue} {
		plan, err := db.Explain(t.Context(), sql, []string{"ring/1/A/Do", "ring/1/B/Do"}, []int32{10, 10}, []int64{1e9, 1e9}, []bool{false, false},
			10, time.Hour.Microseconds(), time.Minute.Microseconds())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(plan), `"Seq Scan"`) {
			t.Errorf("a table is scanned:\n%s", plan)
		}
		if n := blocks(t, plan); n > 400 {
			t.Errorf("%d blocks are read:\n%s", n, plan)
		}
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

// Claims, heartbeats, releases and group commits over the same sagas never
// deadlock, and no transition is lost.
func TestConcurrentWorkNeverDeadlocks(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	db := open(t, dsn)
	rows := startSagas(t, db, 40)
	var mu sync.Mutex
	moved := 0
	var workers sync.WaitGroup
	for n := range 4 {
		workers.Go(func() {
			for round := range 25 {
				cs := claim(t, db, 15)
				var leases []store.Lease
				for _, c := range cs {
					leases = append(leases, c.Lease)
				}
				if _, err := db.Heartbeat(t.Context(), leases, time.Minute); err != nil {
					t.Errorf("heartbeat: %v", err)
				}
				if (n+round)%3 == 0 {
					if err := db.Release(t.Context(), leases); err != nil {
						t.Errorf("release: %v", err)
					}
					continue
				}
				rs, err := finish(t.Context(), db, cs, saga.Done("", nil))
				if err != nil {
					t.Errorf("apply: %v", err)
				}
				mu.Lock()
				for _, r := range rs {
					if r.Err != nil {
						t.Errorf("apply: %v", r.Err)
					}
					moved++
				}
				mu.Unlock()
			}
		})
	}
	// An outsider beats for everybody, in another order.
	workers.Go(func() {
		for range 50 {
			var leases []store.Lease
			for i := range rows {
				r := mustSaga(t, db, rows[len(rows)-1-i].ID)
				if r.Command.LeaseToken != "" {
					leases = append(leases, store.Lease{SagaID: r.ID, Token: r.Command.LeaseToken})
				}
			}
			if _, err := db.Heartbeat(t.Context(), leases, time.Minute); err != nil {
				t.Errorf("heartbeat: %v", err)
			}
		}
	})
	workers.Wait()
	versions := 0
	for _, r := range rows {
		versions += int(mustSaga(t, db, r.ID).Version - 1)
	}
	if versions != moved || moved == 0 {
		t.Errorf("%d transitions were answered, %d are stored", moved, versions)
	}
	var deadlocks int
	if err := connect(t, dsn).QueryRow(t.Context(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&deadlocks); err != nil || deadlocks != 0 {
		t.Errorf("%d deadlocks, %v", deadlocks, err)
	}
}
