package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func transitionIsWhole(b *bench) {
	row := b.start()
	c := b.claimOne()
	res := b.finish(c, saga.Done("built", map[string]string{"commit": "abc"}), nil)
	b.must(res.Err, "finish")
	if res.Decision.Row.State != asking || res.Kept {
		b.Fatalf("answered %+v", res)
	}

	r := b.wantState(row.ID, asking)
	if r.Version != 2 || string(compact(r.Data)) != `{"commit":"abc"}` || r.WaitingSince.Before(c.Now) {
		b.Errorf("row: %+v", r)
	}
	if r.Command == nil || r.Command.Type != typeOf(asking) || !r.Command.LeaseUntil.IsZero() || r.Command.Attempt != 0 {
		b.Errorf("command: %+v", r.Command)
	} else if !about(r.Command.AvailableAt, c.Now.Add(askEvery)) || !about(r.Command.DeadlineAt, c.Now.Add(askPatience)) {
		b.Errorf("command is due at %v until %v, now is %v", r.Command.AvailableAt, r.Command.DeadlineAt, c.Now)
	}
	h := b.history(row.ID)
	if len(h) != 2 || h[0].Event != saga.Created || h[0].To != working || h[1].Event != saga.OK || h[1].From != working || h[1].To != asking || h[1].Detail != "built" {
		b.Errorf("history: %+v", h)
	}
	p, err := b.Store.Pull(b.ctx, row.AggregateID)
	b.must(err, "read pull request")
	if p.MergeCommit != "abc" || p.SagaStatus != "merging" || p.OperationID != row.ID {
		b.Errorf("pull request: %+v", p)
	}
	b.audit([]string{row.ID})
}

// spoil breaks a decision by a value that no driver may store.
var spoils = map[string]func(*store.Writes){
	"NUL in the history":      func(w *store.Writes) { w.Decision.Moves[0].Detail = "a\x00b" },
	"bad UTF-8 in the actor":  func(w *store.Writes) { w.Decision.Moves[0].Actor = "a\xffb" },
	"NUL in a note":           func(w *store.Writes) { w.Decision.Notes = []saga.Note{{Event: "x", Detail: "\x00"}} },
	"NUL in the evidence":     func(w *store.Writes) { w.Decision.Row.Command.Evidence = "\x00" },
	"NUL in the data":         func(w *store.Writes) { w.Decision.Row.Data = json.RawMessage(`{"a":"\u0000"}`) },
	"half a surrogate":        func(w *store.Writes) { w.Decision.Row.Data = json.RawMessage(`{"a":"\ud800"}`) },
	"data that is no JSON":    func(w *store.Writes) { w.Decision.Row.Data = json.RawMessage(`{"a":`) },
	"NUL in the failure":      func(w *store.Writes) { w.Decision.Row.Failure = &saga.Failure{Step: "X", Error: "\x00"} },
	"NUL in the merge commit": func(w *store.Writes) { w.Outward.Pull.MergeCommit = "\x00" },
	"NUL in the status":       func(w *store.Writes) { w.Outward.Pull.Status = "\x00" },
	"token that is no uuid":   func(w *store.Writes) { w.Decision.Row.Command.HeldFor = "me" },
}

func refusedValueLeavesNothing(b *bench) {
	row := b.startIn(holding)
	for what, spoil := range spoils {
		b.unchanged(row.ID, func() {
			rs, err := b.Store.Apply(b.ctx, []store.Request{{SagaID: row.ID}}, func(_ int, l store.Locked) (store.Writes, error) {
				w, err := decided(saga.Decide(trial, l.Row, saga.Event{Name: saga.Resume, At: l.Now}, saga.Settings{}))
				spoil(&w)
				return w, err
			})
			b.must(err, what)
			b.wantErr(rs[0].Err, store.ErrConflict, what)
		})
	}
	// The store is as good as before.
	b.moved(row.ID, saga.Resume)
	b.audit([]string{row.ID})
}

