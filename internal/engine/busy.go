package engine

import (
	"context"
	"slices"

	"github.com/mergeflow/mergeflow/internal/store"
)

// busyWaiters is how many busy sagas are waited for at once. Each wait holds one
// of the store's connections for as long as its lock timeout (2 s), so a few: who
// holds sagas for longer must not take the connections from everybody else.
const busyWaiters = 4

// busySagas are the sagas that were busy when their commits came. They are
// waited for beside the commit loop, one commit at a time, and what comes for
// such a saga meanwhile queues up behind it: so nobody else waits for them, and
// the commits of one saga keep their order. It belongs to the commit loop.
type busySagas struct {
	e       *Engine
	turn    []*commit            // whose turn to be waited for comes, the first first
	behind  map[string][]*commit // by saga: what came after the commit that is waited for
	waiting int
	back    chan waited // never blocks a waiter
}

// waited is a commit that was waited for; again: in vain, so far.
type waited struct {
	c     *commit
	again bool
}

func (e *Engine) newBusySagas() *busySagas {
	return &busySagas{e: e, behind: map[string][]*commit{}, back: make(chan waited, busyWaiters)}
}

// add puts a commit in the line.
func (b *busySagas) add(rest context.Context, c *commit) {
	c.req.Wait = true
	b.behind[c.req.SagaID] = nil
	b.turn = append(b.turn, c)
	b.dispatch(rest)
}

// divert puts a commit behind an earlier one of its saga that is waited for.
func (b *busySagas) divert(c *commit) bool {
	line, busy := b.behind[c.req.SagaID]
	if busy {
		b.behind[c.req.SagaID] = append(line, c)
	}
	return busy
}

func (b *busySagas) dispatch(rest context.Context) {
	for b.waiting < busyWaiters && len(b.turn) > 0 {
		c := b.turn[0]
		b.turn = b.turn[1:]
		b.waiting++
		go func() {
			again := b.e.applyTogether(rest, []*commit{c})
			b.back <- waited{c, len(again) > 0}
		}()
	}
}

// returned takes a waiter's commit back and answers those that may go into a
// batch now. One that waited in vain is waited for again after the others.
func (b *busySagas) returned(rest context.Context, w waited) (free []*commit) {
	b.waiting--
	release := func(c *commit) {
		free = append(free, b.behind[c.req.SagaID]...)
		delete(b.behind, c.req.SagaID)
	}
	if w.again {
		b.turn = append(b.turn, w.c)
	} else {
		release(w.c)
	}
	b.turn = slices.DeleteFunc(b.turn, func(c *commit) bool {
		late := b.e.tooLate(rest, c)
		if late {
			c.answer(b.e, store.Result{Err: store.ErrBusy})
			release(c)
		}
		return late
	})
	b.dispatch(rest)
	return free
}

// end waits for the waiters, whose calls end with the engine, and answers all
// that is left.
func (b *busySagas) end() (left []*commit) {
	for ; b.waiting > 0; b.waiting-- {
		if w := <-b.back; w.again {
			left = append(left, w.c)
		}
	}
	left = append(left, b.turn...)
	for _, line := range b.behind {
		left = append(left, line...)
	}
	return left
}
