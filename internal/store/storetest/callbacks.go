package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// said is a call from outside about an operation.
func said(operation, request string) store.Callback {
	return store.Callback{ID: newID(), Kind: "approval", Source: "approval/secret-1", RequestID: request, Hash: "h1", OperationID: operation,
		Payload: json.RawMessage(`{"decision":"approved","n":1}`)}
}

// judged gives verdicts as the flow does, in short.
func judged(cb store.Callback, s store.CallbackState) (store.CallbackDecision, error) {
	out := store.CallbackDecision{Verdict: "unknown", Rule: "no such operation", Actor: "carol"}
	switch {
	case s.Seen && s.SameHash:
		out.Verdict, out.Rule = "duplicate", "came before"
	case s.Seen:
		out.Verdict, out.Rule = "contradiction", "came before with another payload"
	case s.Saga == nil:
	case !s.Owner:
		out.Verdict, out.Rule = "stale", "a newer operation has taken over"
	case s.Saga.Row.State == working:
		out.Verdict, out.Rule = "early", "kept"
		out.Writes = &store.Writes{Decision: saga.Await(s.Saga.Row, saga.Event{ID: cb.ID, Name: yes, Actor: "carol", At: s.Now, Data: saga.Patch(map[string]int{"approved": 1})})}
	case s.Saga.Row.State == asking:
		w, err := bound(saga.Decide(offer, s.Saga.Row, saga.Event{ID: cb.ID, Name: yes, Actor: "carol", At: s.Now}, saga.Settings{}))
		out.Verdict, out.Rule, out.Writes = "applied", "awaited", &w
		return out, err
	default:
		out.Verdict, out.Rule = "stale", "nothing awaits it"
	}
	return out, nil
}

func (b *bench) callback(cb store.Callback) store.CallbackEntry {
	b.Helper()
	e, err := b.Store.Callback(b.ctx, cb, func(s store.CallbackState) (store.CallbackDecision, error) { return judged(cb, s) })
	b.must(err, "callback")
	return e
}

func (b *bench) ledger(id string) []store.CallbackEntry {
	b.Helper()
	es, err := b.Store.Callbacks(b.ctx, id, 0, 1000)
	b.must(err, "read the ledger")
	return es
}

// waiting is a change that waits for an answer.
func (b *bench) waiting() saga.Row {
	b.Helper()
	row := b.submitNew()
	b.must(b.told(row.ID, saga.Event{Name: saga.OK, Actor: saga.ActorEngine}).Err, "ok")
	return b.wantState(row.ID, asking)
}

func callbackIsWhole(b *bench) {
	row := b.waiting()
	// It needs no lease: a self-check under way is displaced.
	b.Advance(askEvery + time.Second)
	cs, err := b.Store.Claim(b.ctx, store.Claim{Kinds: []store.ClaimKind{{Type: "change/1/ASKING/Ask", Cap: 1, Look: true}}, Max: 1, Lease: lease, Queued: queuePatience})
	if err != nil || len(cs) != 1 {
		b.Fatalf("claimed %+v, %v", cs, err)
	}
	cb := said(row.ID, "r1")
	var seen store.CallbackState
	e, err := b.Store.Callback(b.ctx, cb, func(s store.CallbackState) (store.CallbackDecision, error) {
		seen = s
		d, err := judged(cb, s)
		d.Deploy = &store.DeployRecord{Project: "p", Base: "main", MRIID: 7, MergeCommit: "c", Result: "live"}
		return d, err
	})
	b.must(err, "callback")
	if seen.Seen || seen.SameHash || !seen.Owner || seen.Saga == nil || seen.Saga.Row.ID != row.ID || !seen.Saga.Held || seen.Saga.Now != seen.Now ||
		seen.Saga.Row.Command == nil || seen.Saga.Row.Command.LeaseToken != cs[0].Lease.Token || !about(seen.Now, b.now()) {
		b.Errorf("decided on %+v", seen)
	}
	if e.Verdict != "applied" || e.SagaID != row.ID || e.Seq == 0 || e.Decision == nil || e.Decision.Row.State != finishing || e.At != seen.Now {
		b.Errorf("answered %+v", e)
	}
	r := b.wantState(row.ID, finishing)
	if r.Command == nil || r.Command.Type != "change/1/FINISHING/Finish" || r.Command.HeldFor != cs[0].Lease.Token {
		b.Errorf("command %+v", r.Command)
	}
	if h := b.history(row.ID); h[len(h)-1].To != finishing || h[len(h)-2].Event != yes || h[len(h)-2].Actor != "carol" {
		b.Errorf("history %+v", h)
	}
	want := store.DeployRecord{Project: "p", Base: "main", MRIID: 7, MergeCommit: "c", Result: "live"}
	if live, err := b.Store.LiveSince(b.ctx, "p", "main", time.Time{}, 5); err != nil || !slices.Equal(live, []store.DeployRecord{want}) {
		b.Errorf("live %+v, %v", live, err)
	}
	led := b.ledger(row.ID)
	if len(led) != 1 {
		b.Fatalf("ledger %+v", led)
	}
	got := led[0]
	if string(compact(got.Payload)) != string(compact(cb.Payload)) || !got.AppliedAt.IsZero() || got.Decision != nil {
		b.Errorf("ledger %+v", got)
	}
	got.Payload, e.Payload, e.Decision = nil, nil, nil
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", e) {
		b.Errorf("ledger says %+v, the answer was %+v", got, e)
	}
	b.sound()
}

