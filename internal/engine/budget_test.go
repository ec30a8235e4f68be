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

// An answer that the database can't hold is a visible failure, not one more try.
func TestAnOutcomeThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var performs atomic.Int32
		bad := saga.Done("merged", map[string]string{"author": "a\x00b"})
		r.steps[pull.CmdMerge] = engine.Step{Perform: func(context.Context, engine.Run) saga.Outcome { performs.Add(1); return bad },
			Look: func(context.Context, engine.Run) saga.Outcome { return bad }}
		r.start(func(o *engine.Options) { o.Poll = time.Second })
		id := r.begin()
		time.Sleep(time.Minute)
		if row := r.row(id); row.State != pull.MergeFailed || row.Failure.Kind != saga.Deterministic || !strings.Contains(row.Failure.Error, "refused") || performs.Load() != 1 {
			t.Errorf("%s %+v after %d tries", row.State, row.Failure, performs.Load())
		}
	})
}

// Attempts that end without an answer (the process dies in them) are within the
// budget too: after it the command is only looked at.
func TestAttemptsWithoutAnAnswerAreCounted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		look saga.Outcome
		want saga.State
		kind saga.ErrorKind
	}{
		"not done":  {saga.NotDone("absent"), pull.MergeFailed, saga.Transient},
		"not known": {saga.FailWith(saga.Transient, "down", ""), pull.MergeFailed, saga.UnknownOutcome},
		"done":      {saga.Done("there", nil), pull.Merged, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: 24 * time.Hour}
				id := r.begin()
				for range 3 { // the budget
					r.claimAndDie(1)
					r.clock.advance(time.Hour)
				}
				var performs atomic.Int32
				r.steps[pull.CmdValidate] = engine.Step{Perform: func(context.Context, engine.Run) saga.Outcome { performs.Add(1); return saga.Done("", nil) },
					Look: func(context.Context, engine.Run) saga.Outcome { return c.look }}
				r.start()
				time.Sleep(10 * time.Second)
				row := r.row(id)
				if row.State != c.want || performs.Load() != 0 || c.kind != "" && (row.Failure == nil || row.Failure.Kind != c.kind || !strings.Contains(row.Failure.Error, "without an answer")) {
					t.Errorf("%s %+v, performed %d times", row.State, row.Failure, performs.Load())
				}
			})
		})
	}
}
