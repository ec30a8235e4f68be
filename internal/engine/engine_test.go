package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var path = []string{"VALIDATING", "MERGING", "NOTIFYING", "INDEXING", "MERGED"}

func TestASagaGoesItsWay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	id := r.begin()
	r.untilState(id, pull.Merged)
	if moves, notes := r.history(id); !slices.Equal(moves, path) || len(notes) != 0 {
		t.Errorf("%v %v", moves, notes)
	}
}

func TestEachStepRunsOnceWithManyWorkersAndTwoEngines(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	runs := map[string]int{}
	for cmd := range r.steps {
		r.steps[cmd] = engine.Step{Look: notDone, Perform: func(_ context.Context, run engine.Run) saga.Outcome {
			mu.Lock()
			defer mu.Unlock()
			runs[run.Row.ID+string(cmd)]++
			return saga.Done("", nil)
		}}
	}
	r.start()
	r.start()
	var ids []string
	for range 60 {
		ids = append(ids, r.begin())
	}
	for _, id := range ids {
		r.untilState(id, pull.Merged)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(runs) != 60*4 {
		t.Errorf("%d steps ran, expected 240", len(runs))
	}
	for k, n := range runs {
		if n != 1 {
			t.Errorf("%s ran %d times", k, n)
		}
	}
}

func TestTransientFailuresAreTriedAgainThenFail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var tries atomic.Int32
	down := true
	var mu sync.Mutex
	r.steps[pull.CmdIndex] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
		tries.Add(1)
		mu.Lock()
		defer mu.Unlock()
		if down {
			return saga.FailWith(saga.Transient, "index: 503", "retry later")
		}
		return saga.Done("", nil)
	}}
	e := r.start()
	id := r.begin()
	row := r.untilState(id, pull.MergeFailed)
	if f := row.Failure; f.Step != pull.Indexing || f.Kind != saga.Transient || f.Error != "index: 503" || f.Hint != "retry later" {
		t.Errorf("%+v", f)
	}
	if n := tries.Load(); n != 3 {
		t.Errorf("%d tries with a budget of 3", n)
	}
	if _, notes := r.history(id); len(notes) != 2 {
		t.Errorf("the failed attempts' notes: %v", notes)
	}
	mu.Lock()
	down = false
	mu.Unlock()
	if _, err := e.Send(t.Context(), id, saga.Event{Name: saga.Retry, Actor: "ops"}); err != nil {
		t.Fatal(err)
	}
	r.untilState(id, pull.Merged)
	if moves, _ := r.history(id); !slices.Equal(moves, append(append([]string{}, path[:4]...), "MERGE_FAILED", "INDEXING", "MERGED")) {
		t.Errorf("retry ran more than the failed step: %v", moves)
	}
}

func TestAPanicIsAVisibleFailureAndStopsNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var bad atomic.Value
	bad.Store("")
	r.steps[pull.CmdNotify] = engine.Step{Look: notDone, Perform: func(_ context.Context, run engine.Run) saga.Outcome {
		if run.Row.ID == bad.Load() {
			panic("boom\x00")
		}
		return saga.Done("", nil)
	}}
	b := r.begin()
	bad.Store(b)
	var good []string
	for range 20 {
		good = append(good, r.begin())
	}
	r.start()
	row := r.untilState(b, pull.MergeFailed)
	if f := row.Failure; f.Step != pull.Notifying || f.Kind != saga.Deterministic || !strings.Contains(f.Error, "boom") || strings.Contains(f.Error, "goroutine") {
		t.Errorf("%+v", f)
	}
	for _, id := range good {
		r.untilState(id, pull.Merged)
	}
	if n := r.obs.get(&r.obs.panics); n != 1 {
		t.Errorf("%d panics counted", n)
	}
}

func TestAnUndeclaredEventIsAVisibleFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.steps[pull.CmdMerge] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
		return saga.Moved("nonsense", "", nil)
	}}
	r.start()
	row := r.untilState(r.begin(), pull.MergeFailed)
	if !strings.Contains(row.Failure.Error, "nonsense") {
		t.Errorf("%+v", row.Failure)
	}
}

func TestNotYetLooksAgainUntilItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var looks atomic.Int32
	r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: func(_ context.Context, run engine.Run) saga.Outcome {
		if n := looks.Add(1); n <= 20 {
			if run.Row.Command.Attempt != 1 {
				t.Errorf("look %d counts as attempt %d", n, run.Row.Command.Attempt)
			}
			return saga.NotYet("pipeline running")
		}
		return saga.Done("", nil)
	}}
	r.start()
	id := r.begin()
	r.untilState(id, pull.Merged)
	if _, notes := r.history(id); len(notes) != 0 {
		t.Errorf("polls left notes: %v", notes)
	}
}

// The poll's deadline: one more look, and only if that settles nothing, the end.
func TestDeadlineIsAppliedAfterALook(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		look func(context.Context, engine.Run) saga.Outcome
		want saga.State
	}{
		"nothing settled": {notDone, pull.MergeFailed},
		"found done":      {ok, pull.Merged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.set.Polls[pull.Validating] = saga.Poll{Long: time.Hour}
			r.steps[pull.CmdValidate] = engine.Step{Look: c.look, Perform: func(context.Context, engine.Run) saga.Outcome { return saga.NotYet("pending") }}
			r.start()
			id := r.begin()
			r.until(id, "the first look", func(row saga.Row) bool {
				return row.Command != nil && row.Command.Checks == 1 && !row.Command.Leased(r.clock.now())
			})
			r.clock.advance(2 * time.Hour)
			r.eng.Wake(t.Context())
			row := r.untilState(id, c.want)
			if c.want == pull.MergeFailed && (row.Failure.Kind != saga.UnknownOutcome || row.Failure.Step != pull.Validating) {
				t.Errorf("%+v", row.Failure)
			}
		})
	}
}

func TestAHangingStepFailsWithinItsDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set.Deadlines = map[saga.State]time.Duration{pull.Indexing: 300 * time.Millisecond}
	r.steps[pull.CmdIndex] = engine.Step{Look: notDone, Perform: func(ctx context.Context, _ engine.Run) saga.Outcome {
		<-ctx.Done()
		return saga.Unclear("cut off")
	}}
	r.start()
	id := r.begin()
	began := r.untilState(id, pull.Indexing)
	row := r.untilState(id, pull.MergeFailed)
	if took := row.UpdatedAt.Sub(began.WaitingSince); took > 2*time.Second {
		t.Errorf("a deadline of 300 ms took %s", took)
	}
	if f := row.Failure; f.Step != pull.Indexing || !strings.Contains(f.Error, "deadline passed") {
		t.Errorf("%+v", f)
	}
}

// A step that ignores its context is left behind: its lease ends, the deadline
// is applied by a look, and what it answers in the end is a note.
func TestALateResultIsANote(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.set.Deadlines = map[saga.State]time.Duration{pull.Merging: 100 * time.Millisecond}
	release := make(chan struct{})
	r.steps[pull.CmdMerge] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
		<-release
		return saga.Done("merged after all", map[string]string{"mergeCommit": "abc", "headSha": "other"})
	}}
	r.start(func(o *engine.Options) { o.Lease, o.Grace = 300*time.Millisecond, 20*time.Millisecond })
	id := r.begin()
	failed := r.untilState(id, pull.MergeFailed)
	close(release)
	r.until(id, "the note", func(saga.Row) bool {
		_, notes := r.history(id)
		return slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, "late: ") }) && r.obs.get(&r.obs.late) > 0
	})
	row := r.row(id)
	if row.State != pull.MergeFailed || row.Version != failed.Version {
		t.Errorf("a late result moved the saga: %s", row.State)
	}
	if !strings.Contains(string(row.Data), `"mergeCommit":"abc"`) || strings.Contains(string(row.Data), "other") {
		t.Errorf("only the merge commit may grow: %s", row.Data)
	}
	if n := r.obs.get(&r.obs.late); n != 1 {
		t.Errorf("%d late results counted", n)
	}
}

