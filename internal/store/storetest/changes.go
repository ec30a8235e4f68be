package storetest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// offer is the trial flow under the name whose sagas callbacks look for; its
// outward row is a binding.
var offer = func() *saga.Flow {
	f := *trial
	f.Name = "change"
	return &f
}()

var errTaken = errors.New("somebody asked already")

// submission is a request of the trial's own kind.
func submission(subject, target string) store.ChangeDoor {
	return store.ChangeDoor{Subject: subject, Target: target}
}

func keyed(d store.ChangeDoor, scope, key, hash string) store.ChangeDoor {
	d.Key = &store.IdempotencyKey{Scope: scope, Key: key, Hash: hash}
	return d
}

// offered decides to take a change, whatever was there. A saga that is live is ended.
func offered(in store.ChangeDoor, d store.DoorState) (store.StartChange, error) {
	row := saga.Row{ID: newID(), AggregateID: in.Subject + "/" + in.Target, CreatedAt: d.Now,
		About: saga.About{Subject: in.Subject, Target: in.Target, Project: "platform/config", Title: "Raise it"}}
	start, err := saga.Start(offer, row, working, "ada", "submitted", saga.Settings{})
	out := store.StartChange{New: start, Status: statusOf(working), Inputs: files}
	if err == nil && d.Old != nil && d.Old.Row.ClosedAt.IsZero() {
		var end store.Writes
		end, err = bound(saga.Decide(offer, d.Old.Row, saga.Event{Name: saga.Superseded, Actor: "ada", At: d.Now}, saga.Settings{}))
		out.Old = &end
	}
	return out, err
}

var files = []store.Input{
	{Path: "quotas/z.yaml", Action: "upsert", Content: "limit: 200\n"},
	{Path: "quotas/a.yaml", Action: "delete"},
	{Path: "Ünï/ço dé.txt", Action: "create", Content: strings.Repeat("👩‍🚀", 3)},
}

// bound is a decision with the write to its binding.
func bound(d saga.Decision, err error) (store.Writes, error) {
	if err != nil {
		return store.Writes{}, err
	}
	return store.Writes{Decision: d, Outward: store.Outward{Binding: &store.BindingWrite{Status: statusOf(d.Row.State)}}}, nil
}

// submit takes a change.
func (b *bench) submit(in store.ChangeDoor) store.ChangeStarted {
	b.Helper()
	s, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) { return offered(in, d) })
	b.must(err, "start a change")
	return s
}

// submitNew takes a change of a binding of its own.
func (b *bench) submitNew() saga.Row {
	b.Helper()
	return b.saga(b.submit(submission("team", fmt.Sprint("target-", b.pulls.Add(1)))).OperationID)
}

// told applies an event from outside to a change.
func (b *bench) told(id string, ev saga.Event) store.Result {
	b.Helper()
	rs, err := b.Store.Apply(b.ctx, []store.Request{{SagaID: id, Wait: true}}, func(_ int, l store.Locked) (store.Writes, error) {
		e := ev
		e.At = l.Now
		return bound(saga.Decide(offer, l.Row, e, saga.Settings{}))
	})
	b.must(err, "apply")
	return rs[0]
}

func (b *bench) binding(in store.ChangeDoor) store.Binding {
	b.Helper()
	x, err := b.Store.Binding(b.ctx, in.Subject, in.Target)
	b.must(err, "read binding")
	return x
}

// sound proves that no invariant is broken anywhere.
func (b *bench) sound() {
	b.Helper()
	found, err := b.Store.Audit(b.ctx, tables, 20)
	b.must(err, "audit")
	for _, f := range found {
		b.Errorf("%s: %s %s", f.Invariant, cmp.Or(f.SagaID, "the data"), f.Detail)
	}
}

