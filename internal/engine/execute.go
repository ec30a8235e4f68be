package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Why a running step is cancelled (context.Cause in the step).
var (
	errDisplaced   = errors.New("the lease was lost to another event or instance")
	errInterrupted = errors.New("a person asked for something that waits for this step")
	errStopping    = errors.New("the instance is stopping")
	errCutOff      = errors.New("the step's time is up")
)

const (
	// lookLimit bounds a look.
	lookLimit = 10 * time.Second
	// selfCheckLimit bounds a waiting state's self-check that is more than a look
	// and has no limit of its own (saga.Spec.Execution).
	selfCheckLimit = 2 * time.Minute
)

// execution is one leased command in this instance.
type execution struct {
	claimed    store.Claimed
	flow       *Flow
	spec       *saga.Spec
	command    saga.Command
	worker     bool      // it occupies a worker's slot
	deadline   time.Time // by this process's monotonic clock; zero: none
	leaseUntil time.Time // likewise; moved by heartbeats (guarded by Engine.mu)
	cancel     context.CancelCauseFunc
	ctx        context.Context
	abandoned  bool // no longer heartbeaten: the lease is left to end (guarded by Engine.mu)
}

// begin registers a claimed command, so that heartbeats keep its lease. asked is
// when the lease was asked for: it may have ended before its answer was read, in
// a process that was frozen.
func (e *Engine) begin(c store.Claimed, asked time.Time, worker bool) *execution {
	x := &execution{claimed: c, worker: worker, leaseUntil: asked.Add(e.o.Lease)}
	x.flow = e.flows[flowKey{c.Row.Flow, c.Row.FlowVersion}]
	if x.flow != nil {
		x.spec, _ = x.flow.Table.Spec(c.Row.State)
	}
	_, _, _, x.command, _ = saga.ParseType(c.Row.Command.Type)
	if d := c.Row.Command.DeadlineAt; !d.IsZero() {
		x.deadline = asked.Add(d.Sub(c.Now))
	}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	e.mu.Lock()
	e.running[c.Lease.Token] = x
	if !e.lastTry.IsZero() {
		x.cancel(errStopping) // its claim was answered when Stop had cut the others off
	}
	e.mu.Unlock()
	return x
}

func (e *Engine) end(x *execution) {
	x.cancel(nil)
	e.mu.Lock()
	delete(e.running, x.claimed.Lease.Token)
	e.mu.Unlock()
}

// execute performs one command and goes on with the saga's next one while the
// commit keeps it for this worker.
func (e *Engine) execute(rest context.Context, x *execution) {
	worker := x.worker
	defer func() {
		if worker {
			e.giveBack(e.workers)
		} else {
			e.beside.give(1)
		}
	}()
	for x != nil {
		x = e.executeOne(rest, x)
	}
}

func (e *Engine) executeOne(rest context.Context, x *execution) *execution {
	typ := x.claimed.Row.Command.Type
	held := e.caps[typ] != nil && x.worker
	defer func() {
		e.end(x)
		if held {
			e.giveBack(e.caps[typ])
		}
	}()
	if x.flow == nil || x.spec == nil || e.stopping() && !x.claimed.Overdue && x.claimed.Row.Command.Attempt <= 1 {
		// Unknown can't happen (claims name kinds); a stop gives it back unstarted.
		ctx, cancel := context.WithTimeout(rest, claimLimit)
		defer cancel()
		if err := e.o.Store.Release(ctx, []store.Lease{x.claimed.Lease}); err != nil {
			e.o.Log.Warn("releasing a command failed; its lease will end by itself", "saga", x.claimed.Row.ID, "error", err)
		}
		return nil
	}
	if e.expired(x) {
		e.o.Log.Warn("a lease ended before its command was begun; whoever claims it next performs it", "saga", x.claimed.Row.ID, "command", x.command)
		return nil
	}
	out, ran, back := e.perform(x)
	if !back {
		// The step ignores its cancelled context. Its lease is left to end; then
		// a claim, here or elsewhere, looks at what it did.
		return nil
	}
	return e.commitOutcome(rest, x, out, ran)
}

