package postgres_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// startChange takes a change of a subject and answers its operation.
func startChange(ctx context.Context, db *postgres.DB, subject string, key *store.IdempotencyKey, decided *int) (store.ChangeStarted, error) {
	return db.StartChange(ctx, store.ChangeDoor{Key: key, Subject: subject, Target: "target"}, func(d store.DoorState) (store.StartChange, error) {
		*decided++
		row := saga.Row{ID: newID(), AggregateID: subject + "/target", CreatedAt: d.Now, Data: json.RawMessage(`{}`)}
		start, err := saga.Start(ring, row, "A", "ada", "", saga.Settings{})
		return store.StartChange{New: start, Status: outwardStatus, Inputs: []store.Input{{Path: "a", Action: "delete"}}}, err
	})
}

// A transaction all of whose rows are new holds no row that anybody could wait
// for. Where its connection is lost and the server goes on and commits later,
// its fence is what is waited for: nothing is decided or written twice.
func TestCommitOfNewRowsStillUnderWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	type answer struct {
		id   string
		seq  int64
		asks int
		err  error
	}
	start := func(ctx context.Context, db *postgres.DB, name string) (a answer) {
		s, err := startChange(ctx, db, name, nil, &a.asks)
		a.id, a.err = s.OperationID, err
		return a
	}
	receive := func(ctx context.Context, db *postgres.DB, name string) (a answer) {
		cb := store.Callback{ID: newID(), Kind: "approval", Source: "s", RequestID: name, OperationID: newID()}
		e, err := db.Callback(ctx, cb, func(s store.CallbackState) (store.CallbackDecision, error) {
			a.asks++
			return store.CallbackDecision{Verdict: outwardStatus}, nil
		})
		a.id, a.seq, a.err = cb.ID, e.Seq, err
		return a
	}
	for _, c := range []struct {
		name, table string // table is where the lost transaction is held up
		run         func(ctx context.Context, db *postgres.DB, name string) answer
		stored      string
	}{
		{"the first change of a binding", "change_inputs", start, `SELECT operation_id::text, 0::bigint FROM bindings WHERE subject_id = 'lost'`},
		{"a callback of no operation", "callbacks", receive, `SELECT callback_id::text, seq FROM callbacks WHERE request_id = 'lost'`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dsn := pg.Database(t)
			w := newWire(t, dsn)
			db := open(t, w.dsn)
			watch := connect(t, dsn)
			if a := c.run(t.Context(), db, "first"); a.err != nil { // prepares its statements
				t.Fatal(a.err)
			}
			blocker, err := connect(t, dsn).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := blocker.Exec(t.Context(), `LOCK TABLE `+c.table+` IN EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			w.askAndLeave(outwardStatus)
			answered := make(chan answer, 1)
			go func() { answered <- c.run(context.Background(), db, "lost") }()
			until(t, "the store waits at the lost transaction's fence", func() bool {
				var n int
				if err := watch.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory'`).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n == 1
			})
			if err := blocker.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			a := <-answered
			if a.err != nil || a.asks != 1 {
				t.Fatalf("asked %d times, answered %v", a.asks, a.err)
			}
			var id string
			var seq int64
			if err := watch.QueryRow(t.Context(), c.stored).Scan(&id, &seq); err != nil || id != a.id || seq != a.seq {
				t.Errorf("stored %s, %d (%v), answered %s, %d", id, seq, err, a.id, a.seq)
			}
		})
	}
}

// Failed, not applied: the writes never reach the server, and the key is as
// good as before.
func TestChangeThatNeverArrivedIsRepeated(t *testing.T) {
	t.Parallel()
	w := newWire(t, pg.Database(t))
	db := open(t, w.dsn)
	done := w.loseRequest(outwardStatus)
	asks := 0
	s, err := startChange(t.Context(), db, "subject", &store.IdempotencyKey{Scope: "ada", Key: "k", Hash: "h"}, &asks)
	if err != nil || s.Replayed || asks != 2 {
		t.Fatalf("asked %d times, answered %+v, %v", asks, s, err)
	}
	<-done
	if b, err := db.Binding(t.Context(), "subject", "target"); err != nil || b.OperationID != s.OperationID {
		t.Errorf("binding %+v, %v", b, err)
	}
}

// The door is three round trips with a key, two without; a callback is three.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	w := newWire(t, pg.Database(t))
	db := open(t, w.dsn)
	asks := 0
	do := func(subject string, key *store.IdempotencyKey) {
		t.Helper()
		if _, err := startChange(t.Context(), db, subject, key, &asks); err != nil {
			t.Fatal(err)
		}
	}
	call := func(request string) {
		t.Helper()
		if _, err := db.Callback(t.Context(), store.Callback{ID: newID(), Kind: "approval", Source: "s", RequestID: request},
			func(store.CallbackState) (store.CallbackDecision, error) {
				return store.CallbackDecision{Verdict: "unknown"}, nil
			}); err != nil {
			t.Fatal(err)
		}
	}
	key := func(k string) *store.IdempotencyKey { return &store.IdempotencyKey{Scope: "ada", Key: k, Hash: "h"} }
	// The first ones prepare their statements.
	do("warm", nil)
	do("warm too", key("warm"))
	call("warm")
	for _, c := range []struct {
		what string
		want int64
		do   func()
	}{
		{"a change", 2, func() { do("one", nil) }},
		{"a change with a key", 3, func() { do("two", key("two")) }},
		{"a callback", 3, func() { call("three") }},
	} {
		before := w.asks.Load()
		c.do()
		if got := w.asks.Load() - before; got != c.want {
			t.Errorf("%s takes %d round trips, want %d", c.what, got, c.want)
		}
	}
}

// Many changes through one pool: the door's work per change, not a queue of retries.
func BenchmarkStartChange(b *testing.B) {
	db := open(b, pg.Database(b))
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			id, asks := newID(), 0
			if _, err := startChange(context.Background(), db, id, &store.IdempotencyKey{Scope: "ada", Key: id, Hash: "h"}, &asks); err != nil || asks != 1 {
				b.Errorf("asked %d times: %v", asks, err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
}