func TestCloseStopsARunningStep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered := make(chan struct{})
	r.steps[pull.CmdMerge] = engine.Step{Look: notDone, Perform: func(ctx context.Context, _ engine.Run) saga.Outcome {
		close(entered)
		<-ctx.Done()
		return saga.Unclear(context.Cause(ctx).Error())
	}}
	e := r.start()
	id := r.begin()
	<-entered
	d, err := e.Send(t.Context(), id, saga.Event{Name: saga.Close, Actor: "ann", Detail: "wrong branch"})
	if err != nil || d.Row.Pending == nil {
		t.Fatalf("%+v %v", d.Row, err)
	}
	r.untilState(id, pull.PullClosed)
	_, err = e.Send(t.Context(), id, saga.Event{Name: saga.Retry})
	if !errors.Is(err, saga.ErrIllegalTransition) {
		t.Errorf("final is final: %v", err)
	}
}

func TestADisplacedStepIsCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered, cause := make(chan struct{}), make(chan error, 1)
	r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: func(ctx context.Context, _ engine.Run) saga.Outcome {
		close(entered)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return saga.Unclear("cut off")
	}}
	e := r.start()
	id := r.begin()
	<-entered
	if _, err := e.Send(t.Context(), id, saga.Event{Name: saga.Found, Actor: "forge", Data: saga.Patch(map[string]string{"mergeCommit": "abc"})}); err != nil {
		t.Fatal(err)
	}
	if err := <-cause; err == nil || !strings.Contains(err.Error(), "lease") {
		t.Errorf("the step was told: %v", err)
	}
	r.untilState(id, pull.Merged) // long before the displaced lease of 30 s ends: its holder has come back
	if moves, notes := r.history(id); !slices.Equal(moves, []string{"VALIDATING", "NOTIFYING", "INDEXING", "MERGED"}) || len(notes) != 1 {
		t.Errorf("%v %v", moves, notes)
	}
}

func TestCapHoldsPerCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var now, most atomic.Int32
	gate := make(chan struct{})
	r.steps[pull.CmdMerge] = engine.Step{Cap: 2, Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		<-gate
		return saga.Done("", nil)
	}}
	var ids []string
	for range 10 {
		ids = append(ids, r.begin())
	}
	r.start()
	for _, id := range ids {
		r.untilState(id, pull.Merging) // all get that far: the cap holds nobody else up
	}
	close(gate)
	for _, id := range ids {
		r.untilState(id, pull.Merged)
	}
	if most.Load() != 2 {
		t.Errorf("%d at once with a cap of 2", most.Load())
	}
}

// Workers that are all busy don't keep a request from failing by its limit.
func TestFullWorkersStillApplyDeadlines(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gate := make(chan struct{})
	var busy sync.WaitGroup
	busy.Add(2)
	var once [2]sync.Once
	var n atomic.Int32
	r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
		if i := n.Add(1) - 1; i < 2 {
			once[i].Do(busy.Done)
		}
		<-gate
		return saga.Done("", nil)
	}}
	r.set.Queued = time.Minute
	r.begin()
	r.begin()
	r.start(func(o *engine.Options) { o.Workers = 2 })
	busy.Wait()
	waiting := r.begin()
	r.clock.advance(2 * time.Minute)
	row := r.untilState(waiting, pull.MergeFailed)
	if f := row.Failure; f.Kind != saga.Transient || !strings.Contains(f.Hint, "overloaded") {
		t.Errorf("%+v", f)
	}
	close(gate)
}

func TestStopFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered, gate := make(chan struct{}), make(chan struct{})
	r.steps[pull.CmdMerge] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
		close(entered)
		<-gate
		return saga.Done("", nil)
	}}
	e := r.start()
	id := r.begin()
	<-entered
	stopped := make(chan error)
	go func() { stopped <- e.Stop(context.Background()) }()
	<-e.Stopping()
	close(gate)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	row := r.row(id)
	if row.State != pull.Notifying || row.Command.Leased(r.clock.now()) || row.Command.Attempt != 0 {
		t.Errorf("after a graceful stop: %s, %+v", row.State, row.Command)
	}
}

