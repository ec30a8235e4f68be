package saga_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

var at = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// rowIn is a plausible row in a state: a failed one has failed in a state that
// can fail into it.
func rowIn(f *saga.Flow, s *saga.Spec) saga.Row {
	row := saga.Row{ID: "01", Flow: f.Name, FlowVersion: f.Version, State: s.State, Version: 7, Data: json.RawMessage(`{}`)}
	switch s.Kind {
	case saga.Running, saga.Waiting:
		row.Command = &saga.CommandRow{Type: saga.TypeOf(f.Name, f.Version, s.State, s.Command), AvailableAt: at, QueuedSince: at, Attempt: 1}
	case saga.Failed:
		for i := range f.States {
			p := &f.States[i]
			if p.Kind == saga.Running && p.Fail == s.State {
				row.Failure = &saga.Failure{Step: p.State, Kind: saga.Transient, Error: "x"}
			}
		}
		if row.Failure == nil {
			row.Failure = &saga.Failure{Step: f.States[0].State, Kind: saga.Deterministic, Error: "x"}
		}
	}
	return row
}

// Every state meets every event: what the matrix holds is decided, every other
// pair is refused, and the row that comes out is whole.
func TestMatrixPairByPair(t *testing.T) {
	t.Parallel()
	pairs := 0
	for _, f := range flows {
		matrix := saga.Matrix(f)
		for i := range f.States {
			spec := &f.States[i]
			for _, n := range f.Events() {
				pairs++
				row := rowIn(f, spec)
				d, err := saga.Decide(f, row, saga.Event{Name: n, At: at, Actor: "t", Step: true}, saga.Settings{})
				want := matrix[spec.State][n]
				switch {
				case want == "" && err == nil:
					t.Errorf("%s: %s in %s was allowed, the table holds no such move", f.Name, n, spec.State)
				case want == "" && !errors.Is(err, saga.ErrIllegalTransition) && !errors.Is(err, saga.ErrAlreadyAdvanced):
					t.Errorf("%s: %s in %s: %v", f.Name, n, spec.State, err)
				case want != "" && err != nil:
					t.Errorf("%s: %s in %s should lead to %s: %v", f.Name, n, spec.State, want, err)
				case want != "":
					whole(t, f, row, d)
				}
			}
		}
	}
	t.Logf("%d pairs", pairs)
	if pairs < 8*10 {
		t.Errorf("only %d pairs: the declared sets are not walked", pairs)
	}
}

type failer interface{ Errorf(string, ...any) }

// whole checks what every decision must be: I2, I3, I6, I10 as far as a pure function can.
func whole(t failer, f *saga.Flow, before saga.Row, d saga.Decision) {
	from, _ := f.Spec(before.State)
	to, ok := f.Spec(d.Row.State)
	if !ok {
		t.Errorf("%s: from %s into %s, which is no state", f.Name, before.State, d.Row.State)
		return
	}
	if from.Kind == saga.Final {
		t.Errorf("%s: final state %s was left", f.Name, before.State)
	}
	if d.KeepCommand {
		if len(d.Moves) > 0 {
			t.Errorf("%s: a move that keeps the old state's command", f.Name)
		}
		return
	}
	if want := before.Version + int64(len(d.Moves)); d.Row.Version != want {
		t.Errorf("%s: version %d after %d moves from %d", f.Name, d.Row.Version, len(d.Moves), before.Version)
	}
	state := before.State
	for i, m := range d.Moves {
		if m.From != state || m.Seq != before.Version+int64(i)+1 {
			t.Errorf("%s: move %d is %+v, expected it from %s", f.Name, i, m, state)
		}
		state = m.To
	}
	if state != d.Row.State {
		t.Errorf("%s: moves end in %s, the row is in %s", f.Name, state, d.Row.State)
	}
	needs := to.Kind == saga.Running || to.Kind == saga.Waiting
	if needs != (d.Row.Command != nil) {
		t.Errorf("%s: %s (%s) with command %v", f.Name, to.State, to.Kind, d.Row.Command)
	}
	if to.Kind == saga.Passing {
		t.Errorf("%s: stands in the passing state %s", f.Name, to.State)
	}
	if to.Kind == saga.Waiting && d.Row.Command != nil && d.Row.Command.DeadlineAt.IsZero() {
		t.Errorf("%s: %s waits without a deadline", f.Name, to.State)
	}
	if (to.Kind == saga.Final) != !d.Row.ClosedAt.IsZero() {
		t.Errorf("%s: %s with closed at %v", f.Name, to.State, d.Row.ClosedAt)
	}
	if to.Kind == saga.Failed && (d.Row.Failure == nil || d.Row.Failure.Step == "" || d.Row.Failure.Kind == "" || d.Row.Failure.Error == "") {
		t.Errorf("%s: %s does not say what failed: %+v", f.Name, to.State, d.Row.Failure)
	}
	if len(d.Moves) > 0 && d.Row.Pending != nil {
		t.Errorf("%s: a pending event outlived the move into %s", f.Name, to.State)
	}
}