func brokenConstraintLeavesNothing(b *bench) {
	rows := b.startMany(3)
	before := b.snapshot(rows[1].ID)
	rs, err := b.Store.Apply(b.ctx, requests(rows), func(i int, l store.Locked) (store.Writes, error) {
		w, err := decided(saga.Decide(trial, l.Row, saga.Event{Name: hold, At: l.Now}, saga.Settings{}))
		if i == 1 {
			w.Decision.Moves[0].Seq = 1 // the history has it already
		}
		return w, err
	})
	b.must(err, "apply")
	b.must(rs[0].Err, "first neighbour")
	b.wantErr(rs[1].Err, store.ErrConflict, "a repeated entry of the history")
	b.must(rs[2].Err, "second neighbour")
	if after := b.snapshot(rows[1].ID); after != before {
		b.Errorf("something was written:\nbefore %s\nafter  %s", before, after)
	}
	b.wantState(rows[0].ID, holding)
	b.wantState(rows[2].ID, holding)
	b.audit(ids(rows))
}

func refusedEventsWriteNothing(b *bench) {
	row := b.start()
	b.unchanged(row.ID, func() {
		b.wantErr(b.send(row.ID, saga.Event{Name: yes}).Err, saga.ErrIllegalTransition, "yes in WORKING")
		b.wantErr(b.send(row.ID, saga.Event{Name: "nonsense"}).Err, saga.ErrIllegalTransition, "an unknown event")
	})
	b.moved(row.ID, hold)
	b.unchanged(row.ID, func() {
		b.wantErr(b.send(row.ID, saga.Event{Name: hold, Version: 1}).Err, saga.ErrAlreadyAdvanced, "the same event again")
	})
	b.moved(row.ID, saga.Close)
	b.unchanged(row.ID, func() {
		for _, e := range trial.Events() {
			b.wantErr(b.send(row.ID, saga.Event{Name: e}).Err, saga.ErrIllegalTransition, string(e)+" in a final state")
		}
	})
	b.audit([]string{row.ID})
}

func oneCommandWhileOpen(b *bench) {
	row := b.start()
	step := func(want saga.State, r saga.Row) {
		b.Helper()
		if r.State != want {
			b.Fatalf("stands in %s, want %s", r.State, want)
		}
		b.audit([]string{row.ID})
	}
	step(holding, b.moved(row.ID, hold))
	step(working, b.moved(row.ID, saga.Resume))
	step(broken, b.moved(row.ID, saga.Fail))
	if f := b.saga(row.ID).Failure; f == nil || f.Step != working {
		b.Errorf("failure: %+v", f)
	}
	step(working, b.moved(row.ID, saga.Retry))
	step(asking, b.finish(b.claimOne(), saga.Done("", nil), nil).Decision.Row)
	if f := b.saga(row.ID).Failure; f != nil {
		b.Errorf("a failure outlived the retry that mended it: %+v", f)
	}
	step(finishing, b.moved(row.ID, yes))
	step(done, b.finish(b.claimOne(), saga.Done("", nil), nil).Decision.Row)
	if cs := b.claim(10); len(cs) != 0 {
		b.Errorf("a final saga's command was claimed: %+v", cs)
	}
}

func passingStateLeavesTwoRows(b *bench) {
	row := b.startIn(asking)
	b.moved(row.ID, yes)
	h := b.history(row.ID)
	if len(h) != 3 || h[1].To != leaving || h[2].From != leaving || h[2].To != finishing || h[2].Mark.Seq != 3 {
		b.Fatalf("history: %+v", h)
	}
	b.audit([]string{row.ID})
}

func manySagasInOneCommit(b *bench) {
	rows := b.startMany(40)
	rs, err := b.Store.Apply(b.ctx, requests(rows), func(i int, l store.Locked) (store.Writes, error) {
		if l.Row.ID != rows[i].ID {
			return store.Writes{}, fmt.Errorf("asked about %s with the row of %s", rows[i].ID, l.Row.ID)
		}
		e := saga.Event{Name: hold, At: l.Now, Detail: fmt.Sprint("number ", i)}
		switch i % 4 {
		case 1:
			e.Name = yes // illegal here
		case 2:
			return store.Writes{}, errors.New("no wish to")
		case 3:
			e.Name = saga.Close
		}
		return decided(saga.Decide(trial, l.Row, e, saga.Settings{}))
	})
	b.must(err, "apply")
	if len(rs) != len(rows) {
		b.Fatalf("%d answers to %d requests", len(rs), len(rows))
	}
	for i, r := range rows {
		want := working
		switch i % 4 {
		case 0:
			want = holding
			b.must(rs[i].Err, "hold")
		case 1:
			b.wantErr(rs[i].Err, saga.ErrIllegalTransition, "yes")
		case 2:
			if rs[i].Err == nil || !strings.Contains(rs[i].Err.Error(), "no wish to") {
				b.Errorf("decide's own error came back as %v", rs[i].Err)
			}
		case 3:
			want = closed
			b.must(rs[i].Err, "close")
		}
		b.wantState(r.ID, want)
		if h := b.history(r.ID); want == holding && h[len(h)-1].Detail != fmt.Sprint("number ", i) {
			b.Errorf("saga %d carries the history of another: %+v", i, h)
		}
	}
	b.audit(ids(rows))
}

