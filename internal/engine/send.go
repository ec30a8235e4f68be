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
	c := &commit{req: store.Request{SagaID: sagaID}, giveUp: time.Now().Add(sendLimit)}
	settings := e.o.Settings()
	displaced := false
	c.decide = func(l store.Locked) (store.Writes, error) {
		f, ok := e.flows[flowKey{l.Row.Flow, l.Row.FlowVersion}]
		if !ok {
			return store.Writes{}, fmt.Errorf("flow %s version %d is not known to this instance", l.Row.Flow, l.Row.FlowVersion)
		}
		displaced = l.Row.Command.Leased(l.Now)
		return f.Receive(l, ev, settings)
	}
	r := e.submit(ctx, c)
	if r.Err != nil {
		return saga.Decision{}, r.Err
	}
	switch {
	case r.Decision.KeepCommand && r.Decision.Row.Pending != nil:
		e.interrupt(sagaID, errInterrupted)
	case displaced:
		e.interrupt(sagaID, errDisplaced)
	}
	if r.Decision.Row.Command != nil {
		e.Wake(ctx)
	}
	return r.Decision, nil
}

// Subscribe answers a channel that is signalled after each commit of this
// instance that moved or noted the saga, and a function that ends it. Signals
// coalesce; commits of other instances give none, so a reader polls too.
func (e *Engine) Subscribe(sagaID string) (<-chan struct{}, func()) { return e.hub.subscribe(sagaID) }