func doorIsWhole(b *bench) {
	in := keyed(submission("team-payments", "prod/eu/quota"), "ada", "k1", "h1")
	_, err := b.Store.Binding(b.ctx, in.Subject, in.Target)
	b.wantErr(err, store.ErrNotFound, "a binding that nobody asked for")
	var seen store.DoorState
	got, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) {
		seen = d
		return offered(in, d)
	})
	b.must(err, "start")
	if seen.Old != nil || seen.Binding != (store.Binding{Subject: in.Subject, Target: in.Target}) || !about(seen.Now, b.now()) {
		b.Errorf("decided on %+v", seen)
	}
	if got.State != working || got.Status != "merging" || got.Replayed || got.OperationID == "" {
		b.Errorf("answered %+v", got)
	}
	r := b.wantState(got.OperationID, working)
	if r.Flow != "change" || r.About.Subject != in.Subject || r.Version != 1 || r.Command == nil || r.Command.Type != "change/1/WORKING/Work" || len(r.Early) != 0 {
		b.Errorf("saga %+v, command %+v", r, r.Command)
	}
	if h := b.history(r.ID); len(h) != 1 || h[0].Event != saga.Created || h[0].Actor != "ada" {
		b.Errorf("history %+v", h)
	}
	bind := b.binding(in)
	if bind.OperationID != r.ID || bind.Status != "merging" || bind.Subject != in.Subject || bind.Target != in.Target || !about(bind.UpdatedAt, b.now()) {
		b.Errorf("binding %+v", bind)
	}
	inputs, err := b.Store.Inputs(b.ctx, r.ID)
	if err != nil || !slices.Equal(inputs, files) {
		b.Errorf("inputs %q, %v", inputs, err)
	}
	for _, id := range []string{newID(), "no-id", ""} {
		if inputs, err := b.Store.Inputs(b.ctx, id); err != nil || len(inputs) != 0 {
			b.Errorf("inputs of %q: %q, %v", id, inputs, err)
		}
	}
	// The binding follows its saga.
	b.must(b.told(r.ID, saga.Event{Name: saga.Fail, Actor: "ada"}).Err, "fail")
	if bind = b.binding(in); bind.Status != "merge-failed" {
		b.Errorf("binding %+v", bind)
	}
	b.sound()
}

func doorRace(b *bench) {
	const racers = 30
	in := submission("team", "one")
	var won atomic.Int64
	winner := make(chan string, racers)
	saw := make(chan store.DoorState, racers)
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			in := in
			if i%2 == 0 {
				in = keyed(in, "ada", fmt.Sprint("key-", i), "h")
			}
			s, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) {
				if d.Old != nil {
					saw <- d
					return store.StartChange{}, errTaken
				}
				return offered(in, d)
			})
			switch {
			case err == nil:
				won.Add(1)
				winner <- s.OperationID
			case err != errTaken: // as it is, not wrapped
				b.Errorf("start: %v", err)
			}
		})
	}
	wg.Wait()
	close(saw)
	if won.Load() != 1 {
		b.Fatalf("%d of %d won", won.Load(), racers)
	}
	id := <-winner
	if len(saw) < racers-1 {
		b.Errorf("%d losers saw the winner", len(saw))
	}
	for d := range saw {
		if d.Old.Row.ID != id || d.Binding.OperationID != id || d.Binding.Status != "merging" || d.Old.Row.Command == nil || !d.Old.Held || d.Old.Now != d.Now {
			b.Errorf("a loser saw %+v of %+v", d.Old.Row, d.Binding)
		}
	}
	if rs, err := b.Store.Sagas(b.ctx, store.SagaFilter{Subject: "team"}); err != nil || len(rs) != 1 {
		b.Errorf("%d sagas, %v", len(rs), err)
	}
	b.sound()
}

func keyAnswersLikeTheFirst(b *bench) {
	in := keyed(submission("team", "one"), "ada", "k", "h1")
	first := b.submit(in)
	b.must(b.told(first.OperationID, saga.Event{Name: saga.Close, Actor: "ada"}).Err, "close")
	never := func(store.DoorState) (store.StartChange, error) {
		b.Error("a replay was decided")
		return store.StartChange{}, errTaken
	}
	want := first
	want.Replayed = true
	for range 2 {
		if got, err := b.Store.StartChange(b.ctx, in, never); err != nil || got != want {
			b.Errorf("replayed %+v, %v; want %+v", got, err, want)
		}
	}
	// The key decides, not what it was used for.
	other := keyed(submission("another team", "two"), "ada", "k", "h1")
	if got, err := b.Store.StartChange(b.ctx, other, never); err != nil || got != want {
		b.Errorf("replayed %+v, %v", got, err)
	}
	_, err := b.Store.StartChange(b.ctx, keyed(in, "ada", "k", "h2"), never)
	b.wantErr(err, store.ErrIdempotencyMismatch, "another body")
	if got := b.submit(keyed(in, "bob", "k", "h2")); got.Replayed || got.OperationID == first.OperationID {
		b.Errorf("another actor's key answered %+v", got)
	}
	b.sound()
}

func keyRace(b *bench) {
	const racers = 30
	in := keyed(submission("team", "one"), "ada", "k", "h")
	answers := make([]store.ChangeStarted, racers)
	var decided atomic.Int64
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			var err error
			answers[i], err = b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) {
				decided.Add(1)
				return offered(in, d)
			})
			if err != nil {
				b.Errorf("start: %v", err)
			}
		})
	}
	wg.Wait()
	fresh := 0
	for _, a := range answers {
		if !a.Replayed {
			fresh++
		}
		if a.OperationID != answers[0].OperationID || a.State != working || a.Status != "merging" {
			b.Errorf("answered %+v and %+v", a, answers[0])
		}
	}
	if fresh != 1 || decided.Load() != 1 {
		b.Errorf("%d fresh answers of %d decisions", fresh, decided.Load())
	}
	b.sound()
}

