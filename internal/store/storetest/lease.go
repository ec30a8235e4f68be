package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func contains(ids []string, id string) bool { return slices.Contains(ids, id) }

func lostLeaseChangesNoState(b *bench) {
	row := b.start()
	late := b.claimOne()
	b.Advance(lease + time.Second)
	holder := b.claimOne()
	if holder.Lease.Token == late.Lease.Token {
		b.Fatal("two claims share a token")
	}
	before := b.saga(row.ID)
	res := b.finish(late, saga.Done("merged", map[string]string{"commit": "abc", "other": "x"}), &store.Keep{Token: newToken(), Lease: lease})
	b.wantErr(res.Err, store.ErrLeaseLost, "a late result")
	if res.Kept {
		b.Error("a late result kept a command")
	}
	r := b.wantState(row.ID, working)
	if r.Version != 1 || string(compact(r.Data)) != `{"commit":"abc"}` {
		b.Errorf("a late result may add what only grows and nothing else: version %d, data %s", r.Version, r.Data)
	}
	if !sameCommand(r.Command, before.Command) {
		b.Errorf("a late result touched the holder's command: %+v, was %+v", r.Command, before.Command)
	}
	if h := b.history(row.ID); len(h) != 2 || !h[1].IsNote || h[1].Event != "late" {
		b.Errorf("history: %+v", h)
	}
	// The holder goes on as if nothing had been.
	b.must(b.finish(holder, saga.Done("", nil), nil).Err, "the holder's result")
	b.wantState(row.ID, asking)
	// A result under a token that is used up is late as well.
	b.wantErr(b.finish(holder, saga.Done("", nil), nil).Err, store.ErrLeaseLost, "the same result again")
	b.wantErr(b.finish(store.Claimed{Row: row, Lease: store.Lease{SagaID: row.ID, Token: "no-uuid"}}, saga.Done("", nil), nil).Err,
		store.ErrLeaseLost, "a token that nobody made")
	if r := b.wantState(row.ID, asking); r.Version != 2 {
		b.Errorf("version %d", r.Version)
	}
	b.audit([]string{row.ID})
}

func keepLeasesTheNextCommand(b *bench) {
	row := b.startIn(asking)
	keep := &store.Keep{Token: newToken(), Lease: lease, Deadline: workPatience}
	rs, err := b.Store.Apply(b.ctx, []store.Request{{SagaID: row.ID}}, func(_ int, l store.Locked) (store.Writes, error) {
		w, err := decided(saga.Decide(trial, l.Row, saga.Event{Name: yes, At: l.Now}, saga.Settings{}))
		w.Keep = keep
		return w, err
	})
	b.must(err, "apply")
	b.must(rs[0].Err, "yes")
	c := rs[0].Decision.Row.Command
	if !rs[0].Kept || c == nil || c.LeaseToken != keep.Token || c.Attempt != 1 || c.Type != typeOf(finishing) {
		b.Fatalf("kept %v: %+v", rs[0].Kept, c)
	}
	r := b.saga(row.ID)
	if !sameCommand(r.Command, c) {
		b.Errorf("the row says %+v, the answer %+v", r.Command, c)
	}
	if !about(c.LeaseUntil, b.now().Add(lease)) || !about(c.DeadlineAt, b.now().Add(workPatience)) {
		b.Errorf("lease until %v, deadline %v at %v", c.LeaseUntil, c.DeadlineAt, b.now())
	}
	if cs := b.claim(10); len(cs) != 0 {
		b.Errorf("somebody else claimed a kept command: %+v", cs)
	}
	// A kept command can be given back like a claimed one.
	b.must(b.Store.Release(b.ctx, []store.Lease{{SagaID: row.ID, Token: keep.Token}}), "release")
	if q := b.saga(row.ID).Command; q.Attempt != 0 || q.LeaseToken != "" || !q.DeadlineAt.IsZero() {
		b.Errorf("after release: %+v", q)
	}
	b.must(b.finish(b.claimOne(), saga.NotYetAfter("", time.Second), nil).Err, "not yet")
	b.Advance(2 * time.Second)
	b.must(b.finish(b.claimOne(), saga.FailWith(saga.Deterministic, "no", ""), nil).Err, "fail")
	rs, err = b.Store.Apply(b.ctx, []store.Request{{SagaID: row.ID}}, func(_ int, l store.Locked) (store.Writes, error) {
		w, err := decided(saga.Decide(trial, l.Row, saga.Event{Name: saga.Retry, At: l.Now}, saga.Settings{}))
		w.Keep = keep
		return w, err
	})
	b.must(err, "apply")
	b.must(rs[0].Err, "retry")
	held := store.Claimed{Row: rs[0].Decision.Row, Lease: store.Lease{SagaID: row.ID, Token: keep.Token}}
	b.must(b.finish(held, saga.Done("", nil), keep).Err, "the kept command's result")
	b.wantState(row.ID, done)
	b.audit([]string{row.ID})
}