// Any walk of events over any flow keeps the row whole, ends in a state of the
// table, and never leaves a final state.
func TestAnyWalkStaysWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom(flows).Draw(t, "flow")
		var orders []saga.Order
		for o := range f.Entry {
			orders = append(orders, o)
		}
		slices.Sort(orders)
		order := rapid.SampledFrom(orders).Draw(t, "order")
		d, err := saga.Start(f, saga.Row{ID: "01", Order: order, CreatedAt: at}, f.Entry[order], "", "", saga.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		row, now := d.Row, at
		data := rapid.SampledFrom([]string{``, `{"mrIid":3}`, `{"digest":"a","approvedDigest":"a"}`, `{"mrIid":3,"digest":"b"}`})
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "s")) * time.Second)
			ev := saga.Event{
				Name: rapid.SampledFrom(f.Events()).Draw(t, "event"), At: now, Actor: "t",
				Version: rapid.SampledFrom([]int64{0, 0, row.Version, row.Version - 1}).Draw(t, "version"),
				Step:    rapid.Bool().Draw(t, "step"), Data: json.RawMessage(data.Draw(t, "data")),
			}
			if row.Command != nil && rapid.Bool().Draw(t, "leased") {
				c := *row.Command
				c.LeaseUntil, c.LeaseToken = now.Add(time.Minute), "tok"
				row.Command = &c
			}
			d, err := saga.Decide(f, row, ev, saga.Settings{})
			if err != nil {
				var r *saga.Refusal
				if !errors.As(err, &r) {
					t.Fatalf("a refusal without a reason: %v", err)
				}
				continue
			}
			whole(t, f, row, d)
			row = d.Row
		}
	})
}

func must(t *testing.T, row saga.Row, ev saga.Event) saga.Decision {
	t.Helper()
	ev.At = or(ev.At, at)
	d, err := saga.Decide(pull.Table, row, ev, saga.Settings{})
	if err != nil {
		t.Fatalf("%s in %s: %v", ev.Name, row.State, err)
	}
	return d
}

func or(a, b time.Time) time.Time {
	if a.IsZero() {
		return b
	}
	return a
}

func pullRow(t *testing.T, s saga.State) saga.Row {
	t.Helper()
	spec, ok := pull.Table.Spec(s)
	if !ok {
		t.Fatal(s)
	}
	return rowIn(pull.Table, spec)
}

func TestRetryEntersOnlyTheFailedStep(t *testing.T) {
	t.Parallel()
	for _, s := range []saga.State{pull.Validating, pull.Merging, pull.Notifying, pull.Indexing} {
		row := pullRow(t, s)
		row.Command.Attempt = 9
		failed := must(t, row, saga.Event{Name: saga.Fail, Step: true, Failure: &saga.Failure{Kind: saga.Transient, Error: "down"}})
		if got := failed.Row; got.State != pull.MergeFailed || got.Failure.Step != s || got.Failure.Hint == "" {
			t.Fatalf("%s failed into %s with %+v", s, got.State, got.Failure)
		}
		again := must(t, failed.Row, saga.Event{Name: saga.Retry, Actor: "ops"})
		if again.Row.State != s || again.Row.Command.Attempt != 0 {
			t.Errorf("retry of %s entered %s with attempt %d", s, again.Row.State, again.Row.Command.Attempt)
		}
		if again.Row.Failure == nil {
			t.Errorf("%s: the failure is gone before the retry has succeeded", s)
		}
		_, err := saga.Decide(pull.Table, again.Row, saga.Event{Name: saga.Retry, At: at}, saga.Settings{})
		if !errors.Is(err, saga.ErrAlreadyAdvanced) {
			t.Errorf("%s: a repeated retry: %v", s, err)
		}
		through := must(t, again.Row, saga.Event{Name: saga.OK, Step: true})
		if through.Row.Failure != nil {
			t.Errorf("%s: the failure outlived the retry's success", s)
		}
	}
}

