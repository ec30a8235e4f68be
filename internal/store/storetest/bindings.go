package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func bindingIsResetInPlace(b *bench) {
	in := submission("team", "one")
	old := b.submit(in).OperationID
	b.must(b.told(old, saga.Event{Name: saga.Fail, Actor: "ada"}).Err, "fail")
	next := b.submit(in).OperationID
	if next == old {
		b.Fatal("the same operation")
	}
	if r := b.wantState(old, replaced); r.ClosedAt.IsZero() || r.Command != nil {
		b.Errorf("old saga %+v", r)
	}
	if bind := b.binding(in); bind.OperationID != next || bind.Status != "merging" {
		b.Errorf("binding %+v", bind)
	}
	// An old saga that is final already is left as it is.
	b.must(b.told(next, saga.Event{Name: saga.Close, Actor: "ada"}).Err, "close")
	if bind := b.binding(in); bind.Status != "closed" {
		b.Errorf("binding %+v", bind)
	}
	before := b.history(next)
	last := b.submit(in).OperationID
	if after := b.history(next); len(after) != len(before) {
		b.Errorf("history %+v", after)
	}
	// What a former owner still writes reaches the binding no more.
	rs, err := b.Store.Apply(b.ctx, []store.Request{{SagaID: old}, {SagaID: next}, {SagaID: last}}, func(i int, l store.Locked) (store.Writes, error) {
		status := "stale"
		if i == 2 {
			status = "merging"
		}
		return store.Writes{Decision: saga.Decision{Row: l.Row, KeepCommand: true, Notes: []saga.Note{{Event: "late", Actor: "ci"}}},
			Outward: store.Outward{Binding: &store.BindingWrite{Status: status}}}, nil
	})
	b.must(errors.Join(err, rs[0].Err, rs[1].Err, rs[2].Err), "late writes")
	if bind := b.binding(in); bind.OperationID != last || bind.Status != "merging" {
		b.Errorf("binding %+v", bind)
	}
	b.sound()
}

func applyAgainRace(b *bench) {
	const racers = 20
	in := submission("team", "one")
	first := b.submit(in).OperationID
	b.must(b.told(first, saga.Event{Name: saga.Fail, Actor: "ada"}).Err, "fail")
	var won atomic.Int64
	var wg sync.WaitGroup
	for range racers {
		wg.Go(func() {
			_, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) {
				if d.Old.Row.State != broken {
					return store.StartChange{}, errTaken
				}
				return offered(in, d)
			})
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, errTaken):
				b.Errorf("start: %v", err)
			}
		})
		wg.Go(func() { // the old saga is moved meanwhile
			r := b.told(first, saga.Event{Name: saga.Retry, Actor: "bob"})
			if r.Err == nil {
				r = b.told(first, saga.Event{Name: saga.Fail, Actor: "bob"})
			}
			if r.Err != nil && !errors.Is(r.Err, saga.ErrIllegalTransition) && !errors.Is(r.Err, saga.ErrAlreadyAdvanced) {
				b.Errorf("retry, fail: %v", r.Err)
			}
		})
	}
	wg.Wait()
	// Every racer may have come while a retry was under way.
	if n := won.Load(); n > 1 || n == 0 && b.binding(in).OperationID != first {
		b.Errorf("%d of %d won", n, racers)
	}
	b.sound()
}

func mixedBatch(b *bench) {
	var reqs []store.Request
	var changes []saga.Row
	pulls := b.startMany(10)
	for _, p := range pulls {
		c := b.submitNew()
		changes = append(changes, c)
		reqs = append(reqs, store.Request{SagaID: p.ID}, store.Request{SagaID: c.ID})
	}
	rs, err := b.Store.Apply(b.ctx, reqs, func(i int, l store.Locked) (store.Writes, error) {
		ev := saga.Event{Name: saga.Close, Actor: "ada", At: l.Now}
		if i%2 == 0 {
			return decided(saga.Decide(trial, l.Row, ev, saga.Settings{}))
		}
		w, err := bound(saga.Decide(offer, l.Row, ev, saga.Settings{}))
		if i == 7 {
			w.Outward.Binding.Status = "\x00"
		}
		return w, err
	})
	b.must(err, "apply")
	for i, r := range rs {
		if i == 7 {
			b.wantErr(r.Err, store.ErrConflict, "a status with a NUL")
			continue
		}
		b.must(r.Err, "close")
	}
	for i, c := range changes {
		want := "closed"
		if i == 3 {
			want = "merging"
		}
		if bind := b.binding(submission(c.About.Subject, c.About.Target)); bind.Status != want || bind.OperationID != c.ID {
			b.Errorf("change %d: binding %+v", i, bind)
		}
		if p, err := b.Store.Pull(b.ctx, pulls[i].AggregateID); err != nil || p.SagaStatus != "closed" || p.ForgeState != "closed" {
			b.Errorf("pull request %d: %+v, %v", i, p, err)
		}
	}
	b.sound()
}

