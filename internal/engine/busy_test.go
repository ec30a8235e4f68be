package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// locking is a database in which somebody else holds sagas.
type locking struct {
	store.Store
	t testing.TB

	mu    sync.Mutex
	held  map[string]chan struct{} // closed when it is let go
	tries map[string]int           // that met the lock, without Wait
	waits map[string]int
}

const lockTimeout = 2 * time.Second // as postgres has it

func newLocking(t testing.TB, s store.Store) *locking {
	return &locking{Store: s, t: t, held: map[string]chan struct{}{}, tries: map[string]int{}, waits: map[string]int{}}
}

func (l *locking) lock(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[id] = make(chan struct{})
}

func (l *locking) unlock(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[id])
	delete(l.held, id)
}

// meet says whether a request may go on.
func (l *locking) meet(ctx context.Context, r store.Request) bool {
	l.mu.Lock()
	free := l.held[r.SagaID]
	switch {
	case free == nil:
	case r.Wait:
		l.waits[r.SagaID]++
	default:
		l.tries[r.SagaID]++
	}
	spins := l.tries[r.SagaID] > 100
	l.mu.Unlock()
	switch {
	case free == nil:
		return true
	case spins:
		l.t.Errorf("saga %s is asked for again and again", r.SagaID)
		select {
		case <-ctx.Done():
		case <-free:
		}
		return false
	case !r.Wait:
		return false
	}
	limit := time.NewTimer(lockTimeout)
	defer limit.Stop()
	select {
	case <-free:
		return true
	case <-limit.C:
	case <-ctx.Done():
	}
	return false
}

func (l *locking) Apply(ctx context.Context, reqs []store.Request, decide func(int, store.Locked) (store.Writes, error)) ([]store.Result, error) {
	results := make([]store.Result, len(reqs))
	var now []store.Request
	var at []int
	for i, r := range reqs {
		if !l.meet(ctx, r) {
			results[i].Err = store.ErrBusy
			continue
		}
		now, at = append(now, r), append(at, i)
	}
	got, err := l.Store.Apply(ctx, now, func(i int, lk store.Locked) (store.Writes, error) { return decide(at[i], lk) })
	if err != nil {
		return nil, err
	}
	for i, r := range got {
		results[at[i]] = r
	}
	return results, nil
}

func (l *locking) count(m map[string]int, id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return m[id]
}

// noted is a decision that moves nothing.
func noted(l store.Locked, text string) store.Writes {
	return store.Writes{Decision: saga.Decision{Row: l.Row, KeepCommand: true, Notes: []saga.Note{{Event: "test", Detail: text}}}}
}

// Sagas that somebody holds for ever are waited for beside everybody else, and
// those who want them are told in time.
func TestLockedSagasStallNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := newLocking(t, r.store)
		e := r.start(func(o *engine.Options) { o.Store, o.Poll = s, time.Second })
		const many = 20
		answers := make(chan error, many)
		began := time.Now()
		for range many {
			id := r.begin()
			r.untilState(id, pull.Merged)
			s.lock(id)
			go func() {
				_, err := e.Apply(context.Background(), id, func(l store.Locked, _ saga.Settings) (store.Writes, error) { return noted(l, ""), nil })
				answers <- err
			}()
		}
		synctest.Wait() // all are waited for, or wait for their turn to be
		for range 5 {
			row := r.untilEnd(r.begin(), pull.Merged)
			if took := row.UpdatedAt.Sub(row.CreatedAt); took > 100*time.Millisecond {
				t.Errorf("a neighbour took %s", took)
			}
		}
		for range many {
			if err := <-answers; !errors.Is(err, store.ErrBusy) {
				t.Errorf("who wants a saga that is held is told %v", err)
			}
		}
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("they were told after %s", took)
		}
	})
}

// A saga that stays busy is waited for by its lock, not asked for in a circle,
// and its commits are written in the order in which they came.
func TestTheCommitsOfABusySagaWaitInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := newLocking(t, r.store)
		id, other := r.begin(), r.begin()
		e := r.start(func(o *engine.Options) { o.Store = s })
		r.untilState(id, pull.Merged)
		r.untilState(other, pull.Merged)
		s.lock(id)

		// Some pile up behind a commit that is under way, so that they come at once.
		gate := make(chan struct{})
		var answered sync.WaitGroup
		send := func(to, text string) {
			answered.Go(func() {
				if _, err := e.Apply(context.Background(), to, func(l store.Locked, _ saga.Settings) (store.Writes, error) {
					if to == other {
						<-gate
					}
					return noted(l, text), nil
				}); err != nil {
					t.Errorf("%s: %v", text, err)
				}
			})
			synctest.Wait()
		}
		send(other, "holds the committer")
		var want []string
		for i := range 6 {
			text := fmt.Sprint("note ", i)
			want = append(want, "test: "+text)
			send(id, text)
			if i == 2 {
				close(gate)
				synctest.Wait()
			}
		}
		time.Sleep(lockTimeout + lockTimeout/2) // one wait was in vain
		if tries, waits := s.count(s.tries, id), s.count(s.waits, id); tries != 2 || waits != 2 {
			t.Errorf("the busy saga was asked for %d times and waited for %d times, expected 2 and 2", tries, waits)
		}
		at := time.Now()
		s.unlock(id)
		answered.Wait()
		if took := time.Since(at); took != 0 {
			t.Errorf("written %s after the saga was free", took)
		}
		if _, notes := r.history(id); !slices.Equal(notes, want) {
			t.Errorf("the order of its commits: %v", notes)
		}
	})
}
