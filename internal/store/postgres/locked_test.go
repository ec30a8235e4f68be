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

// A command that somebody holds without its saga (a process that froze in a
// claim, a hand in the database) costs its neighbours time, and nobody an
// outcome: what is not written is to be tried again.
func TestALockedCommandLosesNobodysOutcome(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	db := open(t, dsn)
	startSagas(t, db, 64)
	cs := claim(t, db, 64)
	if len(cs) != 64 {
		t.Fatalf("%d claimed", len(cs))
	}
	c := connect(t, dsn)
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM outbox_events WHERE saga_id = $1 FOR UPDATE", cs[63].Lease.SagaID); err != nil {
		t.Fatal(err)
	}
	// One lock timeout and a half: the first half is written, the other is cut off.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	rs, err := finish(ctx, db, cs, saga.Done("", nil))
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	var again []store.Claimed
	for i, r := range rs {
		switch {
		case r.Err == nil:
			written++
		case errors.Is(r.Err, store.ErrBusy):
			again = append(again, cs[i])
		default:
			t.Errorf("number %d: %v", i, r.Err)
		}
	}
	if written == 0 || len(again) == 0 {
		t.Errorf("%d written, %d to be tried again: the test is of no use", written, len(again))
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The server may be busy for a moment with the statement that was cut off.
	for end := time.Now().Add(20 * time.Second); len(again) > 0; {
		if rs, err = finish(t.Context(), db, again, saga.Done("", nil)); err != nil {
			t.Fatal(err)
		}
		var busy []store.Claimed
		for i, r := range rs {
			if errors.Is(r.Err, store.ErrBusy) && time.Now().Before(end) {
				busy = append(busy, again[i])
			} else if r.Err != nil {
				t.Errorf("again, number %d: %v", i, r.Err)
			}
		}
		again = busy
	}
}
