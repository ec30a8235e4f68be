package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// The transaction's text on the wire: only its third part holds a status.
const outwardStatus = "merging"

// Failed, not applied: the writes never reach the server.
func TestCommitThatNeverArrivedIsRepeated(t *testing.T) {
	t.Parallel()
	w := newWire(t, pg.Database(t))
	db := open(t, w.dsn)
	rows := startSagas(t, db, 3)
	cs := claim(t, db, 3)
	done := w.loseRequest(outwardStatus)
	rs, err := finish(t.Context(), db, cs, saga.Done("", nil))
	if err != nil {
		t.Fatal(err)
	}
	<-done // it did break
	for i, r := range rs {
		if r.Err != nil || r.Decision.Row.State != "B" {
			t.Errorf("result %d: %+v", i, r)
		}
		if got := mustSaga(t, db, rows[i].ID); got.State != "B" || got.Version != 2 {
			t.Errorf("saga %d: %+v", i, got)
		}
	}
}

// Failed, but applied, for each kind of trace that a transaction leaves.
func TestCommitWhoseAnswerIsLostCounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		outcome saga.Outcome
		notes   int
	}{
		{"a move", saga.Done("", nil), 0},
		{"a note", saga.FailWith(saga.Transient, "no answer", ""), 1},
		{"a lease given back", saga.NotYet("pending"), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, pg.Database(t))
			db := open(t, w.dsn)
			rows := startSagas(t, db, 2)
			cs := claim(t, db, 2)
			done := w.loseAnswer("COMMIT")
			rs, err := finish(t.Context(), db, cs, c.outcome)
			if err != nil {
				t.Fatal(err)
			}
			<-done
			for i, r := range rs {
				if r.Err != nil {
					t.Errorf("result %d: %v", i, r.Err)
				}
				got := mustSaga(t, db, rows[i].ID)
				want := r.Decision.Row
				if got.Version != want.Version || *got.Command != *want.Command || got.Command.LeaseToken != "" {
					t.Errorf("saga %d stands at %d, %+v; answered %d, %+v", i, got.Version, got.Command, want.Version, want.Command)
				}
				es, err := db.History(t.Context(), rows[i].ID, store.Mark{}, 100)
				if err != nil || len(es) != int(got.Version)+c.notes {
					t.Errorf("saga %d has %d entries at version %d, %v", i, len(es), got.Version, err)
				}
			}
		})
	}
}

// The store's side of the connection is gone, but the server goes on working
// and commits later: what became of it is asked only after that.
func TestCommitStillUnderWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	w := newWire(t, dsn)
	db := open(t, w.dsn)
	rows := startSagas(t, db, 1)
	cs := claim(t, db, 1)
	release := hold(t, dsn, "pull_requests", "pull_id", rows[0].AggregateID) // the writes get as far as that
	w.askAndLeave(outwardStatus)
	type answer struct {
		results []store.Result
		err     error
	}
	answered := make(chan answer, 1)
	go func() {
		rs, err := finish(context.Background(), db, cs, saga.Done("", nil))
		answered <- answer{rs, err}
	}()
	c := connect(t, dsn)
	until(t, "the store waits for the lost transaction's lock", func() bool {
		var n int
		if err := c.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 2 // the lost transaction, and the look for it
	})
	release()
	a := <-answered
	if a.err != nil || a.results[0].Err != nil {
		t.Fatalf("answered %+v, %v", a.results, a.err)
	}
	if got := mustSaga(t, db, rows[0].ID); got.Version != 2 || got.State != "B" {
		t.Errorf("version %d in %s", got.Version, got.State)
	}
}

// Nobody answers any more: the outcome is unknown, and said to be so.
func TestOutcomeThatCannotBeReadIsUnknown(t *testing.T) {
	t.Parallel()
	w := newWire(t, pg.Database(t))
	db := open(t, w.dsn)
	db.SetPatience(50 * time.Millisecond)
	startSagas(t, db, 1)
	cs := claim(t, db, 1)
	w.loseAnswer("COMMIT")
	w.refuseOthers()
	rs, err := finish(t.Context(), db, cs, saga.Done("", nil))
	if err != nil || !errors.Is(rs[0].Err, store.ErrUnknown) {
		t.Errorf("answered %+v, %v", rs, err)
	}
}

// Connections that died while nobody used them are replaced.
func TestDeadPoolIsNoError(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	db := open(t, dsn)
	startSagas(t, db, 1)
	cs := claim(t, db, 1)
	if _, err := connect(t, dsn).Exec(t.Context(), `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
	rs, err := finish(t.Context(), db, cs, saga.Done("", nil))
	if err != nil || rs[0].Err != nil {
		t.Errorf("answered %+v, %v", rs, err)
	}
}
