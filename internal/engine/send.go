package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// sendLimit bounds how long an outside event waits for its saga's lock.
const sendLimit = 10 * time.Second

// Send applies an event from outside (an operator, a callback, reconcile) to a
// saga and answers what it did. A refusal is a *saga.Refusal that wraps
// saga.ErrAlreadyAdvanced or saga.ErrIllegalTransition. An event that meets a
// running step may be put aside: then Decision.Row.Pending is set, the step is
// cancelled, and the event is applied when the step has stopped.
func (e *Engine) Send(ctx context.Context, sagaID string, ev saga.Event) (saga.Decision, error) {
	return e.Apply(ctx, sagaID, func(l store.Locked, s saga.Settings) (store.Writes, error) {
		f, ok := e.Flow(l.Row.Flow, l.Row.FlowVersion)
		if !ok {
			return store.Writes{}, fmt.Errorf("flow %s version %d is not known to this instance", l.Row.Flow, l.Row.FlowVersion)
		}
		return f.Receive(l, ev, s)
	})
}

// Apply is Send for an event that needs more of the row under lock than the
// table asks (a vote that may or may not make the quorum). decide is pure and
// may run more than once; its error writes nothing and comes back as it is.
func (e *Engine) Apply(ctx context.Context, sagaID string, decide func(l store.Locked, s saga.Settings) (store.Writes, error)) (saga.Decision, error) {
	c := &commit{req: store.Request{SagaID: sagaID}, giveUp: time.Now().Add(sendLimit)}
	settings := e.o.Settings()
	c.decide = func(l store.Locked) (store.Writes, error) { return decide(l, settings) }
	r := e.submit(ctx, c)
	if r.Err != nil {
		return saga.Decision{}, r.Err
	}
	e.follow(ctx, r.Decision)
	return r.Decision, nil
}

// Announce tells this instance of a decision that was committed elsewhere than
// here (a callback's own transaction): counters, watchers, wake-ups, and the
// end of a step whose row it took.
func (e *Engine) Announce(ctx context.Context, d saga.Decision) {
	e.committed(d)
	e.follow(ctx, d)
}

// follow cancels the step that an outside event concerns and wakes who performs
// the next command.
func (e *Engine) follow(ctx context.Context, d saga.Decision) {
	switch {
	case len(d.Moves) > 0:
		e.interrupt(d.Row.ID, d.Row.Version-int64(len(d.Moves)), errDisplaced)
	case d.KeepCommand && d.Row.Pending != nil:
		e.interrupt(d.Row.ID, d.Row.Version, errInterrupted)
		return
	}
	if d.Row.Command != nil && !d.KeepCommand {
		e.Wake(ctx)
	}
}

// Subscribe answers a channel that is signalled after each commit of this
// instance that moved or noted the saga, and a function that ends it. Signals
// coalesce; commits of other instances give none, so a reader polls too.
func (e *Engine) Subscribe(sagaID string) (<-chan struct{}, func()) { return e.hub.subscribe(sagaID) }
