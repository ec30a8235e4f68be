package engine

import "sync/atomic"

// capacity is a number of places: the workers, or how many of one command may
// run at once.
type capacity struct {
	places chan struct{}
	wanted atomic.Bool // the claim loop sleeps until a place is given back
}

func newCapacity(n int) *capacity { return &capacity{places: make(chan struct{}, n)} }

// take takes up to n places and says how many it got.
func (c *capacity) take(n int) int {
	for i := range n {
		select {
		case c.places <- struct{}{}:
		default:
			return i
		}
	}
	return n
}

func (c *capacity) give(n int) {
	for range n {
		<-c.places
	}
}

func (c *capacity) taken() int { return len(c.places) }

// full says that no place is free, and if so lets the next one that is given
// back be told of. It looks again after it has asked for that: else a place
// that is given back in between would be told to nobody.
func (c *capacity) full() bool {
	if len(c.places) < cap(c.places) {
		return false
	}
	c.wanted.Store(true)
	return len(c.places) == cap(c.places)
}

// giveBack gives a place back and wakes the claim loop where it waits for one.
func (e *Engine) giveBack(c *capacity) {
	c.give(1)
	if c.wanted.Swap(false) {
		e.wakeHere()
	}
}