func identicalCallbacks(b *bench) {
	const n = 50
	row := b.waiting()
	first := said(row.ID, "r1")
	var fresh, again atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			cb := first
			cb.ID = newID()
			_, err := b.Store.Callback(b.ctx, cb, func(s store.CallbackState) (store.CallbackDecision, error) {
				switch {
				case !s.Seen:
					fresh.Add(1)
				case s.SameHash:
					again.Add(1)
				}
				return judged(cb, s)
			})
			if err != nil {
				b.Errorf("callback: %v", err)
			}
		})
	}
	wg.Wait()
	if fresh.Load() != 1 || again.Load() != n-1 {
		b.Errorf("%d were new, %d came before", fresh.Load(), again.Load())
	}
	led := b.ledger(row.ID)
	if len(led) != n || led[0].Verdict != "applied" {
		b.Fatalf("%d rows in the ledger, the first %+v", len(led), led[0])
	}
	for i, e := range led[1:] {
		if e.Verdict != "duplicate" || e.Seq <= led[i].Seq {
			b.Errorf("row %d: %+v", i+1, e)
		}
	}
	// The same id with another payload, and the same payload under another source.
	other := first
	other.ID, other.Hash = newID(), "h2"
	if e := b.callback(other); e.Verdict != "contradiction" {
		b.Errorf("another payload: %+v", e)
	}
	other = first
	other.ID, other.Source = newID(), "approval/secret-2"
	if e := b.callback(other); e.Verdict != "stale" {
		b.Errorf("another source: %+v", e)
	}
	if r := b.saga(row.ID); r.Version != 4 { // created, ok, yes, ok
		b.Errorf("version %d", r.Version)
	}
	b.sound()
}

func callbackRace(b *bench) {
	const n = 30
	row := b.waiting()
	var applied, late atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			cb := said(row.ID, fmt.Sprint("r", i))
			e, err := b.Store.Callback(b.ctx, cb, func(s store.CallbackState) (store.CallbackDecision, error) { return judged(cb, s) })
			switch {
			case err != nil:
				b.Errorf("callback: %v", err)
			case e.Verdict == "applied":
				applied.Add(1)
			case e.Verdict == "stale":
				late.Add(1)
			}
		})
	}
	wg.Wait()
	if applied.Load() != 1 || late.Load() != n-1 || len(b.ledger(row.ID)) != n {
		b.Errorf("%d applied, %d stale, %d in the ledger", applied.Load(), late.Load(), len(b.ledger(row.ID)))
	}
	b.sound()
}

