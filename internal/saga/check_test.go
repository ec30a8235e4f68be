package saga_test

import (
	"strings"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// sound is a small table that holds; each case breaks one rule of it.
func sound() *saga.Flow {
	said := saga.Sentence{Summary: "s", WaitingFor: "w", Who: "x"}
	return &saga.Flow{
		Name: "t", Version: 1, Entry: map[saga.Order]saga.State{"": "RUN"},
		States: []saga.Spec{
			{State: "RUN", Code: 1, Kind: saga.Running, Status: "s", Phase: "p", Command: "Do", Fail: "BAD", On: []saga.Edge{saga.On(saga.OK, "PASS")}, Deadline: saga.Deadline{After: time.Minute, To: saga.To("BAD")}, Explain: said},
			{State: "PASS", Code: 2, Kind: saga.Passing, Status: "s", Phase: "p", On: []saga.Edge{saga.On(saga.OK, "WAIT")}},
			{State: "WAIT", Code: 3, Kind: saga.Waiting, Status: "s", Phase: "p", Command: saga.DeadlineOnly, On: []saga.Edge{saga.On(saga.OK, "END")}, Deadline: saga.Deadline{After: time.Minute, To: saga.To("BAD")}, Explain: said},
			{State: "BAD", Code: 4, Kind: saga.Failed, Status: "s", Phase: "p", On: []saga.Edge{saga.On(saga.Retry, saga.FailedStep)}},
			{State: "END", Code: 5, Kind: saga.Final, Status: "s", Phase: "p"},
		},
	}
}

func TestCheckFindsEachBrokenRule(t *testing.T) {
	t.Parallel()
	if err := saga.Check(sound()); err != nil {
		t.Fatalf("the sound table: %v", err)
	}
	never := saga.Guard{Name: "never", Holds: func(saga.Row) bool { return false }}
	for name, c := range map[string]struct {
		breakIt func(f *saga.Flow)
		want    string
	}{
		"code twice":               {func(f *saga.Flow) { f.States[1].Code = 1 }, "code 1 is RUN's"},
		"state twice":              {func(f *saga.Flow) { f.States[4].State = "RUN" }, "stands twice"},
		"no command":               {func(f *saga.Flow) { f.States[0].Command = "" }, "needs a command"},
		"no failed state":          {func(f *saga.Flow) { f.States[0].Fail = "" }, "fail must lead to"},
		"fails into a final state": {func(f *saga.Flow) { f.States[0].Fail = "END" }, "fail must lead to"},
		"running without deadline": {func(f *saga.Flow) { f.States[0].Deadline = saga.Deadline{} }, "needs a deadline"},
		"waiting without deadline": {func(f *saga.Flow) { f.States[2].Deadline.After = 0 }, "needs a deadline"},
		"deadline leads nowhere":   {func(f *saga.Flow) { f.States[2].Deadline.To = saga.To("GONE") }, "which is no state"},
		"unexplained":              {func(f *saga.Flow) { f.States[2].Explain.Who = "" }, "needs a sentence"},
		"no retry":                 {func(f *saga.Flow) { f.States[3].On = []saga.Edge{saga.On(saga.Close, "END")} }, "can be retried"},
		"way out of a final state": {func(f *saga.Flow) { f.States[4].On = []saga.Edge{saga.On(saga.Retry, "RUN")} }, "no way out"},
		"busy passing state":       {func(f *saga.Flow) { f.States[1].Command = "Do" }, "passing state"},
		"unreachable":              {func(f *saga.Flow) { f.States[1].On = []saga.Edge{saga.On(saga.OK, "END")} }, "can't be reached"},
		"dead end":                 {func(f *saga.Flow) { f.States[2].On = []saga.Edge{saga.On(saga.OK, "WAIT")} }, "can't reach a final state"},
		"event twice": {func(f *saga.Flow) {
			f.States[0].On = append(f.States[0].On, saga.On(saga.OK, "WAIT"))
		}, "stands twice"},
		"all targets guarded":  {func(f *saga.Flow) { f.States[0].On[0].To = []saga.Target{{State: "PASS", When: never}} }, "no guard"},
		"target hides another": {func(f *saga.Flow) { f.States[0].On[0].To = []saga.Target{{State: "PASS"}, {State: "WAIT"}} }, "hides"},
		"failed step of none":  {func(f *saga.Flow) { f.States[2].On[0].To = saga.To(saga.FailedStep) }, "only a failed state"},
		"no entry":             {func(f *saga.Flow) { f.Entry = nil }, "no entry"},
		"unknown entry":        {func(f *saga.Flow) { f.Entry[""] = "GONE" }, "is an entry but not a state"},
		"no status":            {func(f *saga.Flow) { f.States[4].Status = "" }, "status"},
		"no kind":              {func(f *saga.Flow) { f.States[4].Kind = 0 }, "has no kind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := sound()
			c.breakIt(f)
			if err := saga.Check(f); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got: %v", c.want, err)
			}
		})
	}
}