// expired says that somebody else may hold the command by now.
func (e *Engine) expired(x *execution) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Now().After(x.leaseUntil)
}

// perform runs the step, and before a deadline is applied one more look. A
// command that is past its deadline when it begins is only looked at, whatever
// becomes of the deadline: it may run beside the workers, and its claim counted
// no attempt. So is one whose attempts are used up without an answer. back is
// false when the step did not return in time.
func (e *Engine) perform(x *execution) (out saga.Outcome, ran saga.Execution, back bool) {
	dated := !x.deadline.IsZero()
	left := time.Until(x.deadline)
	overdue := x.claimed.Overdue || dated && left <= 0
	step := x.flow.Steps[x.command]
	c := x.claimed.Row.Command
	switch {
	case step.Look == nil && step.Perform == nil: // saga.DeadlineOnly
		return saga.NotDone("nothing came"), saga.Execution{Overdue: overdue}, true
	case overdue || step.Perform == nil || x.claimed.Row.Pending != nil:
		out, cut := e.look(x, step, lookLimit)
		return out, saga.Execution{Overdue: overdue && !cut, CutOff: cut}, true
	case c.Attempt > e.o.Settings().AttemptLimit():
		out, cut := e.look(x, step, lookLimit)
		return usedUp(out, c.Attempt-1), saga.Execution{CutOff: cut}, true
	}
	limit, reserve := limitOf(x.spec, e.o.Lease), time.Duration(0)
	if dated {
		reserve = min(lookLimit, left/5)
		if left-reserve < limit || x.spec.Execution == 0 && x.spec.Kind == saga.Running {
			limit = left - reserve
		}
	}
	out, back = e.run(x, step, false, limit)
	if !back || !dated || settles(out) {
		return out, saga.Execution{}, back
	}
	if time.Until(x.deadline) > reserve {
		return out, saga.Execution{}, true // the step gave up before its time: settle by its budget
	}
	seen, cut := e.look(x, step, max(reserve, time.Second))
	if settles(seen) {
		out = seen // otherwise what the step saw says more
	}
	return out, saga.Execution{Overdue: !cut, CutOff: cut}, true
}

// look runs the step's look. One that was cut off by an event, a lost lease or a
// stop has not looked: it proves nothing, and no deadline is applied after it.
func (e *Engine) look(x *execution, step Step, limit time.Duration) (out saga.Outcome, cut bool) {
	out, _ = e.run(x, step, true, limit)
	return out, x.ctx.Err() != nil && !settles(out) && !out.IsNotDone()
}

// usedUp is a look's answer where every attempt that the budget allows ended
// without an answer: its process died, or it never returned.
func usedUp(seen saga.Outcome, attempts int) saga.Outcome {
	why := fmt.Sprintf("%d attempts ended without an answer; a look says %s", attempts, seen)
	switch {
	case settles(seen), seen.IsNotYet():
		return seen
	case seen.IsNotDone():
		return saga.FailWith(saga.Transient, saga.Clean(why, 500), "nothing was done; look into the log why attempts end, then retry")
	}
	return saga.Unclear(saga.Clean(why, 500))
}

// limitOf is how long one run of a step may take, apart from its deadline: what
// its state says; two minutes for a self-check, whose state waits for days, and
// which must not keep a worker for them; else the state's own patience, or a
// lease where a table has none. It is always positive.
func limitOf(spec *saga.Spec, lease time.Duration) time.Duration {
	switch {
	case spec.Execution > 0:
		return spec.Execution
	case spec.Kind == saga.Waiting:
		return selfCheckLimit
	case spec.Deadline.After > 0:
		return spec.Deadline.After
	}
	return lease
}

// settles says that an outcome leaves nothing to wait for.
func settles(o saga.Outcome) bool { return o.Settles() }

