package engine_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// A person's close cancels what runs at once and says why, and does not wait
// for a heartbeat to find the close.
func TestCloseCancelsWhatRunsAtOnce(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]bool{"a step": false, "a look": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				entered := make(chan time.Time, 10)
				type end struct {
					at    time.Time
					cause error
					look  bool
				}
				ends := make(chan end, 10)
				hang := func(ctx context.Context, run engine.Run) saga.Outcome {
					entered <- time.Now()
					<-ctx.Done()
					ends <- end{time.Now(), context.Cause(ctx), run.Look}
					return saga.NotDone("open")
				}
				r.steps[pull.CmdValidate] = engine.Step{Perform: hang, Look: notDone}
				id := r.begin()
				if look {
					r.steps[pull.CmdValidate] = engine.Step{Perform: ok, Look: hang}
					r.set.Queued = time.Minute
					r.clock.advance(time.Hour)
				}
				e := r.start()
				<-entered
				time.Sleep(time.Second) // no heartbeat is due: the next comes after five
				asked := time.Now()
				d, err := e.Send(t.Context(), id, saga.Event{Name: saga.Close, Actor: "ann"})
				if err != nil || d.Row.Pending == nil {
					t.Fatalf("%+v %v", d.Row, err)
				}
				got := <-ends
				if !got.at.Equal(asked) || got.look != look || got.cause == nil || !strings.Contains(got.cause.Error(), "a person asked") {
					t.Errorf("cancelled after %s because of %v, look: %t", got.at.Sub(asked), got.cause, got.look)
				}
				if r.untilState(id, pull.PullClosed); time.Since(asked) > time.Second {
					t.Errorf("closed %s after it was asked", time.Since(asked))
				}
			})
		})
	}
}

// So does an event that takes the row from under a step.
func TestAnEventCancelsWhatItDisplacedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		entered, cut := make(chan struct{}), make(chan error, 1)
		r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: func(ctx context.Context, _ engine.Run) saga.Outcome {
			close(entered)
			<-ctx.Done()
			cut <- context.Cause(ctx)
			return saga.Unclear("cut off")
		}}
		e := r.start()
		id := r.begin()
		<-entered
		time.Sleep(time.Second)
		asked := time.Now()
		if _, err := e.Send(t.Context(), id, saga.Event{Name: saga.Found, Actor: "forge"}); err != nil {
			t.Fatal(err)
		}
		if err := <-cut; !time.Now().Equal(asked) || !strings.Contains(err.Error(), "the lease was lost") {
			t.Errorf("cancelled after %s because of %v", time.Since(asked), err)
		}
		r.untilState(id, pull.Merged)
	})
}

// An event cancels what it displaced and nothing that was claimed after it.
func TestAnEventCancelsOnlyWhatItDisplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		entered := make(chan struct{})
		cut := make(chan error, 1)
		r.steps[pull.CmdNotify] = engine.Step{Look: notDone, Perform: func(ctx context.Context, _ engine.Run) saga.Outcome {
			close(entered)
			select {
			case <-ctx.Done():
				cut <- context.Cause(ctx)
			case <-time.After(time.Minute):
			}
			return saga.Done("", nil)
		}}
		e := r.start()
		id := r.begin()
		<-entered
		row := r.row(id)
		// Somebody tells of the move into this state once more, and late.
		e.Announce(t.Context(), saga.Decision{Row: row, Moves: []saga.Move{{Seq: row.Version, Event: saga.OK, From: pull.Merging, To: pull.Notifying}}})
		r.untilEnd(id, pull.Merged)
		select {
		case err := <-cut:
			t.Errorf("the step that was claimed after the move was cancelled: %v", err)
		default:
		}
	})
}
