package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// commit is one saga's decision on its way into a group commit.
type commit struct {
	req     store.Request
	command saga.Command // whose outcome it is; empty for an event
	decide  func(store.Locked) (store.Writes, error)
	giveUp  time.Time // when trying again makes no sense any more
	keptCap string    // the kind whose capacity was taken for the next command
	busy    int
	result  chan store.Result // buffered, answered once
}

// submit hands a decision to the committer and waits for its answer. What comes
// after the committer's end is refused.
func (e *Engine) submit(ctx context.Context, c *commit) store.Result {
	c.result = make(chan store.Result, 1)
	select {
	case e.commits <- c:
	case <-ctx.Done():
		return store.Result{Err: ctx.Err()}
	case <-e.commitDone:
		return store.Result{Err: errStopping}
	}
	select {
	case r := <-c.result:
		return r
	case <-ctx.Done():
		// The answer may still come, and be written; the caller reads the saga.
		return store.Result{Err: fmt.Errorf("%w: %w", store.ErrUnknown, ctx.Err())}
	case <-e.commitDone:
	}
	select {
	case r := <-c.result:
		return r
	default:
		return store.Result{Err: errStopping} // it was queued when nobody read the queue any more
	}
}

// commitLoop gathers what has piled up while the last commit was under way and
// writes it in one transaction. It waits for no single saga (busySagas does).
func (e *Engine) commitLoop(rest context.Context) {
	defer close(e.commitDone)
	busy := e.newBusySagas()
	var queue []*commit // what comes before e.commits, in the order in which it came
	for {
		if len(queue) == 0 {
			select {
			case c := <-e.commits:
				queue = append(queue, c)
			case w := <-busy.back:
				queue = busy.returned(rest, w)
			case <-rest.Done():
			}
		}
		if rest.Err() != nil {
			for _, c := range append(queue, busy.end()...) {
				c.answer(e, store.Result{Err: errStopping})
			}
			e.refuseRest()
			return
		}
		for range len(busy.back) {
			queue = append(busy.returned(rest, <-busy.back), queue...)
		}
		batch, next := e.gather(queue, busy)
		queue = nil
		for _, c := range e.applyTogether(rest, batch) {
			if c.busy < 2 {
				queue = append(queue, c)
				continue
			}
			busy.add(rest, c)
		}
		queue = append(queue, next...)
	}
}

// gather fills the batch from the queue, one commit per saga. The second of a
// saga waits for the next batch, and any of a busy saga for that one's turn.
func (e *Engine) gather(queue []*commit, busy *busySagas) (now, next []*commit) {
	seen := make(map[string]bool, e.o.Batch)
	add := func(c *commit) {
		switch {
		case busy.divert(c):
		case seen[c.req.SagaID] || len(now) == e.o.Batch:
			next = append(next, c)
		default:
			seen[c.req.SagaID] = true
			now = append(now, c)
		}
	}
	for _, c := range queue {
		add(c)
	}
	for len(now) < e.o.Batch {
		select {
		case c := <-e.commits:
			add(c)
			continue
		default:
		}
		break
	}
	return now, next
}

// applyTogether writes one batch and answers it; what could not be written yet
// comes back.
func (e *Engine) applyTogether(rest context.Context, batch []*commit) (again []*commit) {
	if len(batch) == 0 {
		return nil
	}
	began := time.Now()
	err := pass(fault.CommitBefore, batch)
	var results []store.Result
	if err == nil {
		results, err = e.apply(rest, batch)
	}
	if err == nil {
		err = pass(fault.CommitDone, batch)
	}
	if err != nil {
		e.missed()
		e.o.Log.Warn("a commit failed", "sagas", len(batch), "error", err)
		for _, c := range batch {
			if e.tooLate(rest, c) {
				c.answer(e, store.Result{Err: err})
				continue
			}
			again = append(again, c)
		}
		if len(again) > 0 {
			sleep(rest, 100*time.Millisecond+time.Duration(jitter()*float64(400*time.Millisecond)))
		}
		return again
	}
	e.o.Observer.Commit(len(batch), time.Since(began))
	for i, c := range batch {
		r := results[i]
		if errors.Is(r.Err, store.ErrBusy) && !e.tooLate(rest, c) {
			c.busy++
			again = append(again, c)
			continue
		}
		c.answer(e, r)
	}
	return again
}