func TestOldVersionIsAlreadyAdvanced(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Merging)
	_, err := saga.Decide(pull.Table, row, saga.Event{Name: saga.OK, Version: row.Version - 1, At: at}, saga.Settings{})
	if !errors.Is(err, saga.ErrAlreadyAdvanced) {
		t.Fatalf("an event made for an older visit: %v", err)
	}
}

func TestCloseWaitsForTheWorker(t *testing.T) {
	t.Parallel()
	leased := pullRow(t, pull.Merging)
	leased.Command.LeaseUntil, leased.Command.LeaseToken = at.Add(time.Minute), "tok"
	d := must(t, leased, saga.Event{Name: saga.Close, Actor: "ann", Detail: "wrong"})
	if d.Row.State != pull.Merging || d.Row.Pending == nil || !d.KeepCommand || len(d.Moves) != 0 {
		t.Fatalf("a close that meets a worker: %+v", d)
	}
	if _, err := saga.Decide(pull.Table, d.Row, saga.Event{Name: saga.Close, At: at}, saga.Settings{}); !errors.Is(err, saga.ErrAlreadyAdvanced) {
		t.Errorf("a repeated close: %v", err)
	}
	t.Run("a proven merge beats it", func(t *testing.T) {
		m := must(t, d.Row, saga.Event{Name: saga.OK, Step: true})
		if m.Row.State != pull.Notifying || m.Row.Pending != nil || len(m.Notes) != 1 {
			t.Errorf("%+v", m)
		}
	})
	t.Run("a failure is closed in the same commit", func(t *testing.T) {
		m := must(t, d.Row, saga.Event{Name: saga.Fail, Step: true, Failure: &saga.Failure{Kind: saga.Deterministic, Error: "conflict"}})
		if m.Row.State != pull.PullClosed || len(m.Moves) != 2 || m.Moves[1].Actor != "ann" {
			t.Errorf("%+v", m)
		}
	})
	t.Run("before the first attempt it is applied at once", func(t *testing.T) {
		free := pullRow(t, pull.Merging)
		free.Command.Attempt = 0
		if m := must(t, free, saga.Event{Name: saga.Close, Actor: "ann"}); m.Row.State != pull.PullClosed {
			t.Errorf("%+v", m)
		}
	})
}

// A worker that is gone may have merged: a close waits for a look, which is due at once.
func TestCloseWaitsForALookWhereAWorkerIsGone(t *testing.T) {
	t.Parallel()
	gone := map[string]func(*saga.CommandRow){
		"its lease has ended":     func(c *saga.CommandRow) { c.LeaseToken, c.LeaseUntil = "tok", at.Add(-time.Second) },
		"its answer was lost":     func(c *saga.CommandRow) { c.Attempt, c.Unclear = 0, true },
		"it is tried again later": func(c *saga.CommandRow) { c.AvailableAt = at.Add(time.Hour) },
	}
	for name, change := range gone {
		row := pullRow(t, pull.Merging)
		change(row.Command)
		d := must(t, row, saga.Event{Name: saga.Close, Actor: "ann"})
		if d.Row.Pending == nil || d.KeepCommand || len(d.Moves) != 0 || d.Row.Command.AvailableAt.After(at) {
			t.Errorf("%s: %+v with %+v", name, d, d.Row.Command)
		}
	}
}

func TestPendingCloseIsNotAppliedWhereTheOutcomeStaysUnknown(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Merging)
	row.Pending = &saga.Event{Name: saga.Close, Actor: "ann"}
	d := must(t, row, saga.Event{Name: saga.DeadlineUp, Step: true, Detail: "the forge is down"})
	if d.Row.State != pull.MergeFailed || d.Row.Pending != nil || len(d.Notes) != 1 || d.Notes[0].Event != saga.Close {
		t.Errorf("%+v", d)
	}
}

// The history must take what a remote side says, whatever it is.
func TestHistoryHoldsNoTextThatADatabaseRefuses(t *testing.T) {
	t.Parallel()
	d := must(t, pullRow(t, pull.Merging), saga.Event{Name: saga.Fail, Step: true, Failure: &saga.Failure{Kind: saga.Deterministic, Error: "no\x00 \xff"}})
	if got := d.Moves[0].Detail; strings.Contains(got, "\x00") || !utf8.ValidString(got) {
		t.Errorf("history detail %q", got)
	}
}

