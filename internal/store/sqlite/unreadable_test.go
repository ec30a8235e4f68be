package sqlite

import (
	"errors"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// A saga whose row nobody can read stops no other's claim and no other's commit.
func TestAnUnreadableRowStopsNobody(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Path: Memory})
	ctx := t.Context()
	bad, good := start(t, db, nil), start(t, db, nil)
	err := db.write(ctx, "spoil", func(s *session) error {
		_, err := s.exec(`UPDATE saga_instances SET early = '{"name":"x"}' WHERE saga_id = ?`, bad.ID)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := db.Claim(ctx, store.Claim{Kinds: []store.ClaimKind{{Type: kind, Cap: 9}}, Max: 9, Lease: time.Minute, Queued: time.Hour})
	if err != nil || len(got) != 1 || got[0].Row.ID != good.ID {
		t.Fatalf("claimed %+v, %v", got, err)
	}
	rs, err := db.Apply(ctx, []store.Request{{SagaID: bad.ID}, {SagaID: good.ID}}, func(_ int, l store.Locked) (store.Writes, error) {
		return store.Writes{Decision: saga.Decision{Row: l.Row, KeepCommand: true, Notes: []saga.Note{{Event: "seen"}}}}, nil
	})
	if err != nil || !errors.Is(rs[0].Err, store.ErrConflict) || rs[1].Err != nil {
		t.Errorf("%v; %v, %v", err, rs[0].Err, rs[1].Err)
	}
	// Who asks for it alone is told.
	if _, err := db.Saga(ctx, bad.ID); !errors.Is(err, errUnreadable) {
		t.Errorf("read: %v", err)
	}
}
