package engine_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// watched is a database that counts what the claim loop asks, and lets a test
// stand between the engine's decisions and their writing.
type watched struct {
	store.Store
	claims, nextDues atomic.Int32
	decided          func(l store.Locked, decide func(store.Locked) (store.Writes, error)) (store.Writes, error)
}

func (w *watched) Claim(ctx context.Context, in store.Claim) ([]store.Claimed, error) {
	w.claims.Add(1)
	return w.Store.Claim(ctx, in)
}

func (w *watched) NextDue(ctx context.Context, kinds []string) (time.Duration, bool, error) {
	w.nextDues.Add(1)
	return w.Store.NextDue(ctx, kinds)
}

func (w *watched) Apply(ctx context.Context, reqs []store.Request, decide func(int, store.Locked) (store.Writes, error)) ([]store.Result, error) {
	return w.Store.Apply(ctx, reqs, func(i int, l store.Locked) (store.Writes, error) {
		if w.decided == nil {
			return decide(i, l)
		}
		return w.decided(l, func(l store.Locked) (store.Writes, error) { return decide(i, l) })
	})
}

// A worker that becomes free while all were busy claims what waits, and does not
// leave it to the poll. So does a place of a command with a cap.
func TestAPlaceThatBecomesFreeIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*rig, *engine.Options){
		"a worker": func(_ *rig, o *engine.Options) { o.Workers = 1 },
		"a place of a command with a cap": func(r *rig, _ *engine.Options) {
			r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: r.steps[pull.CmdValidate].Perform, Cap: 1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				gate := make(chan struct{})
				r.steps[pull.CmdValidate] = engine.Step{Look: notDone, Perform: func(context.Context, engine.Run) saga.Outcome {
					<-gate
					return saga.Done("", nil)
				}}
				s := &watched{Store: r.store}
				ids := []string{r.begin(), r.begin(), r.begin()}
				r.start(func(o *engine.Options) {
					o.Store, o.Poll, o.Lease = s, 24*time.Hour, 24*time.Hour
					limit(r, o)
				})
				synctest.Wait()
				time.Sleep(time.Minute)
				synctest.Wait()
				if c, n := s.claims.Load(), s.nextDues.Load(); c > 3 || n > 3 {
					t.Errorf("nothing could be claimed, and the claim loop asked for work %d times and when there is some %d times in a minute", c, n)
				}
				began := time.Now()
				close(gate)
				synctest.Wait()
				for _, id := range ids {
					if row := r.row(id); row.State != pull.Merged || time.Since(began) != 0 {
						t.Errorf("%s after %s", row.State, time.Since(began))
					}
				}
			})
		})
	}
}

// What a commit took for the saga's next command comes back where the store did
// not keep it for this worker.
func TestCapacityComesBackWhereTheLeaseIsNotKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.steps[pull.CmdMerge] = engine.Step{Perform: ok, Look: notDone, Cap: 1}
		s := &watched{Store: r.store, decided: func(l store.Locked, decide func(store.Locked) (store.Writes, error)) (store.Writes, error) {
			w, err := decide(l)
			w.Keep = nil
			return w, err
		}}
		r.start(func(o *engine.Options) { o.Store = s })
		for range 3 {
			r.untilState(r.begin(), pull.Merged)
		}
	})
}

// A decision may be asked again and answer otherwise: what the first answer took
// must not stay taken.
func TestCapacityIsThatOfTheLastDecision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.steps[pull.CmdMerge] = engine.Step{Perform: ok, Look: notDone, Cap: 1}
		// The outcome of a notification is first decided as one of a validation,
		// whose next command has a cap; the next one of a notification has none.
		s := &watched{Store: r.store, decided: func(l store.Locked, decide func(store.Locked) (store.Writes, error)) (store.Writes, error) {
			if l.Row.State == pull.Notifying {
				other := l
				other.Row.State = pull.Validating
				if w, err := decide(other); err != nil || w.Keep == nil {
					t.Errorf("nothing was reserved: %v", err)
				}
			}
			return decide(l)
		}}
		r.start(func(o *engine.Options) { o.Store = s })
		for range 3 {
			id := r.begin()
			r.untilState(id, pull.Merged)
			moves, _ := r.history(id)
			if !slices.Equal(moves, path) {
				t.Errorf("it went %s", strings.Join(moves, ", "))
			}
		}
	})
}
