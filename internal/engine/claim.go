package engine

import (
	"context"
	"time"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/store"
)

// claimLimit bounds one claim; it is a short transaction or the database is in trouble.
const claimLimit = 10 * time.Second

// claimLoop claims while there are free workers, sleeps until something is due,
// a wake-up comes, or the poll's floor. claims ends with Stop; rest outlives it,
// so that a claim that was answered can still be released or run.
func (e *Engine) claimLoop(claims, rest context.Context) {
	backoff := e.o.Poll
	for claims.Err() == nil {
		took, full, err := e.claimOnce(rest)
		switch {
		case claims.Err() != nil:
			return
		case err != nil:
			e.missed()
			e.o.Log.Warn("claiming failed", "error", err)
			if !e.sleepOrWake(claims, time.Duration(float64(backoff)*(0.5+jitter()))) {
				return
			}
			backoff = min(2*backoff, 30*time.Second)
			continue
		}
		backoff = e.o.Poll
		e.turned()
		if full {
			continue // there may be more that is due
		}
		if !e.idle(claims, took) {
			return
		}
	}
}

// claimOnce takes what is due for the workers that are free. full says that it
// took all it asked for, so more may wait.
func (e *Engine) claimOnce(rest context.Context) (took int, full bool, err error) {
	free := e.workers.take(e.o.Workers) // what isn't used goes back at once
	in := store.Claim{Max: free, Lease: e.o.Lease, Queued: e.o.Settings().QueuedLimit()}
	if free == 0 {
		// Nothing is free, but what is past its deadline is still looked at, a few
		// at once: full workers must not keep a request "processing" for ever. A
		// poll is often enough; wake-ups tell of new work.
		if time.Since(e.lookedBeside) < e.o.Poll {
			return 0, false, nil
		}
		e.lookedBeside = time.Now()
		if in.Max = e.beside.take(e.o.Workers); in.Max == 0 {
			return 0, false, nil
		}
		in.OverdueOnly = true
	}
	settings := e.o.Settings()
	taken := map[string]int{}
	for _, k := range e.kinds {
		n := in.Max
		if c := e.caps[k.typ]; c != nil && !in.OverdueOnly {
			n = c.take(min(n, k.cap))
			taken[k.typ] = n
			if n == 0 {
				continue
			}
		}
		in.Kinds = append(in.Kinds, store.ClaimKind{Type: k.typ, Cap: n, Deadline: settings.DeadlineOf(k.spec), Look: k.look})
	}
	var got []store.Claimed
	asked := time.Now()
	if len(in.Kinds) > 0 {
		// Not under claims: a claim that Stop cuts off would leave leases behind
		// that nobody holds.
		ctx, cancel := context.WithTimeout(rest, claimLimit)
		got, err = e.claim(ctx, in)
		cancel()
		if err == nil {
			e.reached()
		}
	}
	places := e.workers
	if in.OverdueOnly {
		places = e.beside
	}
	places.give(in.Max - len(got))
	e.steps.Add(len(got))
	for _, c := range got {
		if !in.OverdueOnly && e.caps[c.Row.Command.Type] != nil {
			taken[c.Row.Command.Type]--
		}
	}
	for typ, n := range taken {
		e.caps[typ].give(n)
	}
	if err != nil {
		return 0, false, err
	}
	if len(got) > 0 {
		e.o.Observer.Claimed(len(got))
	}
	for _, c := range got {
		x := e.begin(c, asked, !in.OverdueOnly)
		go func() {
			defer e.steps.Done()
			e.execute(rest, x)
		}()
	}
	return len(got), !in.OverdueOnly && len(got) == free, nil
}

func (e *Engine) claim(ctx context.Context, in store.Claim) ([]store.Claimed, error) {
	if err := fault.Point(fault.Claim); err != nil {
		return nil, err
	}
	got, err := e.o.Store.Claim(ctx, in)
	if len(got) > 0 {
		if err := fault.Point(fault.ClaimDone); err != nil {
			return nil, err
		}
	}
	return got, err
}

// idle sleeps until the next due time, a wake-up, or a jittered poll. What is due
// and was passed by, since somebody holds its row, is tried again ever less
// often. It answers false when the loop should end.
func (e *Engine) idle(ctx context.Context, took int) bool {
	wait := time.Duration(float64(e.o.Poll) * (0.75 + jitter()/2))
	if kinds := e.claimable(); len(kinds) > 0 {
		ask, cancel := context.WithTimeout(ctx, claimLimit)
		in, ok, err := e.o.Store.NextDue(ask, kinds)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			e.missed()
		case err != nil || !ok:
		case in > 0 || took > 0:
			e.passedBy = 0
			wait = min(wait, max(in, shortest))
		default:
			e.passedBy = min(e.passedBy+1, 20)
			wait = min(wait, shortest<<e.passedBy)
		}
	}
	return e.sleepOrWake(ctx, wait)
}

// shortest is the least pause between two claims.
const shortest = time.Millisecond

func (e *Engine) sleepOrWake(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-e.wake:
	case <-t.C:
	}
	return true
}

// claimable are the kinds of which one more could run now. What is due of the
// others is none of the claim loop's business until a place is given back, which
// wakes it.
func (e *Engine) claimable() []string {
	if e.workers.full() {
		return nil
	}
	var kinds []string
	for _, k := range e.kinds {
		if c := e.caps[k.typ]; c == nil || !c.full() {
			kinds = append(kinds, k.typ)
		}
	}
	return kinds
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (e *Engine) listenLoop(ctx context.Context) {
	if err := e.o.Store.Listen(ctx, e.wakeHere); err != nil && ctx.Err() == nil {
		e.o.Log.Warn("listening for wake-ups ended; polling goes on", "error", err)
	}
}
