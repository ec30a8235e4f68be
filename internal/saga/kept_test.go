package saga_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// keeping is a table whose end awaits two events, with a word on those that came early.
func keeping(kept func(saga.Row, saga.Event) (saga.Event, string)) *saga.Flow {
	return &saga.Flow{Name: "f", Version: 1, Kept: kept, States: []saga.Spec{
		{State: "RUN", Kind: saga.Running, Command: "Run", Fail: "BAD", On: []saga.Edge{saga.On(saga.OK, "WAIT")}},
		{State: "WAIT", Kind: saga.Waiting, Command: saga.DeadlineOnly, On: []saga.Edge{saga.On("yes", "END"), saga.On("no", "END")}},
		{State: "BAD", Kind: saga.Failed, On: []saga.Edge{saga.On(saga.Retry, saga.FailedStep)}},
		{State: "END", Kind: saga.Final},
	}}
}

// An event that came early is applied as the flow sees it when its turn has
// come, or dropped with the reason in the history, and the next one has its turn.
func TestTheFlowHasItsWordOnWhatCameEarly(t *testing.T) {
	t.Parallel()
	f := keeping(func(_ saga.Row, ev saga.Event) (saga.Event, string) {
		if ev.Name == "no" {
			return ev, "of another round"
		}
		ev.Data = json.RawMessage(`{"by":"now"}`)
		return ev, ""
	})
	row := saga.Row{ID: "01", Flow: "f", FlowVersion: 1, State: "RUN", Version: 1, Data: json.RawMessage(`{}`),
		Command: &saga.CommandRow{Type: "f/1/RUN/Run"},
		Early:   []saga.Event{{ID: "1", Name: "no", Actor: "a"}, {ID: "2", Name: "yes", Data: json.RawMessage(`{"by":"then"}`)}, {ID: "3", Name: "never"}}}
	d, err := saga.Decide(f, row, saga.Event{Name: saga.OK, At: at, Step: true}, saga.Settings{})
	if err != nil || d.Row.State != "END" || string(d.Row.Data) != `{"by":"now"}` || len(d.Applied) != 1 || d.Applied[0] != "2" || len(d.Row.Early) != 0 {
		t.Errorf("%+v %v", d, err)
	}
	if len(d.Notes) != 2 || d.Notes[0].Event != "no" || d.Notes[0].Actor != "a" || !strings.Contains(d.Notes[0].Detail, "of another round") ||
		d.Notes[1].Event != "never" || !strings.Contains(d.Notes[1].Detail, "END") {
		t.Errorf("notes %+v", d.Notes)
	}
	if len(row.Early) != 3 || row.Early[0].ID != "1" {
		t.Errorf("the row that was given has changed: %+v", row.Early)
	}
}

// A waiting state's self-check holds no close up, and the close's own command
// waits until the check's worker has come back.
func TestACloseDisplacesASelfCheck(t *testing.T) {
	t.Parallel()
	f := keeping(nil)
	f.States[1].On = append(f.States[1].On, saga.On(saga.Close, "RUN"))
	until := at.Add(saga.DefaultQueued)
	row := saga.Row{ID: "01", Flow: "f", FlowVersion: 1, State: "WAIT", Version: 2, Data: json.RawMessage(`{}`),
		Command: &saga.CommandRow{Type: "f/1/WAIT/Deadline", LeaseToken: "t", LeaseUntil: until}}
	d, err := saga.Decide(f, row, saga.Event{Name: saga.Close, At: at}, saga.Settings{})
	if err != nil || d.Row.State != "RUN" || d.Row.Pending != nil || d.Row.Command.HeldFor != "t" || !d.Row.Command.AvailableAt.Equal(until) {
		t.Errorf("%+v %+v %v", d.Row, d.Row.Command, err)
	}
}

// An older instance keeps what comes for a state that it does not know. The
// state was entered before, so the next look applies it.
func TestWhatAnOlderInstanceKeptIsApplied(t *testing.T) {
	t.Parallel()
	f := keeping(nil)
	row := saga.Row{ID: "01", Flow: "f", FlowVersion: 1, State: "WAIT", Version: 2, Data: json.RawMessage(`{}`),
		Command: &saga.CommandRow{Type: "f/1/WAIT/Deadline", LeaseToken: "t", LeaseUntil: at.Add(saga.DefaultQueued)}}
	kept := saga.Await(row, saga.Event{ID: "1", Name: "yes"})
	kept = saga.Await(kept.Row, saga.Event{ID: "2", Name: "other"})
	look := saga.Event{Version: 2, Step: true, At: at, Requeue: &saga.Requeue{}}
	d, err := saga.Decide(f, kept.Row, look, saga.Settings{})
	if err != nil || d.Row.State != "END" || d.Row.Command != nil || len(d.Applied) != 1 || len(d.Row.Early) != 0 {
		t.Errorf("%+v %v", d, err)
	}
	// A close that waits for the look comes first.
	kept.Row.Pending = &saga.Event{Name: saga.Close}
	if d, err = saga.Decide(f, kept.Row, look, saga.Settings{}); err != nil || len(d.Moves) != 0 || d.Row.Pending == nil || len(d.Row.Early) != 2 {
		t.Errorf("%+v %v", d, err)
	}
	// Without anything kept a look moves nothing.
	if d, err = saga.Decide(f, row, look, saga.Settings{}); err != nil || len(d.Moves) != 0 || d.Row.Command == nil {
		t.Errorf("%+v %v", d, err)
	}
}
