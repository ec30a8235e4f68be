package saga_test

import (
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

var budget = saga.Settings{Attempts: 3, Backoff: time.Second, BackoffMax: 4 * time.Second}

func settle(row saga.Row, o saga.Outcome, x saga.Execution) saga.Event {
	return saga.Settle(pull.Table, row, o, x, budget)
}

func TestTransientFailureHasAFiniteBudget(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Indexing)
	down := saga.FailWith(saga.Transient, "503", "")
	for attempt := 1; attempt < 3; attempt++ {
		row.Command.Attempt = attempt
		ev := settle(row, down, saga.Execution{})
		if ev.Requeue == nil || ev.Requeue.After <= 0 || ev.Requeue.Attempt != attempt || ev.Requeue.Note == "" {
			t.Fatalf("attempt %d: %+v", attempt, ev)
		}
	}
	row.Command.Attempt = 3
	ev := settle(row, down, saga.Execution{})
	if ev.Name != saga.Fail || ev.Failure.Kind != saga.Transient || ev.Failure.Error != "503" {
		t.Errorf("the budget is used up: %+v", ev)
	}
}

func TestDeterministicFailureEndsAtOnce(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Merging)
	if ev := settle(row, saga.FailWith(saga.Deterministic, "conflict", "rebase"), saga.Execution{}); ev.Name != saga.Fail || ev.Failure.Hint != "rebase" {
		t.Errorf("%+v", ev)
	}
}

func TestUnclearIsCheckedNotRepeated(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Merging)
	row.Command.Attempt = 1
	ev := settle(row, saga.Unclear("reset by peer"), saga.Execution{})
	if ev.Requeue == nil || !ev.Requeue.Unclear {
		t.Fatalf("%+v", ev)
	}
	row.Command.Attempt = 3
	if ev = settle(row, saga.Unclear("reset by peer"), saga.Execution{}); ev.Name != saga.Fail || ev.Failure.Kind != saga.UnknownOutcome {
		t.Errorf("an unclear outcome must end as one: %+v", ev)
	}
}

// "Not yet" is a look, not an attempt, and only the deadline ends it.
func TestNotYetCountsAsALook(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Validating)
	row.Command.Attempt, row.Command.Checks = 1, 500
	ev := settle(row, saga.NotYet("pending"), saga.Execution{})
	if ev.Requeue == nil || ev.Requeue.Checks != 501 || ev.Requeue.Attempt != 0 || ev.Requeue.Note != "" {
		t.Fatalf("%+v", ev.Requeue)
	}
	if ev.Requeue.After != 30*time.Second {
		t.Errorf("look 501 is in the long tier, not after %s", ev.Requeue.After)
	}
	row.Command.Checks = 0
	if ev = settle(row, saga.NotYet("pending"), saga.Execution{}); ev.Requeue.After != 5*time.Second {
		t.Errorf("look 1 is in the short tier, not after %s", ev.Requeue.After)
	}
	if ev = settle(row, saga.NotYetAfter("rate limited", 17*time.Second), saga.Execution{}); ev.Requeue.After != 17*time.Second {
		t.Errorf("the pause that was asked for: %s", ev.Requeue.After)
	}
}

// A deadline is applied only where the look settled nothing.
func TestDeadlineAfterALook(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Merging)
	row.Command.DeadlineAt = at
	late := saga.Execution{Overdue: true}
	for _, o := range []saga.Outcome{saga.NotDone("open"), saga.NotYet("locked"), saga.Unclear("timeout"), saga.FailWith(saga.Transient, "503", "")} {
		if ev := settle(row, o, late); ev.Name != saga.DeadlineUp {
			t.Errorf("%s: %+v", o, ev)
		}
	}
	if ev := settle(row, saga.Done("merged", nil), late); ev.Name != saga.OK {
		t.Errorf("a proven merge beats the deadline: %+v", ev)
	}
	row.Command.DeadlineAt = time.Time{}
	if ev := settle(row, saga.NotDone(""), late); ev.Name != saga.QueueLimit {
		t.Errorf("never begun: the queue's limit, not the deadline: %+v", ev)
	}
	d := must(t, row, saga.Event{Name: saga.QueueLimit, Step: true})
	if f := d.Row.Failure; f.Kind != saga.Transient || f.Hint == "" {
		t.Errorf("%+v", f)
	}
}

