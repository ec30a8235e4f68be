package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// After an outage longer than a lease nobody's deadline is applied for one
// lease, and a command that is looked at meanwhile is not looked at in a circle.
func TestDeadlinesPauseAfterALongOutage(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]time.Duration{"long": 5 * time.Minute, "shorter than a lease": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const lease = time.Minute
				r := newRig(t)
				f := &flaky{Store: r.store}
				r.set.Polls[pull.Validating] = saga.Poll{Long: time.Hour}
				r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: 10 * time.Minute}
				var looks, performs atomic.Int32
				r.steps[pull.CmdValidate] = engine.Step{
					Perform: func(context.Context, engine.Run) saga.Outcome { performs.Add(1); return saga.NotYet("pending") },
					Look:    func(context.Context, engine.Run) saga.Outcome { looks.Add(1); return saga.NotYet("pending") },
				}
				r.start(func(o *engine.Options) { o.Store, o.Lease, o.Poll = f, lease, time.Second })
				id := r.begin()
				row := r.until(id, "the first look", func(row saga.Row) bool { return row.Command != nil && row.Command.Checks == 1 })

				// The outage begins just before the deadline.
				time.Sleep(row.Command.DeadlineAt.Sub(r.clock.now()) - time.Second)
				f.down.Store(true)
				time.Sleep(outage)
				f.down.Store(false)
				back := time.Now()
				failed := r.untilEnd(id, pull.MergeFailed)
				took := failed.UpdatedAt.Sub(back)
				if outage > lease && (took < lease || took > 3*lease) {
					t.Errorf("the deadline was applied %s after the database came back, expected a lease of %s or a little more", took, lease)
				}
				if outage < lease && took > lease/2 {
					t.Errorf("a short outage put the deadline off by %s", took)
				}
				if n := performs.Load(); n != 1 {
					t.Errorf("the step ran %d times; past the deadline it may only look", n)
				}
				if n := looks.Load(); n > 3 { // at its beginning, perhaps in its last moment, after it
					t.Errorf("%d looks", n)
				}
			})
		})
	}
}

// A command that is claimed past its limit is only looked at, beside full workers
// as by them. The pause gives it the time until its end: then it is claimed as
// any other, by a worker, with its attempt counted.
func TestInThePauseAnOverdueCommandIsLookedAtBeforeItRuns(t *testing.T) {
	t.Parallel()
	for name, died := range map[string]bool{"past its deadline": true, "past the queue's limit": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.set.Queued = time.Minute
				r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: 2 * time.Minute}
				ids := []string{r.begin(), r.begin()}
				attempt := 1
				if died {
					r.claimAndDie(len(ids))
					attempt = 2
				}
				f := &flaky{Store: r.store}
				gate := make(chan struct{})
				var looks, performs, now atomic.Int32
				r.steps[pull.CmdValidate] = engine.Step{
					Look: func(ctx context.Context, _ engine.Run) saga.Outcome {
						looks.Add(1)
						<-gate // one keeps the only worker: the other is claimed beside it
						return saga.NotDone("open")
					},
					Perform: func(ctx context.Context, run engine.Run) saga.Outcome {
						performs.Add(1)
						if n := now.Add(1); n > 1 {
							t.Errorf("%d steps ran at once, with one worker", n)
						}
						defer now.Add(-1)
						if run.Row.Command.Attempt != attempt {
							t.Errorf("it ran as attempt %d, expected %d", run.Row.Command.Attempt, attempt)
						}
						<-ctx.Done() // its time must be limited
						return saga.Done("valid", nil)
					},
				}
				f.down.Store(true)
				r.start(func(o *engine.Options) { o.Store, o.Workers, o.Lease, o.Poll = f, 1, time.Hour, time.Second })
				time.Sleep(2 * time.Hour)
				f.down.Store(false)
				for looks.Load() < 2 {
					time.Sleep(10 * time.Millisecond)
				}
				synctest.Wait()
				if looks.Load() != 2 || performs.Load() != 0 {
					t.Errorf("the outage's end brought %d looks and %d steps, expected 2 and none", looks.Load(), performs.Load())
				}
				close(gate)
				for _, id := range ids {
					r.untilEnd(id, pull.Merged)
				}
			})
		})
	}
}