func refusedChangeWritesNothing(b *bench) {
	taken := b.submit(submission("team", "one")).OperationID
	in := keyed(submission("team", "one"), "ada", "k", "h")
	door := func(in store.ChangeDoor, spoil func(*store.StartChange) error) error {
		_, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) {
			out, err := offered(in, d)
			return out, errors.Join(err, spoil(&out))
		})
		return err
	}
	good := func(*store.StartChange) error { return nil }
	before, bind := b.saga(taken), b.binding(in)
	for what, spoil := range map[string]func(*store.StartChange){
		"NUL in the title":          func(s *store.StartChange) { s.New.Row.About.Title = "\x00" },
		"NUL in the status":         func(s *store.StartChange) { s.Status = "\x00" },
		"NUL in a path":             func(s *store.StartChange) { s.Inputs = []store.Input{{Path: "a\x00b"}} },
		"NUL in a file":             func(s *store.StartChange) { s.Inputs = []store.Input{{Path: "a", Content: "\x00"}} },
		"bad UTF-8 in a file":       func(s *store.StartChange) { s.Inputs = []store.Input{{Path: "a", Content: "\xff"}} },
		"an id that is taken":       func(s *store.StartChange) { s.New.Row.ID = taken },
		"an id that is no uuid":     func(s *store.StartChange) { s.New.Row.ID = "x" },
		"NUL in the old saga's end": func(s *store.StartChange) { s.Old.Decision.Moves[0].Detail = "\x00" },
		"data that is no JSON":      func(s *store.StartChange) { s.New.Row.Data = json.RawMessage(`{`) },
	} {
		b.wantErr(door(in, func(s *store.StartChange) error { spoil(s); return nil }), store.ErrConflict, what)
	}
	b.wantErr(door(in, func(*store.StartChange) error { return errTaken }), errTaken, "decide's own error")
	b.wantErr(door(submission("\x00", "one"), good), store.ErrConflict, "NUL in the subject")
	b.wantErr(door(keyed(in, "ada", "\x00", "h"), good), store.ErrConflict, "NUL in the key")
	b.wantErr(door(submission("team", "new"), func(s *store.StartChange) error {
		s.Old = &store.Writes{Decision: saga.Decision{Row: before}}
		return nil
	}), store.ErrConflict, "the end of no saga")
	_, err := b.Store.Binding(b.ctx, "team", "new")
	b.wantErr(err, store.ErrNotFound, "the binding of a refused change")
	if after := b.saga(taken); after.Version != before.Version || after.State != before.State || b.binding(in) != bind {
		b.Errorf("saga %+v, binding %+v; were %+v, %+v", after, b.binding(in), before, bind)
	}
	if rs, err := b.Store.Sagas(b.ctx, store.SagaFilter{}); err != nil || len(rs) != 1 {
		b.Errorf("%d sagas, %v", len(rs), err)
	}
	// A refused request has not used its key up.
	if got := b.submit(keyed(in, "ada", "k", "another body")); got.Replayed || got.OperationID == taken {
		b.Errorf("answered %+v", got)
	}
	b.sound()
}

func doorWaits(b *bench) {
	in := submission("team", "one")
	old := b.submit(in).OperationID
	release := b.Hold(old)
	answer := make(chan error, 1)
	go func() {
		_, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) { return offered(in, d) })
		answer <- err
	}()
	select {
	case err := <-answer:
		b.Errorf("answered while the saga was locked: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	b.must(<-answer, "start after the lock was gone")
	b.wantState(old, replaced)

	live := b.binding(in).OperationID
	in = keyed(in, "ada", "k", "h")
	release = b.Hold(live)
	_, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) { return offered(in, d) })
	b.wantErr(err, store.ErrBusy, "a lock that stays")
	release()
	if got := b.submit(in); got.Replayed || got.OperationID == live {
		b.Errorf("a busy door used up the key: %+v", got)
	}
	b.sound()
}

func lostChangeIsSettled(b *bench) {
	for _, in := range []store.ChangeDoor{submission("team", "one"), keyed(submission("team", "two"), "ada", "k", "h"), submission("team", "one")} {
		was, _ := b.Store.Binding(b.ctx, in.Subject, in.Target) // the last one applies again
		calls := 0
		b.LoseCommit()
		s, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) {
			calls++
			return offered(in, d)
		})
		b.must(err, "start")
		if calls != 1 || s.Replayed || b.binding(in).OperationID != s.OperationID || was.OperationID == s.OperationID {
			b.Errorf("asked %d times, answered %+v, binding %+v", calls, s, b.binding(in))
		}
	}
	b.sound()
}