func TestStopCutsOffWhatDoesNotFinish(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered := make(chan struct{})
	r.steps[pull.CmdMerge] = engine.Step{Look: notDone, Perform: func(ctx context.Context, _ engine.Run) saga.Outcome {
		close(entered)
		<-ctx.Done()
		return saga.FailWith(saga.Transient, "cancelled", "")
	}}
	e := r.start()
	id := r.begin()
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	row := r.row(id)
	if row.State != pull.Merging || !row.Command.Unclear || row.Command.Leased(r.clock.now()) {
		t.Errorf("a cut-off merge is an unknown outcome: %s, %+v", row.State, row.Command)
	}
}

// flaky is a database that can be down.
type flaky struct {
	store.Store
	down atomic.Bool
}

var errDown = errors.New("database down")

func (f *flaky) Apply(ctx context.Context, reqs []store.Request, decide func(int, store.Locked) (store.Writes, error)) ([]store.Result, error) {
	if f.down.Load() {
		return nil, errDown
	}
	return f.Store.Apply(ctx, reqs, decide)
}

func (f *flaky) Claim(ctx context.Context, in store.Claim) ([]store.Claimed, error) {
	if f.down.Load() {
		return nil, errDown
	}
	return f.Store.Claim(ctx, in)
}

func TestAnOutcomeSurvivesADatabaseThatIsDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := &flaky{Store: r.store}
	var merges atomic.Int32
	r.steps[pull.CmdMerge] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
		merges.Add(1)
		f.down.Store(true)
		time.AfterFunc(300*time.Millisecond, func() { f.down.Store(false) })
		return saga.Done("", nil)
	}}
	r.start(func(o *engine.Options) { o.Store = f })
	r.untilState(r.begin(), pull.Merged)
	if merges.Load() != 1 {
		t.Errorf("the merge step ran %d times", merges.Load())
	}
}

func TestHealthGoesRedWhenTheLoopStalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := &flaky{Store: r.store}
	f.down.Store(true)
	e := r.start(func(o *engine.Options) { o.Store, o.Lease, o.Poll = f, 50*time.Millisecond, 10*time.Millisecond })
	limit := time.After(10 * time.Second)
	for e.Healthy() == nil {
		select {
		case <-limit:
			t.Fatal("still healthy without a database")
		case <-time.After(5 * time.Millisecond):
		}
	}
	f.down.Store(false)
	for e.Healthy() != nil {
		select {
		case <-limit:
			t.Fatal("not healthy again")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestSendRefusesWithWhatIsAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gate := make(chan struct{})
	r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome { <-gate; return saga.Done("", nil) }}
	e := r.start()
	id := r.begin()
	_, err := e.Send(t.Context(), id, saga.Event{Name: saga.Resume, Actor: "ops"})
	var refusal *saga.Refusal
	if !errors.As(err, &refusal) || !slices.Equal(refusal.Allowed, []saga.Name{saga.Close}) {
		t.Errorf("%v", err)
	}
	if _, err := e.Send(t.Context(), "01890000-0000-7000-8000-000000000000", saga.Event{Name: saga.Retry}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v", err)
	}
	close(gate)
	r.untilState(id, pull.Merged)
}

// A retry comes when it is due, not when the next poll happens to come.
func TestARetryDoesNotWaitForThePoll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var tries atomic.Int32
	r.steps[pull.CmdIndex] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
		if tries.Add(1) < 3 {
			return saga.FailWith(saga.Transient, "503", "")
		}
		return saga.Done("", nil)
	}}
	r.start(func(o *engine.Options) { o.Poll = time.Hour })
	r.untilState(r.begin(), pull.Merged) // within the 20 s that until waits
}
