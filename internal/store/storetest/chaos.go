package storetest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// randomWork lets workers, outside events, heartbeats, submits, notes and
// looks loose on each other, and audits what is left. Seeds are fixed; the
// interleaving is the machine's.
func randomWork(b *bench) {
	const rounds = 40
	var mu sync.Mutex
	rows := b.startMany(12)
	add := func(r saga.Row) { mu.Lock(); rows = append(rows, r); mu.Unlock() }
	pick := func(r *rand.Rand) saga.Row { mu.Lock(); defer mu.Unlock(); return rows[r.IntN(len(rows))] }
	var moves atomic.Int64

	actors := []func(r *rand.Rand) error{
		func(r *rand.Rand) error { return b.workers(r, &moves) },
		func(r *rand.Rand) error { return b.workers(r, &moves) },
		func(r *rand.Rand) error { return b.outsiders(r, pick, &moves) },
		func(r *rand.Rand) error { return b.outsiders(r, pick, &moves) },
		func(r *rand.Rand) error { // submits
			pullID := pick(r).AggregateID
			if r.IntN(2) == 0 {
				p, err := b.newPull()
				if err != nil {
					return err
				}
				pullID = p.ID
			}
			row, err := b.Store.StartPull(b.ctx, pullID, func(p store.Pull, old *store.Locked, now time.Time) (store.StartPull, error) {
				if old != nil && old.Row.ClosedAt.IsZero() {
					return store.StartPull{}, saga.ErrIllegalTransition
				}
				return starts(p, now, working)
			})
			if err == nil {
				add(row)
			}
			if errors.Is(err, saga.ErrIllegalTransition) {
				err = nil
			}
			return err
		},
		func(r *rand.Rand) error { // looks
			if err := b.Store.Note(b.ctx, pick(r).ID, saga.Note{Event: "seen", Actor: "ci"}); err != nil {
				return err
			}
			if _, err := b.Store.Stats(b.ctx, kindNames()); err != nil {
				return err
			}
			if _, _, err := b.Store.NextDue(b.ctx, kindNames()); err != nil {
				return err
			}
			_, err := b.Store.Sagas(b.ctx, store.SagaFilter{Limit: 5, OpenOnly: true})
			return err
		},
		func(r *rand.Rand) error { b.Advance(time.Duration(r.IntN(40)) * time.Second); return nil },
	}
	var wg sync.WaitGroup
	for n, act := range actors {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 7))
			for range rounds {
				if err := act(r); err != nil {
					b.Errorf("actor %d: %v", n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if moves.Load() < rounds {
		b.Errorf("only %d transitions: the case proves little", moves.Load())
	}
	b.audit(ids(rows))
	b.drain(rows)
	b.audit(ids(rows))
}

// workers claim a few commands, keep some alive, give one back and finish the
// rest in one batch.
func (b *bench) workers(r *rand.Rand, moves *atomic.Int64) error {
	cs, err := b.Store.Claim(b.ctx, store.Claim{Kinds: kinds(4), Max: 6, Lease: lease, Queued: queuePatience})
	if err != nil {
		return err
	}
	if len(cs) == 0 {
		b.Advance(lease) // nothing is due: a minute's rest
		return nil
	}
	var leases []store.Lease
	for _, c := range cs {
		leases = append(leases, c.Lease)
	}
	if _, err := b.Store.Heartbeat(b.ctx, leases, lease); err != nil {
		return err
	}
	if r.IntN(3) == 0 {
		if err := b.Store.Release(b.ctx, leases[:1]); err != nil {
			return err
		}
	}
	reqs, outs := make([]store.Request, len(cs)), make([]saga.Outcome, len(cs))
	for i, c := range cs {
		reqs[i] = store.Request{SagaID: c.Row.ID, Token: c.Lease.Token}
		outs[i] = []saga.Outcome{saga.Done("", nil), saga.NotYetAfter("", time.Second), saga.FailWith(saga.Transient, "x", ""),
			saga.FailWith(saga.Deterministic, "x", ""), saga.Unclear("x"), saga.Done("", nil)}[r.IntN(6)]
		if kindOf(c.Row.State) == saga.Waiting {
			outs[i] = saga.NotYet("no answer")
		}
	}
	rs, err := b.Store.Apply(b.ctx, reqs, func(i int, l store.Locked) (store.Writes, error) { return settle(cs[i], outs[i], l) })
	return tolerated(rs, err, moves)
}

// outsiders send a batch of events that often don't fit.
func (b *bench) outsiders(r *rand.Rand, pick func(*rand.Rand) saga.Row, moves *atomic.Int64) error {
	names := []saga.Name{yes, hold, saga.Resume, saga.Retry, saga.Found, saga.Close}
	var reqs []store.Request
	var events []saga.Name
	for range 1 + r.IntN(6) {
		reqs = append(reqs, store.Request{SagaID: pick(r).ID, Wait: r.IntN(2) == 0})
		n := names[r.IntN(len(names))]
		if n == saga.Close && r.IntN(4) != 0 {
			n = yes
		}
		events = append(events, n)
	}
	rs, err := b.Store.Apply(b.ctx, reqs, func(i int, l store.Locked) (store.Writes, error) {
		return decided(saga.Decide(trial, l.Row, saga.Event{Name: events[i], Actor: "ada", At: l.Now}, saga.Settings{}))
	})
	return tolerated(rs, err, moves)
}

// tolerated counts transitions and passes on the errors that no race explains.
func tolerated(rs []store.Result, err error, moves *atomic.Int64) error {
	for _, res := range rs {
		switch {
		case res.Err == nil:
			moves.Add(int64(len(res.Decision.Moves)))
		case errors.Is(res.Err, store.ErrBusy), errors.Is(res.Err, store.ErrLeaseLost),
			errors.Is(res.Err, saga.ErrIllegalTransition), errors.Is(res.Err, saga.ErrAlreadyAdvanced):
		default:
			return res.Err
		}
	}
	return err
}

// drain proves that every saga that is still open can be brought to its end:
// no command was lost on the way.
func (b *bench) drain(rows []saga.Row) {
	b.Helper()
	b.Advance(time.Hour)
	for range 10 {
		for _, c := range b.claim(200) {
			o := saga.NotDone("nothing there")
			if kindOf(c.Row.State) == saga.Running && !c.Overdue && c.Row.Pending == nil {
				o = saga.FailWith(saga.Deterministic, "the end", "")
			}
			b.must(b.finish(c, o, nil).Err, "finish")
		}
		b.Advance(askPatience)
	}
	for _, r := range rows {
		if k := kindOf(b.saga(r.ID).State); k != saga.Failed && k != saga.Final {
			b.Errorf("saga %s never ended: %+v", r.ID, b.saga(r.ID))
		}
	}
}