func oneBadAmongFifty(b *bench) {
	rows := b.startMany(50)
	const bad = 31
	before := b.snapshot(rows[bad].ID)
	rs, err := b.Store.Apply(b.ctx, requests(rows), func(i int, l store.Locked) (store.Writes, error) {
		w, err := decided(saga.Decide(trial, l.Row, saga.Event{Name: hold, At: l.Now}, saga.Settings{}))
		if i == bad {
			w.Decision.Moves[0].Detail = "\x00"
		}
		return w, err
	})
	b.must(err, "apply")
	for i, r := range rows {
		if i == bad {
			b.wantErr(rs[i].Err, store.ErrConflict, "the bad one")
			continue
		}
		b.must(rs[i].Err, "a neighbour")
		b.wantState(r.ID, holding)
	}
	if after := b.snapshot(rows[bad].ID); after != before {
		b.Errorf("the bad one was written:\nbefore %s\nafter  %s", before, after)
	}
	b.audit(ids(rows))
}

func unknownSagas(b *bench) {
	row := b.start()
	reqs := []store.Request{{SagaID: newID()}, {SagaID: row.ID}, {SagaID: "not-an-id"}, {SagaID: ""}}
	rs, err := b.Store.Apply(b.ctx, reqs, func(i int, l store.Locked) (store.Writes, error) {
		return decided(saga.Decide(trial, l.Row, saga.Event{Name: hold, At: l.Now}, saga.Settings{}))
	})
	b.must(err, "apply")
	for _, i := range []int{0, 2, 3} {
		b.wantErr(rs[i].Err, store.ErrNotFound, "saga "+reqs[i].SagaID)
	}
	b.must(rs[1].Err, "the known neighbour")
	b.wantState(row.ID, holding)
	for _, id := range []string{newID(), "not-an-id", ""} {
		_, err := b.Store.Saga(b.ctx, id)
		b.wantErr(err, store.ErrNotFound, "Saga "+id)
		_, err = b.Store.Pull(b.ctx, id)
		b.wantErr(err, store.ErrNotFound, "Pull "+id)
		b.wantErr(b.Store.Note(b.ctx, id, saga.Note{Event: "x"}), store.ErrNotFound, "Note "+id)
	}
	if rs, err := b.Store.Apply(b.ctx, nil, nil); err != nil || len(rs) != 0 {
		b.Errorf("an empty batch answered %v, %v", rs, err)
	}
}

func sagaTwiceInABatch(b *bench) {
	row := b.start()
	rs, err := b.Store.Apply(b.ctx, []store.Request{{SagaID: row.ID}, {SagaID: row.ID}}, func(i int, l store.Locked) (store.Writes, error) {
		return decided(saga.Decide(trial, l.Row, saga.Event{Name: hold, At: l.Now}, saga.Settings{}))
	})
	b.must(err, "apply")
	b.must(rs[0].Err, "the first")
	b.wantErr(rs[1].Err, store.ErrBusy, "the second")
	if r := b.wantState(row.ID, holding); r.Version != 2 {
		b.Errorf("version %d", r.Version)
	}
	b.audit([]string{row.ID})
}

