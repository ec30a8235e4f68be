package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/postgres"
)

// ring leads from one running state to the next and back.
var ring = &saga.Flow{Name: "ring", Version: 1, Entry: map[saga.Order]saga.State{saga.OrderDefault: "A"}, States: []saga.Spec{
	{State: "A", Code: 1, Kind: saga.Running, Status: "merging", Command: "Do", Fail: "F", On: []saga.Edge{saga.On(saga.OK, "B")}},
	{State: "B", Code: 2, Kind: saga.Running, Status: "merging", Command: "Do", Fail: "F", On: []saga.Edge{saga.On(saga.OK, "A")}},
	{State: "F", Code: 3, Kind: saga.Failed, Status: "merge-failed"},
}}

// ringKinds asks for any of the ring's commands.
func ringKinds(n int) []store.ClaimKind {
	return []store.ClaimKind{{Type: "ring/1/A/Do", Cap: n, Deadline: time.Hour}, {Type: "ring/1/B/Do", Cap: n, Deadline: time.Hour}}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// startSagas starts n sagas, each for a pull request of its own.
func startSagas(t testing.TB, db *postgres.DB, n int) []saga.Row {
	t.Helper()
	ctx := t.Context()
	if _, err := db.CreateRepo(ctx, store.Repo{Name: "r", DefaultBranch: "main", MergeStyle: "merge"}); err != nil {
		t.Fatal(err)
	}
	rows := make([]saga.Row, n)
	for i := range rows {
		p, err := db.CreatePull(ctx, store.Pull{ID: newID(), Repo: "r", Source: "s", Target: "main", Title: fmt.Sprint("Change ", i)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		rows[i], err = db.StartPull(ctx, p.ID, func(p store.Pull, _ *store.Locked, now time.Time) (store.StartPull, error) {
			d, err := saga.Start(ring, saga.Row{ID: newID(), AggregateID: p.ID, CreatedAt: now, Data: json.RawMessage(`{"n":1}`)}, "A", "ada", "", saga.Settings{})
			return store.StartPull{New: d, Status: "merging"}, err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

func claim(t testing.TB, db *postgres.DB, n int) []store.Claimed {
	t.Helper()
	cs, err := db.Claim(t.Context(), store.Claim{Kinds: ringKinds(n), Max: n, Lease: time.Minute, Queued: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// finish applies one outcome to claimed commands, in one transaction.
func finish(ctx context.Context, db *postgres.DB, cs []store.Claimed, o saga.Outcome) ([]store.Result, error) {
	reqs := make([]store.Request, len(cs))
	for i, c := range cs {
		reqs[i] = store.Request{SagaID: c.Lease.SagaID, Token: c.Lease.Token}
	}
	return db.Apply(ctx, reqs, func(i int, l store.Locked) (store.Writes, error) {
		if !l.Held {
			return store.Writes{Decision: saga.Late(ring, l.Row, cs[i].Lease.Token, o, l.Now)}, nil
		}
		ev := saga.Settle(ring, l.Row, o, saga.Execution{}, saga.Settings{})
		ev.At = l.Now
		d, err := saga.Decide(ring, l.Row, ev, saga.Settings{})
		return store.Writes{Decision: d, Outward: store.Outward{Pull: &store.PullWrite{PullID: l.Row.AggregateID, Status: "merging"}}}, err
	})
}

func mustSaga(t testing.TB, db *postgres.DB, id string) saga.Row {
	t.Helper()
	r, err := db.Saga(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// until waits for a condition that another process's work makes true.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