// While deadlines pause, what a look of an overdue command did not settle gets
// the time until the pause's end, and its attempts stay counted as they were.
func TestAnOverdueCommandGetsTheTimeUntilThePausesEnd(t *testing.T) {
	t.Parallel()
	paused := saga.Execution{Overdue: true, Paused: time.Minute}
	end := at.Add(time.Minute)
	put := func(f *saga.Flow, row saga.Row, o saga.Outcome) *saga.CommandRow {
		t.Helper()
		ev := saga.Settle(f, row, o, paused, budget)
		ev.At = at
		d, err := saga.Decide(f, row, ev, budget)
		if err != nil || len(d.Moves) != 0 {
			t.Fatalf("%s: %+v %v", o, d.Moves, err)
		}
		return d.Row.Command
	}
	unsettled := []saga.Outcome{saga.NotDone("open"), saga.NotYet("locked"), saga.Unclear("timeout"), saga.FailWith(saga.Transient, "503", "")}
	row := pullRow(t, pull.Merging)
	row.Command.DeadlineAt, row.Command.Attempt = at.Add(-time.Hour), 3
	for _, o := range unsettled {
		c := put(pull.Table, row, o)
		if !c.DeadlineAt.Equal(end) || !c.AvailableAt.After(at) || c.AvailableAt.After(end) || c.Attempt != 3 {
			t.Errorf("%s: %+v", o, c)
		}
	}
	row.Command.DeadlineAt, row.Command.Attempt, row.Command.QueuedSince = time.Time{}, 0, at.Add(-2*time.Hour)
	for _, o := range unsettled {
		c := put(pull.Table, row, o)
		if !c.DeadlineAt.IsZero() || !c.QueuedSince.Add(budget.QueuedLimit()).Equal(end) || !c.AvailableAt.After(at) || c.Attempt != 0 {
			t.Errorf("in the queue, %s: %+v", o, c)
		}
	}
	if ev := saga.Settle(pull.Table, row, saga.Done("merged", nil), paused, budget); ev.Name != saga.OK {
		t.Errorf("a proven merge is a move: %+v", ev)
	}
	for i := range change.Table.States {
		if s := &change.Table.States[i]; s.Command == saga.DeadlineOnly {
			row := rowIn(change.Table, s)
			row.Command.DeadlineAt = at
			if c := put(change.Table, row, saga.NotDone("nothing came")); !c.AvailableAt.Equal(end) || !c.DeadlineAt.Equal(end) {
				t.Errorf("%s has nothing to look at before its deadline: %+v", s.State, c)
			}
		}
	}
}

func TestPendingCloseIsAppliedByALookThatFoundNothing(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Merging)
	row.Command.Attempt = 1
	row.Pending = &saga.Event{Name: saga.Close, Actor: "ann", Detail: "wrong"}
	if ev := settle(row, saga.NotDone("open"), saga.Execution{}); ev.Name != saga.Close || ev.Actor != "ann" || !ev.Step {
		t.Errorf("%+v", ev)
	}
	for _, o := range []saga.Outcome{saga.Unclear("timeout"), saga.NotYet("locked"), saga.FailWith(saga.Transient, "503", ""), saga.FailWith(saga.Deterministic, "403", "")} {
		ev := settle(row, o, saga.Execution{})
		if ev.Requeue == nil {
			t.Errorf("%s proves nothing, so the close still waits: %+v", o, ev)
			continue
		}
		// At once after a step that was stopped for it, else paced: a forge that is down is not asked in a circle.
		if stopped := o.Label() == "unclear"; stopped != (ev.Requeue.After == 0) || stopped != ev.Requeue.Unclear || ev.Requeue.After > time.Second {
			t.Errorf("%s: the look comes after %s, outcome unknown %t", o, ev.Requeue.After, ev.Requeue.Unclear)
		}
	}
	if ev := settle(row, saga.Done("merged", nil), saga.Execution{}); ev.Name != saga.OK {
		t.Errorf("%+v", ev)
	}
}

func TestAStepThatAnswersNothingHasFailed(t *testing.T) {
	t.Parallel()
	if ev := settle(pullRow(t, pull.Indexing), saga.Outcome{}, saga.Execution{}); ev.Name != saga.Fail || ev.Failure == nil {
		t.Errorf("%+v", ev)
	}
}

func TestBackoffDoublesIsCappedAndSpread(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 9: 4 * time.Second} {
		if low, high := budget.BackoffAfter(n, 0), budget.BackoffAfter(n, 0.999999); low != want/2 || high <= low || high > want {
			t.Errorf("attempt %d: %s to %s, expected %s to %s", n, low, high, want/2, want)
		}
	}
}

// A self-check of a waiting state that fails is no event: the state goes on
// waiting, with what was seen, until its deadline.
func TestAFailingSelfCheckMovesNothing(t *testing.T) {
	t.Parallel()
	spec, _ := change.Table.Spec(change.ApprovalSent)
	row := rowIn(change.Table, spec)
	row.Command.Attempt = 0
	for _, o := range []saga.Outcome{saga.FailWith(saga.Transient, "503", ""), saga.FailWith(saga.Deterministic, "404", ""), saga.Unclear("reset"), {}} {
		ev := saga.Settle(change.Table, row, o, saga.Execution{}, budget)
		if ev.Requeue == nil || ev.Requeue.After != time.Hour || ev.Requeue.Evidence == "" {
			t.Errorf("%s: %+v", o, ev)
		}
		if ev = saga.Settle(change.Table, row, o, saga.Execution{Overdue: true}, budget); ev.Name != saga.DeadlineUp {
			t.Errorf("%s, overdue: %+v", o, ev)
		}
	}
}