// A deadline that passes between the claim and the beginning leaves no time to act.
func TestACommandWhoseDeadlinePassedOnTheWayIsOnlyLookedAt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: 2 * time.Second}
		r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
			t.Error("the step ran past its deadline")
			return saga.Done("", nil)
		}}
		r.start(func(o *engine.Options) { o.Store = &slowClaims{r.store, 3 * time.Second} })
		r.untilState(r.begin(), pull.MergeFailed)
	})
}

// slowClaims is a database whose answers to claims take their time.
type slowClaims struct {
	store.Store
	by time.Duration
}

func (s *slowClaims) Claim(ctx context.Context, in store.Claim) ([]store.Claimed, error) {
	got, err := s.Store.Claim(ctx, in)
	time.Sleep(s.by)
	return got, err
}

// Nothing is called without a limit, whatever the settings say.
func TestEveryCallOfAStepIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: -1, pull.Merging: -1, pull.Notifying: time.Hour, pull.Indexing: time.Second}
		var calls atomic.Int32
		for cmd := range r.steps {
			limited := func(o saga.Outcome) func(context.Context, engine.Run) saga.Outcome {
				return func(ctx context.Context, run engine.Run) saga.Outcome {
					calls.Add(1)
					if end, is := ctx.Deadline(); !is || time.Until(end) <= 0 || time.Until(end) > time.Hour {
						t.Errorf("%s (look: %t) has a limit: %t, %s", run.Row.State, run.Look, is, time.Until(end))
					}
					if run.Row.State == pull.Indexing {
						<-ctx.Done()
						return saga.NotYet("nothing")
					}
					return o
				}
			}
			r.steps[cmd] = engine.Step{Perform: limited(saga.Done("", nil)), Look: limited(saga.NotDone(""))}
		}
		r.start()
		r.untilState(r.begin(), pull.MergeFailed)
		if calls.Load() != 5 {
			t.Errorf("%d calls, expected four steps and a look", calls.Load())
		}
	})
}

// A waiting state's deadline is days away: that is no limit for its self-check.
func TestASelfCheckDoesNotKeepItsWorkerForDays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		why := saga.Sentence{Summary: "waits", WaitingFor: "somebody", Who: "people"}
		r.table = &saga.Flow{Name: "wait", Version: 1, Entry: map[saga.Order]saga.State{saga.OrderDefault: "WAITING"}, States: []saga.Spec{
			{State: "WAITING", Code: 1, Kind: saga.Waiting, Status: "open", Phase: "wait", Command: "Check", Poll: saga.Poll{Long: time.Minute},
				On: []saga.Edge{saga.On(saga.OK, "ENDED")}, Deadline: saga.Deadline{After: 7 * 24 * time.Hour, To: saga.To("ENDED")}, Explain: why},
			{State: "ENDED", Code: 2, Kind: saga.Final, Status: "closed", Phase: "end", Explain: why},
		}}
		var runs atomic.Int32
		took := make(chan time.Duration, 1)
		r.steps["Check"] = engine.Step{Look: notDone, Perform: func(ctx context.Context, _ engine.Run) saga.Outcome {
			if runs.Add(1) > 1 {
				return saga.Done("there", nil)
			}
			began := time.Now()
			<-ctx.Done()
			took <- time.Since(began)
			return saga.NotYet("cut off")
		}}
		r.start(func(o *engine.Options) { o.Poll = time.Second })
		id := r.begin()
		if d := <-took; d != 2*time.Minute {
			t.Errorf("it was cut off after %s", d)
		}
		for r.row(id).State != "ENDED" {
			time.Sleep(time.Second)
		}
	})
}