// tooLate says that a commit is not tried again.
func (e *Engine) tooLate(rest context.Context, c *commit) bool {
	if rest.Err() != nil {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	return now.After(c.giveUp) || !e.lastTry.IsZero() && now.After(e.lastTry)
}

// pass is the place of each of a batch's commands.
func pass(p fault.Place, batch []*commit) error {
	for _, c := range batch {
		if err := fault.PointOf(p, string(c.command)); err != nil {
			return err
		}
	}
	return nil
}

func (c *commit) answer(e *Engine, r store.Result) {
	if !r.Kept {
		e.unreserve(c)
	}
	if r.Err == nil {
		e.committed(r.Decision)
	}
	c.result <- r
}

// committed is what happens after a commit: counters, watchers, wake-ups.
func (e *Engine) committed(d saga.Decision) {
	for _, m := range d.Moves {
		e.o.Observer.Transition(d.Row.Flow, string(m.From), string(m.To), string(m.Event))
	}
	if len(d.Moves) > 0 || len(d.Notes) > 0 {
		e.hub.publish(d.Row.ID)
	}
}

// refuseRest answers what is still queued when the committer ends.
func (e *Engine) refuseRest() {
	for {
		select {
		case c := <-e.commits:
			c.answer(e, store.Result{Err: errStopping})
		default:
			return
		}
	}
}

// commitOutcome settles a step's outcome and commits it under the lease. It
// answers the saga's next command where this worker keeps it. An outcome that the
// database can't hold becomes a failure that it can.
func (e *Engine) commitOutcome(rest context.Context, x *execution, out saga.Outcome, ran saga.Execution) *execution {
	next, err := e.commitAs(rest, x, out, ran)
	if errors.Is(err, store.ErrConflict) {
		next, _ = e.commitAs(rest, x, saga.FailWith(saga.Deterministic,
			"the database refused what the step answered: "+saga.Clean(err.Error(), 500), "this is a fault in mergeflow; please report it"), ran)
	}
	return next
}

func (e *Engine) commitAs(rest context.Context, x *execution, out saga.Outcome, ran saga.Execution) (*execution, error) {
	f, settings := x.flow, e.o.Settings()
	c := &commit{req: store.Request{SagaID: x.claimed.Row.ID, Token: x.claimed.Lease.Token}, command: x.command, giveUp: time.Now().Add(e.o.Lease)}
	c.decide = func(l store.Locked) (store.Writes, error) {
		run := ran
		run.Jitter = jitter()
		if pause := e.reached(); pause > 0 {
			// Asked here, under lock: an outage may have come to its end since the
			// look. A step whose deadline passed while it ran settles by its budget.
			// Not less than a second: the pause's last moment brings no row of looks.
			run.Overdue, run.Paused = run.Overdue && x.claimed.Overdue, max(pause, time.Second)
		}
		w, err := f.Settle(l, x.claimed.Lease.Token, out, run, settings)
		if err != nil || !l.Held {
			return w, err
		}
		next := w.Decision.Row.Command
		if next != nil && x.worker && !w.Decision.KeepCommand && len(w.Decision.Moves) > 0 &&
			!next.AvailableAt.After(l.Now) && !e.stopping() && e.reserve(c, next.Type) {
			w.Keep = e.keep(next, f)
		}
		return w, nil
	}
	asked := time.Now()
	r := e.submit(rest, c)
	switch {
	case errors.Is(r.Err, store.ErrLeaseLost):
		e.o.Observer.LeaseLost()
		e.o.Observer.Late()
		e.hub.publish(x.claimed.Row.ID)
		e.wakeHere()             // a successor that waited for this worker may begin now
		level := slog.LevelDebug // an event took the row of a look: nothing is amiss
		if settles(out) || x.spec.Kind == saga.Running {
			level = slog.LevelWarn
		}
		e.o.Log.Log(rest, level, "a result came after its lease was lost and changed nothing", "saga", x.claimed.Row.ID, "command", x.command, "outcome", out.String())
		return nil, nil
	case r.Err != nil:
		e.o.Log.Warn("an outcome could not be committed; the command is claimed again when its lease ends",
			"saga", x.claimed.Row.ID, "command", x.command, "outcome", out.String(), "error", r.Err)
		return nil, r.Err
	}
	next := r.Decision.Row.Command
	if !r.Kept {
		switch {
		case next == nil:
		case len(r.Decision.Moves) > 0:
			e.Wake(rest)
		default:
			e.wakeHere() // the loop may be asleep until later than the next try
		}
		return nil, nil
	}
	kept := store.Claimed{Row: r.Decision.Row, Lease: store.Lease{SagaID: r.Decision.Row.ID, Token: next.LeaseToken}, Now: r.Decision.Row.UpdatedAt}
	return e.begin(kept, asked, true), nil
}

// reserve takes capacity of the kind for a kept command, once per commit: a
// decision that is asked again may keep a command of another kind.
func (e *Engine) reserve(c *commit, typ string) bool {
	if c.keptCap == typ {
		return true
	}
	e.unreserve(c)
	places := e.caps[typ]
	if places == nil {
		return true
	}
	if places.take(1) == 0 {
		return false
	}
	c.keptCap = typ
	return true
}

func (e *Engine) unreserve(c *commit) {
	if c.keptCap != "" {
		e.giveBack(e.caps[c.keptCap])
		c.keptCap = ""
	}
}

// lateResult records what an abandoned step answered in the end.
func (e *Engine) lateResult(ctx context.Context, x *execution, out saga.Outcome) {
	f := x.flow
	_, err := e.o.Store.Apply(ctx, []store.Request{{SagaID: x.claimed.Row.ID, Token: x.claimed.Lease.Token, Wait: true}},
		func(_ int, l store.Locked) (store.Writes, error) {
			// Even a lease that nobody has taken yet was given up by abandon.
			held := l.Held
			l.Held = false
			w, err := f.Settle(l, x.claimed.Lease.Token, out, saga.Execution{}, e.o.Settings())
			w.Decision.KeepCommand = w.Decision.KeepCommand || held
			return w, err
		})
	e.o.Observer.Late()
	if err != nil {
		e.o.Log.Warn("a late result could not be noted", "saga", x.claimed.Row.ID, "outcome", out.String(), "error", err)
		return
	}
	e.hub.publish(x.claimed.Row.ID)
}