// run calls the step in its own goroutine, always under a limit, and survives a panic.
func (e *Engine) run(x *execution, step Step, look bool, limit time.Duration) (saga.Outcome, bool) {
	f := step.Perform
	if look {
		f = step.Look
	}
	ctx, cancel := context.WithTimeoutCause(x.ctx, limit, errCutOff)
	defer cancel()
	row := x.claimed.Row
	began := time.Now()
	answer := make(chan saga.Outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				e.o.Observer.Panic(string(x.command))
				e.o.Log.Error("a step panicked", "saga", row.ID, "command", x.command, "panic", p, "stack", string(debug.Stack()))
				answer <- saga.FailWith(saga.Deterministic, "the step panicked: "+saga.Clean(fmt.Sprint(p), 300),
					"this is a fault in mergeflow; the log has the stack")
			}
		}()
		answer <- x.call(ctx, f, Run{Row: row, Look: look})
	}()
	observe := func(o saga.Outcome) saga.Outcome {
		// A waiting state's self-check that is cut off leaves no call unanswered
		// that the next one would not find: it has merely seen nothing.
		if !look && x.spec.Kind == saga.Running && ctx.Err() != nil && !settles(o) {
			o = saga.Unclear(saga.Clean(fmt.Sprintf("%v: %s", context.Cause(ctx), o), 500))
		}
		e.o.Observer.Step(row.Flow, string(x.command), o.Label(), time.Since(began))
		return o
	}
	select {
	case o := <-answer:
		return observe(o), true
	case <-ctx.Done():
	}
	grace := time.NewTimer(e.o.Grace)
	defer grace.Stop()
	select {
	case o := <-answer:
		return observe(o), true
	case <-grace.C:
	}
	if look {
		// It only reads: nothing has to be found out about it, and what is under
		// way goes on as after one that saw nothing.
		e.o.Log.Error("a look ignores its cancelled context and is left behind", "saga", row.ID, "command", x.command)
		return saga.NotYet("the look did not return in time"), true
	}
	e.abandon(x, answer)
	return saga.Outcome{}, false
}

func (x *execution) call(ctx context.Context, f func(context.Context, Run) saga.Outcome, run Run) saga.Outcome {
	err := fault.PointOf(fault.StepBefore, string(x.command))
	if err == nil {
		out := f(ctx, run)
		if err = fault.PointOf(fault.StepDone, string(x.command)); err == nil {
			return out
		}
	}
	return saga.Unclear(err.Error())
}

// abandon leaves a step that does not return to itself. Its lease is no longer
// extended; whatever it answers one day is a late result.
func (e *Engine) abandon(x *execution, answer <-chan saga.Outcome) {
	e.mu.Lock()
	x.abandoned = true
	e.mu.Unlock()
	e.o.Log.Error("a step ignores its cancelled context and is left behind", "saga", x.claimed.Row.ID, "command", x.command)
	e.late.Go(func() {
		o := <-answer
		ctx, cancel := context.WithTimeout(context.Background(), claimLimit)
		defer cancel()
		e.lateResult(ctx, x, o)
	})
}

// keep is the lease that a commit may give the saga's next command at its birth.
func (e *Engine) keep(next *saga.CommandRow, f *Flow) *store.Keep {
	spec, ok := e.specOf(f, next)
	if !ok {
		return nil
	}
	return &store.Keep{Token: uuid.NewString(), Lease: e.o.Lease,
		Deadline: e.o.Settings().DeadlineOf(spec), Look: spec.Kind == saga.Waiting}
}

func (e *Engine) specOf(f *Flow, c *saga.CommandRow) (*saga.Spec, bool) {
	_, _, s, cmd, ok := saga.ParseType(c.Type)
	if !ok {
		return nil, false
	}
	if _, known := f.Steps[cmd]; !known || fault.Without(c.Type) {
		return nil, false
	}
	return f.Table.Spec(s)
}