func earlyEventIsKept(b *bench) {
	row := b.submitNew()
	before := row.Command
	cb := said(row.ID, "r1")
	e := b.callback(cb)
	if e.Verdict != "early" || !e.AppliedAt.IsZero() {
		b.Fatalf("answered %+v", e)
	}
	r := b.wantState(row.ID, working)
	if len(r.Early) != 1 || r.Early[0].ID != cb.ID || r.Early[0].Name != yes || r.Early[0].Actor != "carol" || string(compact(r.Early[0].Data)) != `{"approved":1}` {
		b.Fatalf("early: %+v", r.Early)
	}
	if r.Version != 1 || !sameCommand(r.Command, before) {
		b.Errorf("an early event touched the rest: %+v, command %+v", r, r.Command)
	}
	if h := b.history(row.ID); len(h) != 2 || !h[1].IsNote {
		b.Errorf("history %+v", h)
	}
	// Lists and claims read it too, and a requeue keeps it.
	if rs, err := b.Store.Sagas(b.ctx, store.SagaFilter{}); err != nil || len(rs) != 1 || len(rs[0].Early) != 1 {
		b.Errorf("listed %+v, %v", rs, err)
	}
	cs, err := b.Store.Claim(b.ctx, store.Claim{Kinds: []store.ClaimKind{{Type: "change/1/WORKING/Work", Cap: 1, Deadline: workPatience}}, Max: 1, Lease: lease, Queued: queuePatience})
	if err != nil || len(cs) != 1 || len(cs[0].Row.Early) != 1 {
		b.Fatalf("claimed %+v, %v", cs, err)
	}
	// A second one comes beside the first.
	other := b.callback(said(row.ID, "r2"))
	if r := b.saga(row.ID); len(r.Early) != 2 || r.Early[1].ID != other.ID {
		b.Errorf("early: %+v", r.Early)
	}
	// Entering its state applies it in the same transaction.
	rs, err := b.Store.Apply(b.ctx, []store.Request{{SagaID: row.ID, Token: cs[0].Lease.Token}}, func(_ int, l store.Locked) (store.Writes, error) {
		ev := saga.Settle(offer, l.Row, saga.Done("", nil), saga.Execution{}, saga.Settings{})
		ev.At = l.Now
		return bound(saga.Decide(offer, l.Row, ev, saga.Settings{}))
	})
	b.must(errors.Join(err, rs[0].Err), "finish")
	r = b.wantState(row.ID, finishing)
	if len(r.Early) != 1 || r.Early[0].ID != other.ID || string(compact(r.Data)) != `{"approved":1}` {
		b.Errorf("afterwards: early %+v, data %s", r.Early, r.Data)
	}
	led := b.ledger(row.ID)
	if len(led) != 2 || !about(led[0].AppliedAt, b.now()) || led[0].AppliedAt.Before(led[0].At) || led[0].Verdict != "early" || !led[1].AppliedAt.IsZero() {
		b.Errorf("ledger %+v", led)
	}
	// What its end leaves over is not kept.
	b.must(b.told(row.ID, saga.Event{Name: saga.OK}).Err, "ok")
	if r := b.wantState(row.ID, done); len(r.Early) != 0 {
		b.Errorf("early after the end: %+v", r.Early)
	}
	b.sound()
}

