package storetest

import (
	"sync"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func claimCounts(b *bench) {
	row := b.start()
	if row.Command == nil || row.Command.Attempt != 0 || !row.Command.DeadlineAt.IsZero() {
		b.Fatalf("a new command: %+v", row.Command)
	}
	c := b.claimOne()
	q := c.Row.Command
	if c.Lease.SagaID != row.ID || c.Lease.Token == "" || q.LeaseToken != c.Lease.Token || c.Overdue {
		b.Errorf("claimed: %+v, command %+v", c, q)
	}
	if q.Attempt != 1 || !q.LeaseUntil.Equal(c.Now.Add(lease)) || !q.DeadlineAt.Equal(c.Now.Add(workPatience)) {
		b.Errorf("command at %v: %+v", c.Now, q)
	}
	r := b.saga(row.ID)
	if !sameCommand(r.Command, q) || r.Version != 1 {
		b.Errorf("the row says %+v, the claim %+v", r.Command, q)
	}
	if c.Row.State != working || c.Row.AggregateID != row.AggregateID || c.Row.About != row.About {
		b.Errorf("the claim's row: %+v", c.Row)
	}
	if cs := b.claim(10); len(cs) != 0 {
		b.Errorf("claimed twice")
	}
	b.audit([]string{row.ID})
}

func claimCaps(b *bench) {
	var rows []saga.Row
	for range 6 {
		rows = append(rows, b.start())
		b.Advance(time.Second)
	}
	b.startIn(asking)
	b.Advance(askEvery + time.Second)
	k := kinds(4)
	got := b.claimWith(store.Claim{Kinds: k, Max: 100, Lease: lease, Queued: queuePatience})
	var work []string
	for _, c := range got {
		if c.Row.State == working {
			work = append(work, c.Row.ID)
		}
	}
	if len(got) != 5 || !sameSet(work, ids(rows[:4])) {
		b.Errorf("claimed %v of WORKING, want the 4 oldest of %v; %d in all, want 5", work, ids(rows), len(got))
	}
	for i := range k {
		k[i].Cap = 0
	}
	if cs := b.claimWith(store.Claim{Kinds: k, Max: 100, Lease: lease, Queued: queuePatience}); len(cs) != 0 {
		b.Errorf("claimed %d with a cap of 0", len(cs))
	}
	if cs := b.claimWith(store.Claim{Kinds: kinds(9), Max: 1, Lease: lease, Queued: queuePatience}); len(cs) != 1 || cs[0].Row.ID != rows[4].ID {
		b.Errorf("claimed %v, want the oldest that is left, %s", claimedIDs(cs), rows[4].ID)
	}
	if cs := b.claimWith(store.Claim{Kinds: kinds(9), Max: 0, Lease: lease, Queued: queuePatience}); len(cs) != 0 {
		b.Errorf("claimed %d with a maximum of 0", len(cs))
	}
}

func claimIsFair(b *bench) {
	for range 20 {
		b.start() // a crowd of one kind, all of it older
	}
	b.Advance(time.Second)
	for range 5 {
		b.startIn(finishing)
	}
	b.Advance(time.Second)
	count := map[saga.State]int{}
	for _, c := range b.claim(8) {
		count[c.Row.State]++
	}
	if count[working] != 4 || count[finishing] != 4 {
		b.Errorf("claimed %v, want four of each", count)
	}
	count = map[saga.State]int{}
	for _, c := range b.claim(8) {
		count[c.Row.State]++
	}
	if count[working] != 7 || count[finishing] != 1 {
		b.Errorf("claimed %v, want what one kind leaves to go to the other", count)
	}
}

func concurrentClaims(b *bench) {
	rows := b.startMany(60)
	var mu sync.Mutex
	got := map[string]int{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for empty := 0; empty < 3; {
				cs, err := b.Store.Claim(b.ctx, store.Claim{Kinds: kinds(5), Max: 5, Lease: lease, Queued: queuePatience})
				if err != nil {
					b.Errorf("claim: %v", err)
					return
				}
				if len(cs) == 0 {
					empty++
				}
				mu.Lock()
				for _, c := range cs {
					got[c.Row.ID]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, c := range b.claim(100) { // what a locked neighbour was passed by for
		got[c.Row.ID]++
	}
	for _, r := range rows {
		if got[r.ID] != 1 {
			b.Errorf("saga %s was claimed %d times", r.ID, got[r.ID])
		}
	}
	b.audit(ids(rows))
}

func expiredLeaseIsClaimedAgain(b *bench) {
	row := b.start()
	first := b.claimOne()
	b.Advance(lease - 20*time.Second)
	if cs := b.claim(1); len(cs) != 0 {
		b.Fatal("claimed under a lease")
	}
	b.Advance(21 * time.Second)
	second := b.claimOne()
	q := second.Row.Command
	if q.Attempt != 2 || !q.DeadlineAt.Equal(first.Row.Command.DeadlineAt) || q.LeaseToken == first.Lease.Token {
		b.Errorf("second claim: %+v, first %+v", q, first.Row.Command)
	}
	b.audit([]string{row.ID})
}

func runningDeadline(b *bench) {
	row := b.start()
	b.must(b.finish(b.claimOne(), saga.NotYetAfter("building", time.Hour), nil).Err, "not yet")
	// The last look is at the deadline, not after it.
	if q := b.saga(row.ID).Command; !q.AvailableAt.Equal(q.DeadlineAt) {
		b.Errorf("due at %v, deadline %v", q.AvailableAt, q.DeadlineAt)
	}
	b.Advance(workPatience - 30*time.Second)
	if cs := b.claim(1); len(cs) != 0 {
		b.Fatal("claimed before it was due")
	}
	b.Advance(time.Minute)
	c := b.claimOne()
	if !c.Overdue || c.Row.Command.Attempt != 0 {
		b.Fatalf("overdue %v, command %+v", c.Overdue, c.Row.Command)
	}
	res := b.finish(c, saga.NotYet("still building"), nil)
	b.must(res.Err, "the last look")
	r := b.wantState(row.ID, broken)
	if r.Failure == nil || r.Failure.Kind != saga.UnknownOutcome || r.Failure.Step != working {
		b.Errorf("failure: %+v", r.Failure)
	}
	b.audit([]string{row.ID})
}

func waitingDeadline(b *bench) {
	ask, wait := b.startIn(asking), b.startIn(holding)
	b.Advance(askEvery + time.Second)
	c := b.claimOne()
	if c.Row.ID != ask.ID || c.Overdue || c.Row.Command.Attempt != 0 {
		b.Fatalf("self-check: %+v", c)
	}
	b.must(b.finish(c, saga.NotYet("no answer"), nil).Err, "not yet")
	if q := b.saga(ask.ID).Command; !about(q.AvailableAt, c.Now.Add(askEvery)) || q.Checks != 1 || !q.DeadlineAt.Equal(ask.Command.DeadlineAt) {
		b.Errorf("after a look at %v: %+v", c.Now, q)
	}
	b.Advance(holdPatience)
	for _, c := range b.claim(10) {
		if c.Overdue != (c.Row.ID == wait.ID) {
			b.Errorf("%s: overdue %v", c.Row.State, c.Overdue)
		}
		b.must(b.finish(c, saga.NotYet("no answer"), nil).Err, "not yet")
	}
	b.wantState(wait.ID, broken)
	b.wantState(ask.ID, asking)
	b.Advance(askPatience)
	c = b.claimOne()
	if !c.Overdue {
		b.Error("a day later it isn't overdue")
	}
	b.must(b.finish(c, saga.NotYet("no answer"), nil).Err, "not yet")
	b.wantState(ask.ID, broken)
	b.audit([]string{ask.ID, wait.ID})
}

func queueLimit(b *bench) {
	row := b.start()
	b.Advance(queuePatience + time.Second)
	c := b.claimOne()
	if !c.Overdue || c.Row.Command.Attempt != 0 || !c.Row.Command.DeadlineAt.IsZero() {
		b.Fatalf("overdue %v, command %+v", c.Overdue, c.Row.Command)
	}
	b.must(b.finish(c, saga.NotDone("nothing there"), nil).Err, "look")
	r := b.wantState(row.ID, broken)
	if h := b.history(row.ID); r.Failure == nil || r.Failure.Kind != saga.Transient || h[len(h)-1].Event != saga.QueueLimit {
		b.Errorf("failure %+v, history %+v", r.Failure, h)
	}
	// A retry is a new stay in the queue.
	b.moved(row.ID, saga.Retry)
	if c := b.claimOne(); c.Overdue || c.Row.Command.Attempt != 1 {
		b.Errorf("after retry: overdue %v, %+v", c.Overdue, c.Row.Command)
	}
	// A command that was claimed in time isn't measured by the queue's limit.
	b.Advance(lease + time.Second)
	if c := b.claimOne(); c.Overdue {
		b.Errorf("overdue: %+v", c.Row.Command)
	}
	b.audit([]string{row.ID})
}

func overdueOnly(b *bench) {
	old := b.start()
	wait := b.startIn(holding)
	tried := b.start()
	b.must(b.finish(b.claimOf(tried.ID), saga.NotYetAfter("", time.Second), nil).Err, "not yet")
	in := store.Claim{Kinds: kinds(10), Max: 10, Lease: lease, Queued: queuePatience, OverdueOnly: true}
	if cs := b.claimWith(in); len(cs) != 0 {
		b.Fatalf("nothing is overdue, claimed %v", claimedIDs(cs))
	}
	b.Advance(workPatience + time.Second)
	if cs := b.claimWith(in); len(cs) != 1 || cs[0].Row.ID != tried.ID || !cs[0].Overdue {
		b.Fatalf("claimed %v, want the one past its deadline", claimedIDs(cs))
	}
	b.Advance(holdPatience)
	fresh := b.start()
	cs := b.claimWith(in)
	if !sameSet(claimedIDs(cs), []string{old.ID, wait.ID, tried.ID}) {
		b.Errorf("claimed %v, want all but the fresh one", claimedIDs(cs))
	}
	if c := b.claimOne(); c.Row.ID != fresh.ID || c.Overdue {
		b.Errorf("the fresh one: %+v", c)
	}
}

// claimOf claims everything that is due and gives back all but one.
func (b *bench) claimOf(id string) store.Claimed {
	b.Helper()
	var found store.Claimed
	var rest []store.Lease
	for _, c := range b.claim(100) {
		if c.Row.ID == id {
			found = c
		} else {
			rest = append(rest, c.Lease)
		}
	}
	b.must(b.Store.Release(b.ctx, rest), "release")
	if found.Row.ID == "" {
		b.Fatalf("saga %s isn't due", id)
	}
	return found
}

func unknownKindsAreParked(b *bench) {
	rows := b.startMany(3)
	b.startIn(finishing)
	other := []store.ClaimKind{{Type: typeOf(finishing), Cap: 10}, {Type: "trial/2/WORKING/Work", Cap: 10}, {Type: "", Cap: 10}}
	if cs := b.claimWith(store.Claim{Kinds: other, Max: 10, Lease: lease, Queued: queuePatience}); len(cs) != 1 || cs[0].Row.State != finishing {
		b.Errorf("claimed %v", claimedIDs(cs))
	}
	st, err := b.Store.Stats(b.ctx, []string{typeOf(finishing)})
	b.must(err, "stats")
	if st.Parked != 3 || st.Due != 0 || st.Leased != 1 || !st.Oldest.IsZero() {
		b.Errorf("stats: %+v", st)
	}
	if st, err = b.Store.Stats(b.ctx, kindNames()); err != nil || st.Parked != 0 || st.Due != 3 {
		b.Errorf("stats with all kinds known: %+v, %v", st, err)
	}
	if st, err = b.Store.Stats(b.ctx, nil); err != nil || st.Parked != 3 {
		b.Errorf("stats with no kind known: %+v, %v", st, err)
	}
	for _, r := range rows {
		if q := b.saga(r.ID).Command; q.Attempt != 0 || q.LeaseToken != "" {
			b.Errorf("a parked command was touched: %+v", q)
		}
	}
	if got := claimedIDs(b.claim(10)); !sameSet(got, ids(rows)) {
		b.Errorf("who knows the kind claims it: %v, want %v", got, ids(rows))
	}
}

func nextDue(b *bench) {
	due := func(kinds ...string) (time.Duration, bool) {
		b.Helper()
		in, ok, err := b.Store.NextDue(b.ctx, kinds)
		b.must(err, "next due")
		return in, ok
	}
	// in is measured by the database's clock: the time named may only be this far off.
	want := func(what string, at time.Time, kinds ...string) {
		b.Helper()
		in, ok := due(kinds...)
		if now := b.now(); !ok || in <= 0 || !about(now.Add(in), at) {
			b.Errorf("%s: due in %v (%v) at %v, want %v", what, in, ok, now, at)
		}
	}
	wantNow := func(what string) {
		b.Helper()
		if in, ok := due(kindNames()...); !ok || in != 0 {
			b.Errorf("%s: due in %v (%v), want at once", what, in, ok)
		}
	}
	if in, ok := due(kindNames()...); ok {
		b.Fatalf("an empty store is due in %v", in)
	}
	wait := b.startIn(holding)
	want("deadline", wait.Command.AvailableAt, kindNames()...)
	ask := b.startIn(asking)
	want("self-check", ask.Command.AvailableAt, kindNames()...)
	row := b.start()
	wantNow("a new command")
	want("of one kind", wait.Command.AvailableAt, typeOf(holding))
	for _, kinds := range [][]string{{"other"}, nil} {
		if in, ok := due(kinds...); ok {
			b.Errorf("of kinds %v: due in %v", kinds, in)
		}
	}
	c := b.claimOne()
	want("a lease's end", c.Row.Command.LeaseUntil, kindNames()...)
	b.Advance(lease + time.Second)
	wantNow("after the lease's end")
	b.moved(row.ID, hold)
	want("self-check", ask.Command.AvailableAt, kindNames()...)
}