func requeueTouchesOnlyTheCommand(b *bench) {
	row := b.start()
	c := b.claimOne()
	res := b.finish(c, saga.NotYetAfter("still building", 3*time.Minute), nil)
	b.must(res.Err, "not yet")
	r := b.wantState(row.ID, working)
	if r.Version != 1 || !r.UpdatedAt.Equal(row.UpdatedAt) {
		b.Errorf("the saga's row moved: %+v", r)
	}
	q := r.Command
	if q.Checks != 1 || q.Attempt != 0 || q.Evidence != "still building" || q.LeaseToken != "" || !q.LeaseUntil.IsZero() {
		b.Errorf("command: %+v", q)
	}
	if !q.DeadlineAt.Equal(c.Row.Command.DeadlineAt) || !q.QueuedSince.Equal(c.Row.Command.QueuedSince) {
		b.Errorf("a look moved the deadline: %+v, was %+v", q, c.Row.Command)
	}
	if len(b.history(row.ID)) != 1 {
		b.Errorf("a mere poll left history")
	}
	if cs := b.claim(1); len(cs) != 0 {
		b.Errorf("claimed before it was due")
	}
	b.Advance(3*time.Minute + time.Second)
	c = b.claimOne()
	b.must(b.finish(c, saga.FailWith(saga.Transient, "connection refused", ""), nil).Err, "transient failure")
	h := b.history(row.ID)
	if len(h) != 2 || !h[1].IsNote || h[1].Mark.Seq != 1 || !strings.Contains(h[1].Detail, "connection refused") {
		b.Errorf("history: %+v", h)
	}
	b.audit([]string{row.ID})
}

func panicWritesNothing(b *bench) {
	rows := b.startMany(2)
	b.unchanged(rows[0].ID, func() {
		func() {
			defer func() { _ = recover() }() // a driver may pass the panic on or answer an error
			rs, err := b.Store.Apply(b.ctx, requests(rows), func(i int, l store.Locked) (store.Writes, error) {
				if i == 1 {
					panic("a fault in a decision")
				}
				return decided(saga.Decide(trial, l.Row, saga.Event{Name: hold, At: l.Now}, saga.Settings{}))
			})
			if err == nil {
				b.Errorf("a panic went unnoticed: %+v", rs)
			}
		}()
	})
	b.moved(rows[0].ID, hold) // and the store still works
	b.audit(ids(rows))
}

func outwardFollowsOwnSagaOnly(b *bench) {
	old := b.start()
	b.must(b.finish(b.claimOne(), saga.FailWith(saga.Deterministic, "no", ""), nil).Err, "fail")
	next, err := b.Store.StartPull(b.ctx, old.AggregateID, func(p store.Pull, l *store.Locked, now time.Time) (store.StartPull, error) {
		return starts(p, now, working)
	})
	b.must(err, "start the next")
	b.moved(old.ID, saga.Close)
	p, err := b.Store.Pull(b.ctx, old.AggregateID)
	b.must(err, "read pull request")
	if p.OperationID != next.ID || p.SagaStatus != "merging" || p.ForgeState != "open" {
		b.Errorf("the old saga's end wrote to the newer one's pull request: %+v", p)
	}
	b.moved(next.ID, saga.Close)
	if p, err = b.Store.Pull(b.ctx, old.AggregateID); err != nil || p.SagaStatus != "closed" || p.ForgeState != "closed" {
		b.Errorf("closing closes the local merge request: %+v, %v", p, err)
	}
	b.audit([]string{old.ID, next.ID})
}

func mergeCommitOnlyGrows(b *bench) {
	row := b.start()
	b.must(b.finish(b.claimOne(), saga.Done("", map[string]string{"commit": "first"}), nil).Err, "finish")
	r := b.send(row.ID, saga.Event{Name: yes, Data: saga.Patch(map[string]string{"commit": "second"})})
	b.must(r.Err, "yes")
	p, err := b.Store.Pull(b.ctx, row.AggregateID)
	if err != nil || p.MergeCommit != "first" {
		b.Errorf("merge commit %q, %v", p.MergeCommit, err)
	}
	b.must(b.finish(b.claimOne(), saga.Done("", nil), nil).Err, "finish")
	if p, err = b.Store.Pull(b.ctx, row.AggregateID); err != nil || p.ForgeState != "merged" || p.SagaStatus != "merged" {
		b.Errorf("pull request %+v, %v", p, err)
	}
}

func cancelledContextWritesNothing(b *bench) {
	row := b.start()
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	b.unchanged(row.ID, func() {
		_, err := b.Store.Apply(ctx, requests([]saga.Row{row}), func(i int, l store.Locked) (store.Writes, error) {
			return decided(saga.Decide(trial, l.Row, saga.Event{Name: hold, At: l.Now}, saga.Settings{}))
		})
		b.wantErr(err, context.Canceled, "apply")
		_, err = b.Store.Claim(ctx, store.Claim{Kinds: kinds(1), Max: 1, Lease: lease, Queued: queuePatience})
		b.wantErr(err, context.Canceled, "claim")
		_, err = b.Store.StartPull(ctx, row.AggregateID, func(p store.Pull, _ *store.Locked, now time.Time) (store.StartPull, error) {
			return starts(p, now, working)
		})
		b.wantErr(err, context.Canceled, "start")
	})
}