func refusedCallbackWritesNothing(b *bench) {
	row := b.waiting()
	version := row.Version
	cb := said(row.ID, "r1")
	refuse := func(cb store.Callback, spoil func(*store.CallbackDecision) error) error {
		_, err := b.Store.Callback(b.ctx, cb, func(s store.CallbackState) (store.CallbackDecision, error) {
			if s.Seen {
				b.Error("a refused callback used its key up")
			}
			d, err := judged(cb, s)
			return d, errors.Join(err, spoil(&d))
		})
		return err
	}
	good := func(*store.CallbackDecision) error { return nil }
	b.wantErr(refuse(cb, func(*store.CallbackDecision) error { return errTaken }), errTaken, "decide's own error")
	for what, spoil := range map[string]func(*store.CallbackDecision){
		"NUL in the verdict":  func(d *store.CallbackDecision) { d.Verdict = "\x00" },
		"bad UTF-8 as actor":  func(d *store.CallbackDecision) { d.Actor = "\xff" },
		"NUL in the history":  func(d *store.CallbackDecision) { d.Writes.Decision.Moves[0].Detail = "\x00" },
		"a repeated entry":    func(d *store.CallbackDecision) { d.Writes.Decision.Moves[0].Seq = 1 },
		"NUL in the deploy":   func(d *store.CallbackDecision) { d.Deploy = &store.DeployRecord{Base: "\x00"} },
		"NUL in the early":    func(d *store.CallbackDecision) { d.Writes.Decision.Row.Early = []saga.Event{{Detail: "\x00"}} },
		"an applied no-id":    func(d *store.CallbackDecision) { d.Writes.Decision.Applied = []string{"\x00"} },
		"NUL in the binding":  func(d *store.CallbackDecision) { d.Writes.Outward.Binding.Status = "\x00" },
		"half a character":    func(d *store.CallbackDecision) { d.Writes.Decision.Row.Data = json.RawMessage(`{"a":"\ud800"}`) },
		"NUL kept for later":  func(d *store.CallbackDecision) { d.Writes.Decision.Row.Pending = &saga.Event{Actor: "\x00"} },
		"a failure with NULs": func(d *store.CallbackDecision) { d.Writes.Decision.Row.Failure = &saga.Failure{Error: "\x00"} },
	} {
		b.wantErr(refuse(cb, func(d *store.CallbackDecision) error { spoil(d); return nil }), store.ErrConflict, what)
	}
	for what, spoil := range map[string]func(*store.Callback){
		"NUL in the request id": func(c *store.Callback) { c.RequestID = "\x00" },
		"payload of no JSON":    func(c *store.Callback) { c.Payload = json.RawMessage(`{`) },
		"NUL in the payload":    func(c *store.Callback) { c.Payload = json.RawMessage(`"\u0000"`) },
		"an id that is no uuid": func(c *store.Callback) { c.ID = "x" },
		"no id":                 func(c *store.Callback) { c.ID = "" },
	} {
		bad := cb
		spoil(&bad)
		b.wantErr(refuse(bad, good), store.ErrConflict, what)
	}
	if r := b.saga(row.ID); r.Version != version || len(b.ledger(row.ID)) != 0 {
		b.Errorf("saga %+v, ledger %+v", r, b.ledger(row.ID))
	}
	if live, err := b.Store.LiveSince(b.ctx, "", "", time.Time{}, 5); err != nil || len(live) != 0 {
		b.Errorf("live %+v, %v", live, err)
	}
	if e := b.callback(cb); e.Verdict != "applied" {
		b.Errorf("answered %+v", e)
	}
	b.wantErr(refuse(store.Callback{ID: cb.ID, Kind: "approval", Source: "s", RequestID: "r9", OperationID: row.ID}, good), store.ErrConflict, "an id that is in the ledger")
	b.sound()
}

func callbackOfNothing(b *bench) {
	for i, id := range []string{newID(), "", "no-id"} {
		cb := said(id, fmt.Sprint("r", i))
		if e := b.callback(cb); e.Verdict != "unknown" || e.SagaID != "" || e.Seq == 0 || e.Decision != nil {
			b.Errorf("about %q: %+v", id, e)
		}
		cb.ID = newID()
		if e := b.callback(cb); e.Verdict != "duplicate" {
			b.Errorf("about %q again: %+v", id, e)
		}
		if led := b.ledger(id); len(led) != 0 {
			b.Errorf("ledger of %q: %+v", id, led)
		}
	}
	bare := store.Callback{ID: newID(), Kind: "webhook", Source: "s", RequestID: "bare"}
	if e := b.callback(bare); e.Verdict != "unknown" {
		b.Errorf("a bare callback: %+v", e)
	}
	b.sound()
}

func callbackOfFormerOwner(b *bench) {
	in := submission("team", "one")
	old := b.submit(in).OperationID
	b.must(b.told(old, saga.Event{Name: saga.Fail, Actor: "ada"}).Err, "fail")
	next := b.submit(in).OperationID
	if e := b.callback(said(old, "r1")); e.Verdict != "stale" || e.SagaID != old {
		b.Errorf("the former owner's: %+v", e)
	}
	if e := b.callback(said(next, "r2")); e.Verdict != "early" {
		b.Errorf("the owner's: %+v", e)
	}
	if bind := b.binding(in); bind.OperationID != next || bind.Status != "merging" {
		b.Errorf("binding %+v", bind)
	}
	// A saga of another flow owns no binding.
	pull := b.start()
	if e := b.callback(said(pull.ID, "r3")); e.Verdict != "stale" || e.SagaID != pull.ID {
		b.Errorf("of another flow: %+v", e)
	}
	b.sound()
}

