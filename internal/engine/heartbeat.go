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

// beatLoop keeps the leases of running steps and learns which are lost or have
// an event waiting.
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
			x.interrupted()
		}
	}
}

// cutOffExpired cancels steps whose lease has ended by then: somebody else may
// act from that time on.
func (e *Engine) cutOffExpired(by time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.running {
		if by.After(x.leaseUntil) {
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
		if x.claimed.Row.ID != sagaID || x.claimed.Row.Version > version {
			continue
		}
		if cause == errInterrupted {
			x.interrupted()
			continue
		}
		x.cancel(cause)
	}
}

// interrupted cancels a step that a person's event waits for, but not the look
// that was begun for that event.
func (x *execution) interrupted() {
	if x.claimed.Row.Pending == nil {
		x.cancel(errInterrupted)
	}
}

// expireLoop cuts off steps whose leases end before a beat has said anything:
// beats are one at a time, and one that waits for the database says nothing.
func (e *Engine) expireLoop(ctx context.Context) {
	every := min(e.o.Lease/20, time.Second)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			e.cutOffExpired(time.Now().Add(every)) // before the end, not after it
		}
	}
}