func keepIgnoresWhatIsNotDue(b *bench) {
	rows := b.startMany(2)
	for i, c := range b.claim(2) {
		o := saga.Done("", nil) // leads to a self-check that is due later
		if i == 1 {
			o = saga.FailWith(saga.Deterministic, "no", "") // leads to no command
		}
		res := b.finish(c, o, &store.Keep{Token: newToken(), Lease: lease})
		b.must(res.Err, "finish")
		if res.Kept || (res.Decision.Row.Command != nil && res.Decision.Row.Command.LeaseToken != "") {
			b.Errorf("kept %+v", res.Decision.Row.Command)
		}
	}
	b.audit(ids(rows))
}

func releaseGivesTheAttemptBack(b *bench) {
	row := b.start()
	before := b.saga(row.ID).Command
	c := b.claimOne()
	b.must(b.Store.Release(b.ctx, []store.Lease{c.Lease, {SagaID: row.ID, Token: newToken()}, {SagaID: newID(), Token: newToken()}}), "release")
	if after := b.saga(row.ID).Command; !sameCommand(after, before) {
		b.Errorf("after release %+v, before the claim %+v", after, before)
	}
	// A lost lease is ignored.
	again := b.claimOne()
	held := b.saga(row.ID).Command
	b.must(b.Store.Release(b.ctx, []store.Lease{c.Lease, {SagaID: "x", Token: "y"}}), "release a lost lease")
	if after := b.saga(row.ID).Command; !sameCommand(after, held) || after.LeaseToken != again.Lease.Token {
		b.Errorf("a lost lease's release touched the holder's: %+v, was %+v", after, held)
	}
	b.wantErr(b.finish(c, saga.Done("", nil), nil).Err, store.ErrLeaseLost, "a result under a released lease")
	b.must(b.finish(again, saga.Done("", nil), nil).Err, "the holder's result")
}

func releaseKeepsEarlierAttempts(b *bench) {
	// A crashed worker's attempt counts, the released one's doesn't.
	row := b.start()
	b.claimOne()
	b.Advance(lease + time.Second)
	c := b.claimOne()
	if c.Row.Command.Attempt != 2 {
		b.Fatalf("attempt %d", c.Row.Command.Attempt)
	}
	b.must(b.Store.Release(b.ctx, []store.Lease{c.Lease}), "release")
	if q := b.saga(row.ID).Command; q.Attempt != 1 || !q.DeadlineAt.Equal(c.Row.Command.DeadlineAt) {
		b.Errorf("after release: %+v", q)
	}
	// A look that has begun the state's patience keeps it.
	b.must(b.finish(b.claimOne(), saga.NotYetAfter("wait", time.Second), nil).Err, "not yet")
	b.Advance(2 * time.Second)
	before := b.saga(row.ID).Command
	b.must(b.Store.Release(b.ctx, []store.Lease{b.claimOne().Lease}), "release")
	if after := b.saga(row.ID).Command; !sameCommand(after, before) {
		b.Errorf("after release %+v, before the claim %+v", after, before)
	}
	// A claim past the deadline was a look: there is nothing to give back.
	b.claimOne()
	b.Advance(workPatience)
	before = b.saga(row.ID).Command
	look := b.claimOne()
	b.must(b.Store.Release(b.ctx, []store.Lease{look.Lease}), "release")
	after := b.saga(row.ID).Command
	if !look.Overdue || after.Attempt != before.Attempt || after.Attempt == 0 || !after.DeadlineAt.Equal(before.DeadlineAt) {
		b.Errorf("after release %+v, before the claim %+v", after, before)
	}
	// A waiting state's deadline is not its first claim's.
	b.moved(row.ID, hold)
	b.Advance(holdPatience + time.Second)
	before = b.saga(row.ID).Command
	b.must(b.Store.Release(b.ctx, []store.Lease{b.claimOne().Lease}), "release")
	if after := b.saga(row.ID).Command; !sameCommand(after, before) {
		b.Errorf("after release %+v, before the claim %+v", after, before)
	}
}

