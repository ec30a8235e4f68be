package storetest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// circle has four steps, of which the last leads back to the first: a workload
// that never runs out of sagas.
var circle = func() *saga.Flow {
	steps := []saga.State{"ONE", "TWO", "THREE", "FOUR"}
	f := &saga.Flow{Name: "circle", Version: 1, Entry: map[saga.Order]saga.State{saga.OrderDefault: steps[0]}}
	for i, s := range steps {
		f.States = append(f.States, saga.Spec{State: s, Code: i + 1, Kind: saga.Running, Status: "merging", Command: "Step",
			On: []saga.Edge{saga.On(saga.OK, steps[(i+1)%len(steps)])}, Fail: "BROKEN",
			Deadline: saga.Deadline{After: time.Hour, To: saga.To("BROKEN")}})
	}
	f.States = append(f.States, saga.Spec{State: "BROKEN", Code: 9, Kind: saga.Failed, Status: "merge-failed",
		On: []saga.Edge{saga.On(saga.Retry, saga.FailedStep)}})
	return f
}()

// Load is a workload for a driver's benchmarks: sagas whose steps do nothing,
// claimed and committed as the engine does it.
type Load struct {
	tb    testing.TB
	store store.Store
	kinds []store.ClaimKind
	ready []store.Claimed
}

// loadClaim is how many commands are claimed at once, whatever a commit holds.
const loadClaim = 200

// NewLoad starts sagas in an empty store.
func NewLoad(tb testing.TB, s store.Store, sagas int) *Load {
	tb.Helper()
	b := newBench(tb, Env{Store: s})
	for range sagas {
		_, err := s.StartPull(b.ctx, b.pull().ID, func(p store.Pull, _ *store.Locked, now time.Time) (store.StartPull, error) {
			row := saga.Row{ID: newID(), AggregateID: p.ID, CreatedAt: now, About: saga.About{Project: p.Repo, Title: p.Title},
				Data: json.RawMessage(`{"head":"3f2a9c1d5e8b7a60c4d2","mergeCommit":"8b7a"}`)} // 50 bytes
			d, err := saga.Start(circle, row, circle.Entry[saga.OrderDefault], "ada", "", saga.Settings{})
			return store.StartPull{New: d, Status: "merging"}, err
		})
		b.must(err, "start a saga")
	}
	l := &Load{tb: tb, store: s}
	for _, spec := range circle.States {
		if spec.Kind == saga.Running {
			l.kinds = append(l.kinds, store.ClaimKind{Cap: loadClaim, Deadline: spec.Deadline.After,
				Type: saga.TypeOf(circle.Name, circle.Version, spec.State, spec.Command)})
		}
	}
	return l
}

// Run makes at least n transitions, at most perCommit in a transaction.
func (l *Load) Run(ctx context.Context, n, perCommit int) {
	l.tb.Helper()
	for n > 0 {
		if len(l.ready) == 0 {
			var err error
			l.ready, err = l.store.Claim(ctx, store.Claim{Kinds: l.kinds, Max: loadClaim, Lease: time.Hour, Queued: time.Hour})
			if err != nil || len(l.ready) == 0 {
				l.tb.Fatalf("claimed %d commands: %v", len(l.ready), err)
			}
		}
		batch := l.ready[:min(perCommit, len(l.ready))]
		l.ready = l.ready[len(batch):]
		reqs := make([]store.Request, len(batch))
		for i, c := range batch {
			reqs[i] = store.Request{SagaID: c.Row.ID, Token: c.Lease.Token}
		}
		results, err := l.store.Apply(ctx, reqs, func(i int, k store.Locked) (store.Writes, error) {
			ev := saga.Settle(circle, k.Row, saga.Done("", nil), saga.Execution{}, saga.Settings{})
			ev.At = k.Now
			d, err := saga.Decide(circle, k.Row, ev, saga.Settings{})
			return store.Writes{Decision: d}, err
		})
		if err != nil {
			l.tb.Fatal(err)
		}
		for _, r := range results {
			if r.Err != nil {
				l.tb.Fatal(r.Err)
			}
		}
		n -= len(batch)
	}
}

// Drain commits what is claimed, so that the next Run begins like the first.
func (l *Load) Drain(ctx context.Context) { l.Run(ctx, len(l.ready), loadClaim) }

// GroupedOverSingle measures how much faster transitions are when 200 share a
// transaction, and reports the ratio as "x".
func GroupedOverSingle(b *testing.B, s store.Store) {
	l := NewLoad(b, s, 400)
	ctx := context.Background()
	const single, grouped = 1000, 8000
	l.Run(ctx, grouped/2, loadClaim) // warm up
	var alone, together time.Duration
	for b.Loop() {
		began := time.Now()
		l.Run(ctx, single, 1)
		alone += time.Since(began)
		l.Drain(ctx)
		began = time.Now()
		l.Run(ctx, grouped, loadClaim)
		together += time.Since(began)
	}
	n := float64(b.N)
	b.ReportMetric(grouped*n/together.Seconds(), "grouped/s")
	b.ReportMetric(single*n/alone.Seconds(), "single/s")
	b.ReportMetric(grouped/together.Seconds()*alone.Seconds()/single, "x")
	b.ReportMetric(0, "ns/op")
}
