package sim

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// lookLimit is how long a look may take, as in the engine.
const lookLimit = 10 * time.Second

// execution is one leased command in one instance. Its step runs as a
// coroutine that stops before each call to the world.
type execution struct {
	name    string
	r       *rig
	on      *instance
	claimed store.Claimed
	command saga.Command
	step    engine.Step

	until     time.Time // what the holder may believe of its lease
	deadline  time.Time
	reserve   time.Duration
	cutAt     time.Time // when its own time is up; zero: never
	abandoned bool

	// the coroutine
	ctx    context.Context
	cancel context.CancelFunc
	next   func() (string, bool)
	stop   func()
	yield  func(string) bool
	look   bool   // what runs is a look
	began  bool   // the step has been entered
	at     string // the call it stops before
	fault  fault  // how that call will end
	effect func() // what that call does
	dead   bool
	answer saga.Outcome

	// what it saw and asked
	looked   bool
	lookedAt int
	asked    string

	// the result
	done    bool
	seen    *saga.Outcome // of the step, when a last look runs
	out     saga.Outcome
	overdue bool
}

type executionKey struct{}

func executionOf(ctx context.Context) *execution {
	x, _ := ctx.Value(executionKey{}).(*execution)
	return x
}

// begin makes an execution of a claim; nothing of its step has run yet.
func (r *rig) begin(on *instance, c store.Claimed) *execution {
	r.executions++
	x := &execution{name: fmt.Sprintf("x%d", r.executions), r: r, on: on, claimed: c, until: c.Row.Command.LeaseUntil, overdue: c.Overdue}
	_, _, state, command, _ := saga.ParseType(c.Row.Command.Type)
	x.command, x.step = command, r.flow.Steps[command]
	spec, _ := r.flow.Table.Spec(state)
	x.deadline = c.Row.Command.DeadlineAt
	look := x.overdue || c.Row.Pending != nil
	limit := lookLimit
	if !look {
		limit = spec.Execution
		if !x.deadline.IsZero() {
			left := x.deadline.Sub(r.time)
			x.reserve = min(lookLimit, left/5)
			if limit == 0 || left-x.reserve < limit {
				limit = left - x.reserve
			}
		}
	}
	if limit > 0 {
		x.cutAt = r.time.Add(limit)
	}
	x.enter(look)
	r.running = append(r.running, x)
	return x
}

// enter makes the coroutine of the step or of its look.
func (x *execution) enter(look bool) {
	x.look, x.began = look, false
	f := x.step.Perform
	if look {
		f = x.step.Look
	}
	x.ctx, x.cancel = context.WithCancel(context.WithValue(context.Background(), executionKey{}, x))
	x.next, x.stop = iter.Pull(func(yield func(string) bool) {
		x.yield = yield
		defer func() {
			if p := recover(); p != nil {
				x.answer = saga.FailWith(saga.Deterministic, fmt.Sprint("the step panicked: ", p), "")
			}
		}()
		x.answer = f(x.ctx, engine.Run{Row: x.claimed.Row, Look: look})
	})
}

// advance performs the next call to the world and goes on to the one after it,
// or to the end of the step. It says what happened.
func (x *execution) advance(f fault) string {
	if !x.cutAt.IsZero() && !x.r.time.Before(x.cutAt) {
		x.cancel()
	}
	var more bool
	if !x.began {
		x.began = true
		if x.at, more = x.next(); !more {
			x.returned()
			return x.what() + " returns at once: " + x.answer.String()
		}
	}
	called, cut := x.at, mark(x.ctx.Err() != nil, ", but it was cut off")
	x.fault = f
	if x.at, more = x.next(); more {
		return fmt.Sprintf("%s: %s: %s%s", x.what(), called, f, cut)
	}
	said := x.answer
	x.returned()
	return fmt.Sprintf("%s: %s: %s%s; returns %q", x.what(), called, f, cut, said)
}

func (x *execution) what() string {
	w := x.name + " (" + string(x.command)
	if x.look {
		w += ", a look"
	}
	return w + " of " + x.r.called(x.claimed.Row.ID) + ")"
}

// returned is what the engine makes of a step's answer: a step that was cut off
// says "unknown", and one that is out of time is looked after once.
func (x *execution) returned() {
	out := x.answer
	if !x.look && x.ctx.Err() != nil && !out.Settles() {
		out = saga.Unclear("cut off: " + saga.Clean(out.String(), 200))
	}
	switch {
	case x.seen != nil:
		if !out.Settles() {
			out = *x.seen
		}
		x.settle(out, true)
	case x.look, x.deadline.IsZero(), out.Settles():
		x.settle(out, x.overdue)
	case x.r.time.Before(x.deadline.Add(-x.reserve)):
		x.settle(out, false)
	default:
		x.seen = &out
		x.cutAt = x.r.time.Add(max(x.reserve, time.Second))
		x.enter(true)
	}
}

func (x *execution) settle(out saga.Outcome, overdue bool) {
	x.done, x.out, x.overdue = true, out, overdue
	x.cancel()
}

// end lets go of the coroutine. Nothing it still does reaches the world.
func (x *execution) end() {
	x.dead = true
	x.cancel()
	x.stop()
	x.r.running = without(x.r.running, x)
}

func without(xs []*execution, x *execution) []*execution {
	var out []*execution
	for _, o := range xs {
		if o != x {
			out = append(out, o)
		}
	}
	return out
}