func heartbeats(b *bench) {
	rows := b.startMany(3)
	cs := b.claim(3)
	b.Advance(lease / 2)
	beat, err := b.Store.Heartbeat(b.ctx, []store.Lease{cs[0].Lease, cs[1].Lease}, lease)
	b.must(err, "heartbeat")
	if len(beat.Lost)+len(beat.Interrupt) != 0 {
		b.Fatalf("beat: %+v", beat)
	}
	b.Advance(lease/2 + 10*time.Second)
	again := b.claim(10)
	if len(again) != 1 || again[0].Row.ID != cs[2].Row.ID {
		b.Fatalf("claimed %v, want the one that missed its heartbeat", claimedIDs(again))
	}
	b.must(b.send(cs[1].Row.ID, saga.Event{Name: saga.Close, Actor: "ada"}).Err, "close under a lease")
	beat, err = b.Store.Heartbeat(b.ctx, []store.Lease{cs[0].Lease, cs[1].Lease, cs[2].Lease, {SagaID: "no-id", Token: "x"}}, lease)
	b.must(err, "heartbeat")
	if len(beat.Interrupt) != 1 || beat.Interrupt[0] != cs[1].Lease {
		b.Errorf("interrupt: %+v", beat.Interrupt)
	}
	if len(beat.Lost) != 2 || !slices.Contains(beat.Lost, cs[2].Lease) {
		b.Errorf("lost: %+v", beat.Lost)
	}
	// A displaced heartbeat doesn't extend the new holder's lease.
	if q := b.saga(cs[2].Row.ID).Command; !q.LeaseUntil.Equal(again[0].Row.Command.LeaseUntil) || q.LeaseToken != again[0].Lease.Token {
		b.Errorf("the holder's lease: %+v, was %+v", q, again[0].Row.Command)
	}
	if _, err := b.Store.Heartbeat(b.ctx, nil, lease); err != nil {
		b.Errorf("a heartbeat of nothing: %v", err)
	}
	b.audit(ids(rows))
}

func successorWaits(b *bench) {
	row := b.start()
	c := b.claimOne()
	r := b.moved(row.ID, saga.Found) // pulls the row from under its worker
	if r.State != finishing || r.Command.HeldFor != c.Lease.Token {
		b.Fatalf("row: %+v, command %+v", r, r.Command)
	}
	if q := b.saga(row.ID).Command; q.HeldFor != c.Lease.Token || q.LeaseToken != "" || !q.AvailableAt.Equal(c.Row.Command.LeaseUntil) {
		b.Errorf("successor: %+v", q)
	}
	if cs := b.claim(10); len(cs) != 0 {
		b.Fatalf("two steps of one saga at once: %+v", cs)
	}
	beat, err := b.Store.Heartbeat(b.ctx, []store.Lease{c.Lease}, time.Hour)
	b.must(err, "heartbeat")
	if len(beat.Lost) != 1 {
		b.Errorf("a displaced worker wasn't told: %+v", beat)
	}
	// The old worker never comes back: its lease ends.
	b.Advance(lease + time.Second)
	next := b.claimOne()
	if next.Row.State != finishing || next.Row.Command.HeldFor != "" || next.Row.Command.Attempt != 1 {
		b.Errorf("claimed %+v", next.Row.Command)
	}
	b.wantErr(b.finish(c, saga.Done("", nil), nil).Err, store.ErrLeaseLost, "the displaced worker's result")
	b.must(b.finish(next, saga.Done("", nil), nil).Err, "the successor's result")
	b.audit([]string{row.ID})
}

