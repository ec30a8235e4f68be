package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mergeflow/mergeflow/internal/store"
)

// applyMost bounds one call of Store.Apply; it is a short transaction or the
// database is in trouble.
const applyMost = 10 * time.Second

// applyLimit is within half a lease, so that an outcome is tried more than once
// before its lease ends.
func (e *Engine) applyLimit() time.Duration { return min(e.o.Lease/2, applyMost) }

// apply asks the store to write a batch, for a limited time. A store that does
// not come back from a context that has ended is waited for, since its answer is
// worth more than none, until the engine stops: then it is left behind, and what
// it may still write is unknown.
func (e *Engine) apply(rest context.Context, batch []*commit) ([]store.Result, error) {
	reqs := make([]store.Request, len(batch))
	for i, c := range batch {
		reqs[i] = c.req
	}
	type answer struct {
		results []store.Result
		err     error
	}
	var mu sync.Mutex
	left := false
	answers := make(chan answer, 1)
	go func() {
		ctx, cancel := context.WithTimeout(rest, e.applyLimit())
		defer cancel()
		results, err := e.o.Store.Apply(ctx, reqs, func(i int, l store.Locked) (store.Writes, error) {
			mu.Lock()
			defer mu.Unlock()
			if left {
				return store.Writes{}, errStopping // its commit is answered: nothing may be written for it
			}
			return batch[i].decide(l)
		})
		answers <- answer{results, err}
	}()
	select {
	case a := <-answers:
		return a.results, a.err
	case <-rest.Done():
	}
	patience := time.NewTimer(e.o.Grace / 4)
	defer patience.Stop()
	select {
	case a := <-answers:
		return a.results, a.err
	case <-patience.C:
	}
	mu.Lock()
	defer mu.Unlock()
	left = true
	return nil, fmt.Errorf("%w: the store did not answer before the engine had stopped", store.ErrUnknown)
}