// An event that pulls the row from under a worker leaves a successor that is
// not due before the worker's lease has ended, and is when it comes back.
func TestSuccessorWaitsForADisplacedWorker(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Validating)
	row.Command.LeaseUntil, row.Command.LeaseToken = at.Add(time.Minute), "tok"
	d := must(t, row, saga.Event{Name: saga.Found, Actor: "forge", Data: saga.Patch(map[string]string{"mergeCommit": "abc"})})
	if c := d.Row.Command; d.Row.State != pull.Notifying || !c.AvailableAt.Equal(at.Add(time.Minute)) || c.HeldFor != "tok" {
		t.Fatalf("%s %+v", d.Row.State, d.Row.Command)
	}
	// A second event before it has come back: that one's successor waits for it too.
	second := must(t, d.Row, saga.Event{Name: saga.OK, Actor: "forge", At: at.Add(time.Second)})
	if c := second.Row.Command; second.Row.State != pull.Indexing || !c.AvailableAt.Equal(at.Add(time.Minute)) || c.HeldFor != "tok" {
		t.Errorf("%s %+v", second.Row.State, second.Row.Command)
	}
	if c := must(t, d.Row, saga.Event{Name: saga.OK, At: at.Add(time.Hour)}).Row.Command; c.HeldFor != "" || !c.AvailableAt.Equal(at.Add(time.Hour)) {
		t.Errorf("the wait is over: %+v", c)
	}
	late := saga.Late(pull.Table, d.Row, "tok", saga.Done("merged", map[string]string{"mergeCommit": "other", "foreign": "x"}), at.Add(time.Second))
	if late.Row.State != pull.Notifying || len(late.Moves) != 0 || len(late.Notes) != 1 {
		t.Errorf("a late result moved: %+v", late)
	}
	if string(late.Row.Data) != string(d.Row.Data) {
		t.Errorf("a late result overwrote what was known: %s", late.Row.Data)
	}
	if late.KeepCommand || !late.Row.Command.AvailableAt.Equal(at.Add(time.Second)) {
		t.Errorf("the successor still waits for a worker that has come back: %+v", late.Row.Command)
	}
	if quiet := saga.Late(pull.Table, d.Row, "other", saga.NotYet("seen nothing"), at); len(quiet.Notes) != 0 || !quiet.KeepCommand {
		t.Errorf("a look that saw nothing left something: %+v", quiet)
	}
	grown := saga.Late(pull.Table, pullRow(t, pull.MergeFailed), "tok", saga.Done("merged", map[string]string{"mergeCommit": "abc", "foreign": "x"}), at)
	if string(grown.Row.Data) != `{"mergeCommit":"abc"}` {
		t.Errorf("a late result may add the merge commit and nothing else: %s", grown.Row.Data)
	}
}

// What comes early is kept, and applied in the transaction that enters its state.
func TestEarlyEventsAreAppliedOnEntry(t *testing.T) {
	t.Parallel()
	f := change.Table
	spec, _ := f.Spec(change.HandleApproved)
	row := rowIn(f, spec)
	kept := saga.Await(row, saga.Event{ID: "cb-1", Name: change.EvLive, Actor: "deploy", Data: json.RawMessage(`{"live":true}`)})
	if len(kept.Moves) != 0 || !kept.KeepCommand || len(kept.Row.Early) != 1 || len(row.Early) != 0 {
		t.Fatalf("%+v", kept)
	}
	d, err := saga.Decide(f, kept.Row, saga.Event{Name: saga.OK, At: at, Step: true}, saga.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Row.State != change.CalledBack || len(d.Moves) != 2 || d.Moves[1].Actor != "deploy" || !slices.Equal(d.Applied, []string{"cb-1"}) || len(d.Row.Early) != 0 {
		t.Errorf("%+v", d)
	}
	elsewhere, err := saga.Decide(f, kept.Row, saga.Event{Name: change.EvBehind, At: at, Step: true}, saga.Settings{})
	if err != nil || len(elsewhere.Row.Early) != 1 || len(elsewhere.Applied) != 0 {
		t.Errorf("a state that doesn't await it: %+v %v", elsewhere, err)
	}
}