func displacedWorkerAcknowledges(b *bench) {
	row := b.start()
	c := b.claimOne()
	b.moved(row.ID, saga.Found)
	b.wantErr(b.finish(c, saga.Done("", nil), nil).Err, store.ErrLeaseLost, "the displaced worker's result")
	next := b.claimOne() // at once
	if next.Row.State != finishing {
		b.Errorf("claimed %+v", next.Row)
	}
	b.audit([]string{row.ID})
}

func closeWaitsForTheStep(b *bench) {
	rows := b.startMany(2)
	cs := b.claim(2)
	if len(cs) != 2 {
		b.Fatalf("claimed %d", len(cs))
	}
	for _, c := range cs {
		r := b.send(c.Row.ID, saga.Event{Name: saga.Close, Actor: "ada", Detail: "not wanted"})
		b.must(r.Err, "close")
		got := b.wantState(c.Row.ID, working)
		if got.Pending == nil || got.Pending.Name != saga.Close || got.Pending.Actor != "ada" || got.Pending.Detail != "not wanted" {
			b.Fatalf("pending: %+v", got.Pending)
		}
		if !sameCommand(got.Command, c.Row.Command) {
			b.Errorf("the holder's command: %+v, was %+v", got.Command, c.Row.Command)
		}
		b.wantErr(b.send(c.Row.ID, saga.Event{Name: saga.Close}).Err, saga.ErrAlreadyAdvanced, "close again")
	}
	// One worker proves that nothing happened: the close is applied with it.
	b.must(b.finish(cs[0], saga.NotDone("nothing there"), nil).Err, "not done")
	r := b.wantState(cs[0].Row.ID, closed)
	if r.Pending != nil {
		b.Errorf("pending after its end: %+v", r.Pending)
	}
	h := b.history(r.ID)
	if !slices.ContainsFunc(h, func(e store.Entry) bool { return e.IsNote && strings.Contains(e.Detail, "waits for the running step") }) {
		b.Errorf("history: %+v", h)
	}
	// The other one is gone: after its lease the next claim is a look.
	b.Advance(lease + time.Second)
	look := b.claimOne()
	if look.Row.Pending == nil || look.Row.Command.Attempt != 1 {
		b.Errorf("a claim with a close waiting is a look: pending %+v, command %+v", look.Row.Pending, look.Row.Command)
	}
	b.must(b.finish(look, saga.NotDone("nothing there"), nil).Err, "not done")
	b.wantState(cs[1].Row.ID, closed)
	// What is put aside leaves the holder's command alone: a release still
	// undoes its claim.
	row := b.start()
	before := b.saga(row.ID).Command
	c := b.claimOne()
	b.must(b.send(row.ID, saga.Event{Name: saga.Close, Actor: "ada"}).Err, "close")
	b.must(b.Store.Release(b.ctx, []store.Lease{c.Lease}), "release")
	if r := b.saga(row.ID); !sameCommand(r.Command, before) || r.Pending == nil {
		b.Errorf("after release %+v, before the claim %+v, pending %+v", r.Command, before, r.Pending)
	}
	b.audit(append(ids(rows), row.ID))
}

func secondHandleSeesLeases(b *bench) {
	other := b.Reopen()
	row := b.start()
	c := b.claimOne()
	in := store.Claim{Kinds: kinds(5), Max: 5, Lease: lease, Queued: queuePatience}
	if cs, err := other.Claim(b.ctx, in); err != nil || len(cs) != 0 {
		b.Fatalf("the other handle claimed %+v, %v", cs, err)
	}
	b.Advance(lease + time.Second)
	cs, err := other.Claim(b.ctx, in)
	if err != nil || len(cs) != 1 || cs[0].Row.ID != row.ID {
		b.Fatalf("the other handle claimed %+v, %v", cs, err)
	}
	b.wantErr(b.finish(c, saga.Done("", nil), nil).Err, store.ErrLeaseLost, "the first handle's result")
}

func wakeReachesAnotherHandle(b *bench) {
	other := b.Reopen()
	woken := make(chan struct{}, 64)
	listening := make(chan error, 1)
	go func() {
		listening <- other.Listen(b.ctx, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	// The listener takes a moment to be there: wake until it hears.
	for {
		b.must(b.Store.Wake(b.ctx), "wake")
		select {
		case <-woken:
			return
		case err := <-listening:
			b.Fatalf("listening ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		case <-b.ctx.Done():
			b.Fatal("never woken")
		}
	}
}
