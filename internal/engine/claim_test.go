package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// lossy is a store whose network drops what it is sent.
type lossy struct {
	store.Store
	drops  atomic.Bool
	claims atomic.Int32
}

func (s *lossy) NextDue(ctx context.Context, kinds []string) (time.Duration, bool, error) {
	if s.drops.Load() {
		select {
		case <-ctx.Done():
		case <-time.After(15 * time.Minute): // TCP gives up
		}
		return 0, false, errDown
	}
	return s.Store.NextDue(ctx, kinds)
}

func (s *lossy) Claim(ctx context.Context, in store.Claim) ([]store.Claimed, error) {
	s.claims.Add(1)
	if s.drops.Load() {
		return nil, errDown
	}
	return s.Store.Claim(ctx, in)
}

// One call whose answer is lost on the way stops the claim loop no longer than
// others may: it works again as soon as the database does.
func TestALostAnswerDoesNotStopTheClaimLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &lossy{Store: r.store}
		e := r.start(func(o *engine.Options) { o.Store, o.Poll, o.Lease = s, time.Second, time.Minute })
		time.Sleep(time.Minute)
		s.drops.Store(true)
		time.Sleep(10 * time.Minute)
		s.drops.Store(false)
		id := r.begin()
		e.Wake(t.Context())
		time.Sleep(15 * time.Second) // within one call's limit
		if row := r.row(id); row.State != pull.Merged {
			t.Errorf("%s", row.State)
		}
		if err := e.Healthy(); err != nil {
			t.Error(err)
		}
	})
}

// Looks beside full workers are bounded in all, not per claim, and asked for
// once a poll, however often somebody wakes the loop.
func TestLooksBesideTheWorkersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &lossy{Store: r.store}
		gate := make(chan struct{})
		var now, most, looks atomic.Int32
		r.set.Queued = time.Minute
		r.steps[pull.CmdValidate] = engine.Step{Perform: func(context.Context, engine.Run) saga.Outcome { <-gate; return saga.Done("", nil) },
			Look: func(ctx context.Context, _ engine.Run) saga.Outcome {
				looks.Add(1)
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				defer now.Add(-1)
				<-ctx.Done()
				return saga.NotDone("")
			}}
		r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: 24 * time.Hour}
		for range 8 {
			r.begin()
		}
		e := r.start(func(o *engine.Options) { o.Store, o.Workers, o.Poll = s, 8, time.Second })
		synctest.Wait()
		for range 50 {
			r.begin()
		}
		r.clock.advance(2 * time.Minute)
		before := s.claims.Load()
		for range 500 {
			e.Wake(t.Context())
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
		}
		if n := s.claims.Load() - before; n > 6 {
			t.Errorf("%d claims in five seconds", n)
		}
		if most.Load() != 2 { // a quarter of the workers
			t.Errorf("%d looks at once", most.Load())
		}
		time.Sleep(time.Minute)
		if n := looks.Load(); n < 8 {
			t.Errorf("only %d looks in a minute", n)
		}
		close(gate)
		time.Sleep(time.Minute)
	})
}

// locked is a store in which something is due that somebody else holds.
type locked struct {
	store.Store
	claims atomic.Int32
}

func (s *locked) Claim(context.Context, store.Claim) ([]store.Claimed, error) {
	s.claims.Add(1)
	return nil, nil
}
func (s *locked) NextDue(context.Context, []string) (time.Duration, bool, error) { return 0, true, nil }

// What is due and can't be taken is asked for ever less often, down to the poll.
func TestWhatIsPassedByIsAskedForLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &locked{Store: r.store}
		r.start(func(o *engine.Options) { o.Store, o.Poll = s, time.Second })
		time.Sleep(time.Minute)
		if n := s.claims.Load(); n < 40 || n > 120 {
			t.Errorf("%d claims in a minute, with a poll of one second", n)
		}
	})
}

// A timer is met when it is due, however long nothing was: not a poll later.
func TestATimerIsMetAfterAnIdleTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.set.Polls[pull.Validating] = saga.Poll{Long: 90 * time.Minute}
		looked := make(chan time.Time, 2)
		r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
			looked <- time.Now()
			return saga.NotYet("")
		}}
		r.set.Deadlines = map[saga.State]time.Duration{pull.Validating: 24 * time.Hour}
		r.start(func(o *engine.Options) { o.Poll = time.Minute })
		r.begin()
		first := <-looked
		if d := (<-looked).Sub(first) - 90*time.Minute; d > time.Second {
			t.Errorf("%s late", d)
		}
	})
}

// deaf is a store whose heartbeats are never answered.
type deaf struct{ store.Store }

func (deaf) Heartbeat(ctx context.Context, _ []store.Lease, _ time.Duration) (store.Beat, error) {
	<-ctx.Done()
	return store.Beat{}, errDown
}

// A step is cut off before its lease ends, whatever the beats do meanwhile:
// another instance may claim at the very end.
func TestAStepEndsBeforeItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease = 31 * time.Second
		r := newRig(t)
		took := make(chan time.Duration, 1)
		r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: func(ctx context.Context, run engine.Run) saga.Outcome {
			if run.Row.Command.Attempt > 1 {
				return saga.Done("", nil)
			}
			began := time.Now()
			<-ctx.Done()
			took <- time.Since(began)
			return saga.Unclear("cut off")
		}}
		r.begin()
		r.start(func(o *engine.Options) { o.Store, o.Lease = deaf{r.store}, lease })
		if d := <-took; d > lease || d < lease-3*time.Second {
			t.Errorf("cut off after %s of a lease of %s", d, lease)
		}
	})
}