func manyChanges(b *bench) {
	const writers, each = 50, 6
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := range each {
				in := keyed(submission(fmt.Sprint("team-", w), fmt.Sprint("target-", n)), "ada", fmt.Sprint(w, "/", n), "h")
				s, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) { return offered(in, d) })
				if err != nil || s.Replayed {
					b.Errorf("start: %+v, %v", s, err)
				}
			}
		})
	}
	wg.Wait()
	stats, err := b.Store.Stats(b.ctx, []string{"change/1/WORKING/Work"})
	b.must(err, "stats")
	if stats.Due != writers*each {
		b.Errorf("%d commands are due", stats.Due)
	}
	b.sound()
}

func operationIsFound(b *bench) {
	find := func(project, commit string, iid int64) string {
		b.Helper()
		id, err := b.Store.OperationOf(b.ctx, project, commit, iid)
		if err != nil {
			b.wantErr(err, store.ErrNotFound, "of no operation")
		}
		return id
	}
	learn := func(id string, data any) {
		b.Helper()
		b.must(b.told(id, saga.Event{Name: hold, Data: saga.Patch(data)}).Err, "hold")
		b.must(b.told(id, saga.Event{Name: saga.Resume}).Err, "resume")
	}
	const project = "platform/config"
	first, second, third := b.submitNew(), b.submitNew(), b.submitNew()
	if id := find(project, "c1", 7) + find(project, "", 0) + find("", "", 0) + find(project, "\x00", 7); id != "" {
		b.Errorf("found %s", id)
	}
	learn(first.ID, map[string]any{"mrIid": 7})
	learn(third.ID, map[string]any{"mrIid": 9, "mergeCommit": "c3"}) // the newest saga learns first
	learn(second.ID, map[string]any{"mrIid": 9})
	learn(first.ID, map[string]any{"mergeCommit": "c1"})
	for _, c := range []struct {
		project, commit string
		iid             int64
		want            string
	}{
		{project, "c1", 0, first.ID},
		{project, "", 7, first.ID},
		{project, "c1", 9, first.ID}, // the commit says more than the number
		{project, "c9", 7, first.ID},
		{project, "", 9, third.ID},
		{"other", "c3", 7, third.ID},
		{"other", "", 7, ""},
		{project, "", 8, ""},
	} {
		if got := find(c.project, c.commit, c.iid); got != c.want {
			b.Errorf("%+v: found %q", c, got)
		}
	}
	// A saga of another flow is found by nobody, whatever its data says.
	b.must(b.send(b.start().ID, saga.Event{Name: hold, Data: saga.Patch(map[string]any{"mrIid": 77, "mergeCommit": "c77"})}).Err, "hold")
	if id := find(repo, "c77", 77); id != "" {
		b.Errorf("found %s", id)
	}
	// A late result adds what only grows, without a move.
	late := b.submitNew()
	rs, err := b.Store.Apply(b.ctx, []store.Request{{SagaID: late.ID, Token: newToken()}}, func(_ int, l store.Locked) (store.Writes, error) {
		r := l.Row
		r.Data = saga.Patch(map[string]any{"mergeCommit": "c5"})
		return store.Writes{Decision: saga.Decision{Row: r, KeepCommand: true}}, nil
	})
	b.must(err, "apply")
	b.wantErr(rs[0].Err, store.ErrLeaseLost, "a late result")
	if got := find(project, "c5", 0); got != late.ID {
		b.Errorf("found %q after a late result", got)
	}
	b.sound()
}

func approvalsOfHeads(b *bench) {
	p := b.pull()
	for _, a := range []store.MRApproval{{Account: "bob", SHA: "s1"}, {Account: "ada", SHA: "s1"}, {Account: "bob", SHA: "s1"}, {Account: "bob", SHA: "s2"}} {
		b.must(b.Store.ApproveMR(b.ctx, p.ID, a.Account, a.SHA), "approve")
		b.Advance(time.Second)
	}
	got, err := b.Store.MRApprovals(b.ctx, p.ID)
	b.must(err, "approvals")
	var said []string
	for i, a := range got {
		said = append(said, a.Account+" "+a.SHA)
		if a.At.IsZero() || i > 0 && !a.At.After(got[i-1].At) {
			b.Errorf("approved at %v", a.At)
		}
	}
	if want := []string{"bob s1", "ada s1", "bob s2"}; !slices.Equal(said, want) {
		b.Errorf("approvals %q, want %q", said, want)
	}
	b.wantErr(b.Store.ApproveMR(b.ctx, p.ID, "\x00", "s1"), store.ErrConflict, "by an account with a NUL")
	if got, err := b.Store.MRApprovals(b.ctx, newID()); err != nil || len(got) != 0 {
		b.Errorf("approvals of nothing: %+v, %v", got, err)
	}
}