func liveSince(b *bench) {
	began := b.now()
	n := 0
	record := func(project, base, result string, iid int64) {
		b.Helper()
		n++
		cb := said("", fmt.Sprint("r", n))
		_, err := b.Store.Callback(b.ctx, cb, func(store.CallbackState) (store.CallbackDecision, error) {
			return store.CallbackDecision{Verdict: "unknown", Deploy: &store.DeployRecord{Project: project, Base: base, Result: result, MRIID: iid}}, nil
		})
		b.must(err, "callback")
		b.Advance(time.Second)
	}
	record("p", "main", "live", 40)
	b.Advance(time.Hour)
	later := b.now()
	b.Advance(time.Minute)
	record("p", "main", "live", 12)
	record("p", "main", "failed", 50)
	record("p", "main", "live", 11)
	record("p", "other", "live", 60)
	record("q", "main", "live", 70)
	for _, c := range []struct {
		project, base string
		since         time.Time
		limit         int
		want          []int64
	}{
		{"p", "main", began.Add(-time.Second), 5, []int64{11, 12, 40}},
		{"p", "main", time.Time{}, 5, []int64{11, 12, 40}},
		{"p", "main", time.Time{}, 2, []int64{11, 12}},
		{"p", "main", later, 5, []int64{11, 12}},
		{"p", "other", later, 5, []int64{60}},
		{"q", "main", began, 5, []int64{70}},
		{"p", "main", later.Add(time.Hour), 5, nil},
		{"q", "other", began, 5, nil},
	} {
		live, err := b.Store.LiveSince(b.ctx, c.project, c.base, c.since, c.limit)
		var got []int64
		for _, r := range live {
			got = append(got, r.MRIID)
		}
		if err != nil || !slices.Equal(got, c.want) {
			b.Errorf("%+v: %v, %v", c, got, err)
		}
	}
}

func ledgerPages(b *bench) {
	one, other := b.submitNew(), b.submitNew()
	var want []string
	for i := range 7 {
		want = append(want, b.callback(said(one.ID, fmt.Sprint("one", i))).ID)
		b.callback(said(other.ID, fmt.Sprint("other", i)))
	}
	var got []string
	for after := int64(0); ; {
		page, err := b.Store.Callbacks(b.ctx, one.ID, after, 3)
		b.must(err, "page")
		if len(page) == 0 {
			break
		}
		if len(page) > 3 {
			b.Fatalf("a page of %d", len(page))
		}
		for _, e := range page {
			got, after = append(got, e.ID), e.Seq
		}
	}
	if !slices.Equal(got, want) {
		b.Errorf("read %v, want %v", got, want)
	}
	if es, err := b.Store.Callbacks(b.ctx, one.ID, 0, 0); err != nil || len(es) != 7 {
		b.Errorf("without a limit: %d, %v", len(es), err)
	}
}

func callbackWaits(b *bench) {
	row := b.waiting()
	release := b.Hold(row.ID)
	answer := make(chan store.CallbackEntry, 1)
	go func() { answer <- b.callback(said(row.ID, "r1")) }()
	select {
	case e := <-answer:
		b.Errorf("answered while the saga was locked: %+v", e)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if e := <-answer; e.Verdict != "applied" {
		b.Errorf("answered %+v", e)
	}

	row = b.waiting()
	release = b.Hold(row.ID)
	_, err := b.Store.Callback(b.ctx, said(row.ID, "r2"), func(store.CallbackState) (store.CallbackDecision, error) {
		b.Error("decided without the lock")
		return store.CallbackDecision{}, errTaken
	})
	b.wantErr(err, store.ErrBusy, "a lock that stays")
	release()
	if led := b.ledger(row.ID); len(led) != 0 {
		b.Errorf("a busy saga left %+v", led)
	}
	if e := b.callback(said(row.ID, "r2")); e.Verdict != "applied" {
		b.Errorf("a busy saga used the key up: %+v", e)
	}
	b.sound()
}

func lostCallbackIsSettled(b *bench) {
	row := b.waiting()
	for i, c := range []struct{ operation, request, verdict string }{
		{row.ID, "r1", "applied"}, {row.ID, "r1", "duplicate"}, {"", "r2", "unknown"}, {"", "r2", "duplicate"},
	} {
		calls := 0
		cb := said(c.operation, c.request)
		b.LoseCommit()
		e, err := b.Store.Callback(b.ctx, cb, func(s store.CallbackState) (store.CallbackDecision, error) {
			calls++
			return judged(cb, s)
		})
		b.must(err, "callback")
		if calls != 1 || e.Verdict != c.verdict || e.Seq == 0 {
			b.Errorf("%d: asked %d times, answered %+v", i, calls, e)
		}
	}
	if led := b.ledger(row.ID); len(led) != 2 {
		b.Errorf("ledger %+v", led)
	}
	b.wantState(row.ID, finishing)
	b.sound()
}
