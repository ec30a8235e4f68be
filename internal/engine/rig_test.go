package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// rig is an engine over a real store with steps that a test writes.
type rig struct {
	t     *testing.T
	store *sqlite.DB
	clock *clock
	steps map[saga.Command]engine.Step
	table *saga.Flow
	set   saga.Settings
	obs   *observer
	eng   *engine.Engine
}

// clock is the database's clock: real time plus an offset.
type clock struct {
	mu     sync.Mutex
	offset time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.offset)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}

// observer counts what the engine tells.
type observer struct {
	mu                         sync.Mutex
	panics, late, lost, claims int
	transitions                []string
}

func (o *observer) Transition(_, from, to, event string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.transitions = append(o.transitions, from+" "+event+" "+to)
}
func (o *observer) Step(_, _, _ string, _ time.Duration) {}
func (o *observer) Commit(int, time.Duration)            {}
func (o *observer) Claimed(n int)                        { o.add(&o.claims, n) }
func (o *observer) LeaseLost()                           { o.add(&o.lost, 1) }
func (o *observer) Late()                                { o.add(&o.late, 1) }
func (o *observer) Panic(string)                         { o.add(&o.panics, 1) }

func (o *observer) add(n *int, by int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*n += by
}

func (o *observer) get(n *int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return *n
}

func newRig(t *testing.T) *rig {
	t.Helper()
	c := &clock{}
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: ":memory:", Clock: c.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{t: t, store: db, clock: c, table: pull.Table, obs: &observer{}, steps: map[saga.Command]engine.Step{}}
	r.set = saga.Settings{Attempts: 3, Backoff: time.Millisecond, BackoffMax: 5 * time.Millisecond,
		Polls: map[saga.State]saga.Poll{pull.Validating: {Short: time.Millisecond, ShortTries: 1000}}}
	for _, cmd := range []saga.Command{pull.CmdValidate, pull.CmdMerge, pull.CmdNotify, pull.CmdIndex} {
		r.steps[cmd] = engine.Step{Perform: ok, Look: notDone}
	}
	return r
}

func ok(context.Context, engine.Run) saga.Outcome      { return saga.Done("done", nil) }
func notDone(context.Context, engine.Run) saga.Outcome { return saga.NotDone("absent") }

// start runs an engine until the test ends.
func (r *rig) start(change ...func(*engine.Options)) *engine.Engine {
	r.t.Helper()
	o := engine.Options{
		Store: r.store, Settings: func() saga.Settings { return r.set }, Observer: r.obs,
		Flows:   []engine.Flow{{Table: r.table, Steps: r.steps, Outward: pull.Outward}},
		Workers: 8, Poll: 20 * time.Millisecond, Lease: 30 * time.Second, Grace: 50 * time.Millisecond,
	}
	if os.Getenv("MERGEFLOW_TEST_LOG") != "" {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	for _, f := range change {
		f(&o)
	}
	e, err := engine.New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	e.Start()
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = e.Stop(ctx)
	})
	r.eng = e
	return e
}

// begin stores a pull request and starts its saga.
func (r *rig) begin() string {
	r.t.Helper()
	ctx := r.t.Context()
	repo := "r-" + uuid.NewString()[:8]
	if _, err := r.store.CreateRepo(ctx, store.Repo{Name: repo, DefaultBranch: "main", MergeStyle: "merge"}); err != nil {
		r.t.Fatal(err)
	}
	p, err := r.store.CreatePull(ctx, store.Pull{ID: uuid.NewString(), Forge: "default", Repo: repo, Source: "f", Target: "main", Title: "t", ForgeState: "open"}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	row, err := r.store.StartPull(ctx, p.ID, func(p store.Pull, _ *store.Locked, now time.Time) (store.StartPull, error) {
		id, _ := uuid.NewV7()
		d, err := saga.Start(r.table, saga.Row{ID: id.String(), AggregateID: p.ID, CreatedAt: now,
			Data: saga.Patch(pull.Data{PullID: p.ID, Repo: p.Repo, IID: p.IID})}, r.table.Entry[saga.OrderDefault], "test", "", r.set)
		return store.StartPull{New: d, Status: "merging"}, err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if r.eng != nil {
		r.eng.Wake(ctx)
	}
	return row.ID
}

func (r *rig) row(id string) saga.Row {
	r.t.Helper()
	row, err := r.store.Saga(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return row
}

// until waits for a condition on a saga, woken by its commits and by a short poll.
func (r *rig) until(id, what string, cond func(saga.Row) bool) saga.Row {
	r.t.Helper()
	var signal <-chan struct{}
	if r.eng != nil {
		s, end := r.eng.Subscribe(id)
		defer end()
		signal = s
	}
	limit := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if row := r.row(id); cond(row) {
			return row
		}
		select {
		case <-signal:
		case <-tick.C:
		case <-limit:
			r.t.Fatalf("%s: not within 20 s; the saga: %+v, command %+v", what, r.row(id), r.row(id).Command)
		}
	}
}

// claimAndDie plays an instance that claims what is due and is gone.
func (r *rig) claimAndDie(n int) {
	r.t.Helper()
	in := store.Claim{Max: n, Lease: time.Second}
	for i := range pull.Table.States {
		if s := &pull.Table.States[i]; s.Kind == saga.Running {
			in.Kinds = append(in.Kinds, store.ClaimKind{Type: saga.TypeOf(pull.Table.Name, pull.Table.Version, s.State, s.Command), Cap: n, Deadline: r.set.DeadlineOf(s)})
		}
	}
	if got, err := r.store.Claim(r.t.Context(), in); err != nil || len(got) != n {
		r.t.Fatalf("claimed %d of %d: %v", len(got), n, err)
	}
}

// untilEnd is untilState for a way that takes longer than until's patience; for
// a bubble of synctest.
func (r *rig) untilEnd(id string, s saga.State) saga.Row {
	r.t.Helper()
	for range 1000 {
		row := r.row(id)
		spec, _ := pull.Table.Spec(row.State)
		switch {
		case row.State == s:
			return row
		case spec.Kind == saga.Failed || spec.Kind == saga.Final:
			r.t.Fatalf("it ended in %s: %+v", row.State, row.Failure)
		}
		time.Sleep(10 * time.Second)
	}
	r.t.Fatalf("not in %s after 10000 s: %+v", s, r.row(id))
	return saga.Row{}
}

func (r *rig) untilState(id string, s saga.State) saga.Row {
	r.t.Helper()
	return r.until(id, string(s), func(row saga.Row) bool { return row.State == s })
}

func (r *rig) history(id string) (moves, notes []string) {
	r.t.Helper()
	es, err := r.store.History(r.t.Context(), id, store.Mark{}, 500)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range es {
		if e.IsNote {
			notes = append(notes, fmt.Sprintf("%s: %s", e.Event, e.Detail))
			continue
		}
		moves = append(moves, string(e.To))
	}
	return moves, notes
}
