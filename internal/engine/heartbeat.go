package engine

import (
	"context"
	"time"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/store"
)

// beatEvery bounds how long a close from another instance, or a displacement,
// goes unnoticed by the worker it concerns.
const beatEvery = 5 * time.Second

// beatLoop keeps the leases of running steps, learns which are lost or have an
// event waiting, and cuts off those whose lease ended without an answer.
func (e *Engine) beatLoop(ctx context.Context) {
	every := min(e.o.Lease/3, beatEvery)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			e.beatOnce(ctx)
		}
	}
}

func (e *Engine) beatOnce(ctx context.Context) {
	e.mu.Lock()
	leases := make([]store.Lease, 0, len(e.running))
	for _, x := range e.running {
		if !x.abandoned {
			leases = append(leases, x.claimed.Lease)
		}
	}
	e.mu.Unlock()
	if len(leases) == 0 {
		return
	}
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, max(e.o.Lease/3, time.Second))
	defer cancel()
	var beat store.Beat
	err := fault.Point(fault.Heartbeat)
	if err == nil {
		beat, err = e.o.Store.Heartbeat(ctx, leases, e.o.Lease)
	}
	if err != nil {
		e.missed()
		e.o.Log.Warn("heartbeat failed", "leases", len(leases), "error", err)
		e.cutOffExpired()
		return
	}
	lost := make(map[string]bool, len(beat.Lost))
	for _, l := range beat.Lost {
		lost[l.Token] = true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range leases {
		x, ok := e.running[l.Token]
		switch {
		case !ok:
		case lost[l.Token]:
			x.cancel(errDisplaced)
		default:
			x.leaseUntil = asked.Add(e.o.Lease)
		}
	}
	for _, l := range beat.Interrupt {
		if x, ok := e.running[l.Token]; ok {
			x.cancel(errInterrupted)
		}
	}
}

// cutOffExpired cancels steps whose lease has ended: somebody else may act now.
func (e *Engine) cutOffExpired() {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for _, x := range e.running {
		if now.After(x.leaseUntil) {
			x.cancel(errDisplaced)
		}
	}
}

// interrupt cancels a saga's running step in this instance, if it was claimed
// at this version of the saga or an older one: what an event displaced, not
// what was claimed after it.
func (e *Engine) interrupt(sagaID string, version int64, cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.running {
		if x.claimed.Row.ID == sagaID && x.claimed.Row.Version <= version {
			x.cancel(cause)
		}
	}
}
