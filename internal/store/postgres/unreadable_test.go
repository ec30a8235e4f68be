package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// A saga whose row nobody can read stops no other's claim and no other's commit.
func TestAnUnreadableRowStopsNobody(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	db := open(t, dsn)
	rows := startSagas(t, db, 20)
	c := connect(t, dsn)
	if _, err := c.Exec(t.Context(), `UPDATE saga_instances SET early = '{"name":"x"}' WHERE saga_id = $1`, rows[7].ID); err != nil {
		t.Fatal(err)
	}
	got, err := db.Claim(t.Context(), store.Claim{Kinds: ringKinds(20), Max: 20, Lease: time.Minute, Queued: time.Hour})
	if err != nil || len(got) != 19 {
		t.Fatalf("%d claimed, %v", len(got), err)
	}
	bad := store.Claimed{Row: rows[7], Lease: store.Lease{SagaID: rows[7].ID, Token: got[0].Lease.Token}}
	rs, err := finish(t.Context(), db, append(got[:3:3], bad), saga.Done("", nil))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if bad := i == 3; bad != errors.Is(r.Err, store.ErrConflict) || !bad && r.Err != nil {
			t.Errorf("number %d: %v", i, r.Err)
		}
	}
}