func lockedSagaIsBusy(b *bench) {
	rows := b.startMany(3)
	release := b.Hold(rows[1].ID)
	held := true
	defer func() {
		if held {
			release()
		}
	}()
	began := time.Now()
	rs, err := b.Store.Apply(b.ctx, requests(rows), func(i int, l store.Locked) (store.Writes, error) {
		return decided(saga.Decide(trial, l.Row, saga.Event{Name: hold, At: l.Now}, saga.Settings{}))
	})
	took := time.Since(began)
	b.must(err, "apply")
	b.must(rs[0].Err, "first neighbour")
	b.wantErr(rs[1].Err, store.ErrBusy, "the locked one")
	b.must(rs[2].Err, "second neighbour")
	if took > time.Second {
		b.Errorf("a locked saga stalled its neighbours for %v", took)
	}
	release()
	held = false
	b.wantState(rows[1].ID, working)
	b.moved(rows[1].ID, hold)
	b.audit(ids(rows))
}

func waitsForLockedSaga(b *bench) {
	row := b.start()
	release := b.Hold(row.ID)
	answer := make(chan store.Result, 1)
	go func() { answer <- b.send(row.ID, saga.Event{Name: hold}) }()
	select {
	case r := <-answer:
		b.Errorf("answered while the saga was locked: %+v", r)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	b.must((<-answer).Err, "after the lock was gone")

	defer b.Hold(row.ID)()
	b.wantErr(b.send(row.ID, saga.Event{Name: saga.Resume}).Err, store.ErrBusy, "a lock that stays")
}

func claimPassesLockedSaga(b *bench) {
	rows := b.startMany(3)
	release := b.Hold(rows[1].ID)
	got := claimedIDs(b.claim(10))
	release()
	// A driver may lock the saga's row for a claim or only the command's.
	for _, id := range []string{rows[0].ID, rows[2].ID} {
		if !contains(got, id) {
			b.Errorf("claimed %v, without the neighbour %s", got, id)
		}
	}
	got = append(got, claimedIDs(b.claim(10))...)
	if !sameSet(got, ids(rows)) {
		b.Errorf("claimed %v, want each of %v once", got, ids(rows))
	}
}

func lostCommitIsSettled(b *bench) {
	rows := b.startMany(5)
	calls := 0
	b.LoseCommit()
	rs, err := b.Store.Apply(b.ctx, requests(rows), func(i int, l store.Locked) (store.Writes, error) {
		calls++
		return decided(saga.Decide(trial, l.Row, saga.Event{Name: hold, At: l.Now}, saga.Settings{}))
	})
	b.must(err, "apply")
	for i, r := range rows {
		b.must(rs[i].Err, "a committed transition")
		if rs[i].Decision.Row.State != holding {
			b.Errorf("answered %+v", rs[i].Decision.Row)
		}
		if got := b.wantState(r.ID, holding); got.Version != 2 {
			b.Errorf("version %d: written twice?", got.Version)
		}
	}
	if calls != len(rows) {
		b.Errorf("decided %d times for %d sagas", calls, len(rows))
	}
	b.audit(ids(rows))
}

func lostStartIsSettled(b *bench) {
	p := b.pull()
	b.LoseCommit()
	row, err := b.Store.StartPull(b.ctx, p.ID, func(p store.Pull, old *store.Locked, now time.Time) (store.StartPull, error) {
		if old != nil {
			return store.StartPull{}, errors.New("asked again after it was written")
		}
		return starts(p, now, working)
	})
	b.must(err, "start")
	b.wantState(row.ID, working)
	if p, err = b.Store.Pull(b.ctx, p.ID); err != nil || p.OperationID != row.ID {
		b.Errorf("pull request %+v, %v", p, err)
	}
	b.audit([]string{row.ID})
}

func requests(rows []saga.Row) []store.Request {
	out := make([]store.Request, len(rows))
	for i, r := range rows {
		out[i].SagaID = r.ID
	}
	return out
}
