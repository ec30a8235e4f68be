package engine

import (
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Settle is what a step's outcome writes, given the saga under lock: a
// transition or a requeue while the lease is held, else no more than a note. It
// is pure.
func (f *Flow) Settle(l store.Locked, token string, out saga.Outcome, x saga.Execution, s saga.Settings) (store.Writes, error) {
	if !l.Held {
		return f.writes(l, saga.Late(f.Table, l.Row, token, out, l.Now)), nil
	}
	ev := saga.Settle(f.Table, l.Row, out, x, s)
	ev.At = l.Now
	d, err := saga.Decide(f.Table, l.Row, ev, s)
	if err != nil {
		// A step that answers what its table doesn't hold has failed, visibly.
		ev = saga.Event{Name: saga.Fail, Version: l.Row.Version, Actor: saga.ActorEngine, Step: true, At: l.Now,
			Failure: &saga.Failure{Kind: saga.Deterministic, Error: err.Error(), Hint: "this is a fault in mergeflow; please report it"}}
		if d, err = saga.Decide(f.Table, l.Row, ev, s); err != nil {
			// A waiting state has no failure to go to: it goes on waiting, and says why.
			ev = saga.Event{Version: l.Row.Version, Actor: saga.ActorEngine, Step: true, At: l.Now,
				Requeue: &saga.Requeue{After: saga.DefaultBackoffMax, Evidence: err.Error(), Note: err.Error()}}
			if d, err = saga.Decide(f.Table, l.Row, ev, s); err != nil {
				return store.Writes{}, err
			}
		}
	}
	return f.writes(l, d), nil
}

// Receive is what an event from outside writes, given the saga under lock. It
// is pure. A refusal is a *saga.Refusal.
func (f *Flow) Receive(l store.Locked, ev saga.Event, s saga.Settings) (store.Writes, error) {
	ev.At = l.Now
	d, err := saga.Decide(f.Table, l.Row, ev, s)
	if err != nil {
		return store.Writes{}, err
	}
	return f.writes(l, d), nil
}

func (f *Flow) writes(l store.Locked, d saga.Decision) store.Writes {
	w := store.Writes{Decision: d}
	if f.Outward != nil {
		w.Outward = f.Outward(l.Row, d)
	}
	return w
}
