package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

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
