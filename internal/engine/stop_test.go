package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// ill is a database that stops working well when it is told to.
type ill struct {
	store.Store
	since atomic.Bool
	deaf  bool                            // what it does can't be cancelled
	apply func(ctx context.Context) error // before the real one
	claim func(ctx context.Context) error
	after func([]store.Result) []store.Result
}

func (s *ill) Apply(ctx context.Context, reqs []store.Request, decide func(int, store.Locked) (store.Writes, error)) ([]store.Result, error) {
	if s.apply != nil && s.since.Load() {
		if err := s.apply(ctx); err != nil {
			return nil, err
		}
	}
	if s.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	rs, err := s.Store.Apply(ctx, reqs, decide)
	if err == nil && s.after != nil && s.since.Load() {
		rs = s.after(rs)
	}
	return rs, err
}

func (s *ill) Claim(ctx context.Context, in store.Claim) ([]store.Claimed, error) {
	if s.claim != nil && s.since.Load() {
		if err := s.claim(ctx); err != nil {
			return nil, err
		}
	}
	return s.Store.Claim(ctx, in)
}

// Stop ends soon after its context, whatever the database does, and leaves no
// commit without an answer.
func TestStopIsBoundedWhateverTheDatabaseDoes(t *testing.T) {
	t.Parallel()
	const grace, patience = 4 * time.Second, 3 * time.Second
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		ill     func(gate chan struct{}) *ill
		told    error // what a person's event is told
		forever bool
	}{
		"it answers with errors": {told: errDown, ill: func(chan struct{}) *ill {
			return &ill{apply: func(context.Context) error { return errDown }}
		}},
		"it hangs": {told: context.Canceled, ill: func(chan struct{}) *ill { return &ill{apply: hang, claim: hang} }},
		"it hangs and ignores its context": {told: store.ErrUnknown, forever: true, ill: func(gate chan struct{}) *ill {
			return &ill{deaf: true, apply: func(context.Context) error { <-gate; return nil }}
		}},
		"a claim ignores its context": {forever: true, ill: func(gate chan struct{}) *ill {
			return &ill{claim: func(context.Context) error { <-gate; return nil }}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				gate := make(chan struct{})
				s := c.ill(gate)
				s.Store = r.store
				entered := make(chan struct{})
				r.steps[pull.CmdMerge] = engine.Step{Look: notDone, Perform: func(ctx context.Context, _ engine.Run) saga.Outcome {
					close(entered)
					<-ctx.Done()
					return saga.Unclear("cut off")
				}}
				e := r.start(func(o *engine.Options) { o.Store, o.Lease, o.Grace, o.Poll = s, 20*time.Minute, grace, time.Second })
				done := r.begin()
				r.untilState(done, pull.Merging)
				<-entered
				s.since.Store(true)
				time.Sleep(3 * time.Second) // a claim has met it
				answers := make(chan error, 2)
				go func() {
					_, err := e.Apply(context.Background(), done, func(l store.Locked, _ saga.Settings) (store.Writes, error) { return noted(l, "asked"), nil })
					answers <- err
				}()
				synctest.Wait()

				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				began := time.Now()
				err := e.Stop(ctx)
				if took := time.Since(began); took > patience+2*grace+grace/10 {
					t.Errorf("Stop took %s, with %s of patience and a Grace of %s", took, patience, grace)
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Stop says %v", err)
				}
				synctest.Wait()
				if len(answers) != 1 {
					t.Fatalf("%d answers", len(answers))
				}
				if got := <-answers; !errors.Is(got, c.told) {
					t.Errorf("the event was told %v, expected %v", got, c.told)
				}
				if _, err := e.Send(context.Background(), done, saga.Event{Name: saga.Close}); err == nil {
					t.Error("an event was taken after the end")
				}
				before := r.row(done)
				_, notes := r.history(done)
				close(gate)
				synctest.Wait()
				_, later := r.history(done)
				if after := r.row(done); c.forever && c.told != nil && (after.Version != before.Version || len(later) != len(notes)) {
					t.Errorf("what was answered as unknown was decided later: %v", later)
				}
			})
		})
	}
}

// A commit whose answer is unknown is not repeated by the engine, and is told so.
func TestAnUnknownCommitStaysUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := &ill{Store: r.store, after: func(rs []store.Result) []store.Result {
			for i := range rs {
				rs[i] = store.Result{Err: store.ErrUnknown}
			}
			return rs
		}}
		e := r.start(func(o *engine.Options) { o.Store = s })
		id := r.begin()
		r.untilState(id, pull.Merged)
		s.since.Store(true)
		_, err := e.Apply(t.Context(), id, func(l store.Locked, _ saga.Settings) (store.Writes, error) { return noted(l, "once"), nil })
		if _, notes := r.history(id); !errors.Is(err, store.ErrUnknown) || len(notes) != 1 {
			t.Errorf("%v, notes %v", err, notes)
		}
		s.since.Store(false)
	})
}

// A call that hangs is cut off, and what it was to write is written by another.
func TestACommitThatHangsIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var hung atomic.Bool
		s := &ill{Store: r.store, apply: func(ctx context.Context) error {
			if hung.Swap(true) {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		s.since.Store(true)
		r.start(func(o *engine.Options) { o.Store, o.Lease = s, time.Minute })
		row := r.untilEnd(r.begin(), pull.Merged)
		if took := row.UpdatedAt.Sub(row.CreatedAt); took < time.Second || took > 11*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
