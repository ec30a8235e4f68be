package engine_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// A look that never returns, whatever its context says, keeps no deadline from
// being applied and no close waiting for ever.
func TestALookThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: time.Minute}
		r.set.Polls[pull.Validating] = saga.Poll{Long: time.Hour}
		gate := make(chan struct{})
		var looks atomic.Int32
		r.steps[pull.CmdValidate] = engine.Step{Perform: func(context.Context, engine.Run) saga.Outcome { return saga.NotYet("x") },
			Look: func(context.Context, engine.Run) saga.Outcome { looks.Add(1); <-gate; return saga.NotDone("x") }}
		r.start(func(o *engine.Options) { o.Poll = time.Second })
		id := r.begin()
		time.Sleep(5 * time.Minute)
		if row := r.row(id); row.State != pull.MergeFailed || row.Failure.Kind != saga.UnknownOutcome || !strings.Contains(row.Failure.Error, "did not return") || looks.Load() != 1 {
			t.Errorf("%s %+v after %d looks", row.State, row.Failure, looks.Load())
		}
		close(gate)
		synctest.Wait()
	})
}

// The look that a close waits for may take as long as looks may: beats tell of
// the close every few seconds, and cut off only what was begun before it.
func TestTheLookForACloseIsNotCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: 30 * time.Minute}
		r.set.Polls[pull.Validating] = saga.Poll{Short: time.Second, ShortTries: 1000}
		var looks, cut atomic.Int32
		r.steps[pull.CmdValidate] = engine.Step{Perform: func(ctx context.Context, _ engine.Run) saga.Outcome { <-ctx.Done(); return saga.Unclear("cut") },
			Look: func(ctx context.Context, _ engine.Run) saga.Outcome {
				looks.Add(1)
				select {
				case <-time.After(8 * time.Second):
					return saga.NotDone("open")
				case <-ctx.Done():
					cut.Add(1)
					return saga.FailWith(saga.Transient, context.Cause(ctx).Error(), "")
				}
			}}
		e := r.start(func(o *engine.Options) { o.Poll = time.Second })
		id := r.begin()
		time.Sleep(1500 * time.Millisecond)
		if _, err := e.Send(t.Context(), id, saga.Event{Name: saga.Close, Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if row := r.row(id); row.State != pull.PullClosed || looks.Load() != 1 || cut.Load() != 0 {
			t.Errorf("%s after %d looks, %d cut off", row.State, looks.Load(), cut.Load())
		}
	})
}

// A look before a deadline that a close cuts off has not looked: what it would
// have found is found by the next one, and beats both.
func TestALookThatWasCutOffProvesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: 2 * time.Minute}
		id := r.begin()
		r.claimAndDie(1)
		r.clock.advance(time.Hour)
		entered := make(chan struct{}, 9)
		r.steps[pull.CmdValidate] = engine.Step{Perform: ok, Look: func(ctx context.Context, _ engine.Run) saga.Outcome {
			entered <- struct{}{}
			select {
			case <-time.After(3 * time.Second):
				return saga.Done("it was done", nil)
			case <-ctx.Done():
				return saga.FailWith(saga.Transient, context.Cause(ctx).Error(), "")
			}
		}}
		r.steps[pull.CmdMerge] = engine.Step{Look: notDone, Perform: func(ctx context.Context, _ engine.Run) saga.Outcome { <-ctx.Done(); return saga.Unclear("") }}
		e := r.start()
		<-entered
		time.Sleep(time.Second)
		if _, err := e.Send(t.Context(), id, saga.Event{Name: saga.Close, Actor: "ann"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		moves, notes := r.history(id)
		if row := r.row(id); row.State != pull.PullClosed || row.Failure != nil {
			t.Errorf("%s: %v %q", row.State, moves, notes)
		}
	})
}
