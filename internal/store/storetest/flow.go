package storetest

import (
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// The trial flow has one state of every kind, and a loop.
const (
	working   saga.State = "WORKING"   // running
	asking    saga.State = "ASKING"    // waiting, looks by itself
	leaving   saga.State = "LEAVING"   // passing
	finishing saga.State = "FINISHING" // running
	holding   saga.State = "HOLDING"   // waiting, nothing but a deadline
	broken    saga.State = "BROKEN"    // failed
	done      saga.State = "DONE"      // final
	closed    saga.State = "CLOSED"    // final
	replaced  saga.State = "REPLACED"  // final

	yes  saga.Name = "yes"
	hold saga.Name = "hold"
)

// Patience of the trial flow's states.
const (
	workPatience  = 10 * time.Minute
	askEvery      = 5 * time.Minute
	askPatience   = 24 * time.Hour
	holdPatience  = 2 * time.Hour
	queuePatience = 30 * time.Minute
	lease         = time.Minute
)

var trial = &saga.Flow{
	Name:    "trial",
	Version: 1,
	Entry:   map[saga.Order]saga.State{saga.OrderDefault: working},
	Grows:   []string{"commit"},
	States: []saga.Spec{
		{State: working, Code: 1, Kind: saga.Running, Status: "merging", Command: "Work",
			On: []saga.Edge{saga.On(saga.OK, asking), saga.On(hold, holding), saga.On(saga.Close, closed), saga.On(saga.Superseded, replaced),
				saga.On(saga.Found, finishing)},
			Fail: broken, Deadline: saga.Deadline{After: workPatience, To: saga.To(broken)}},
		{State: asking, Code: 2, Kind: saga.Waiting, Status: "merging", Command: "Ask", Poll: saga.Poll{Long: askEvery},
			On:       []saga.Edge{saga.On(yes, leaving), saga.On(saga.Close, closed), saga.On(saga.Superseded, replaced)},
			Deadline: saga.Deadline{After: askPatience, To: saga.To(broken)}},
		{State: leaving, Code: 3, Kind: saga.Passing, Status: "merging", On: []saga.Edge{saga.On(saga.OK, finishing)}},
		{State: finishing, Code: 4, Kind: saga.Running, Status: "merging", Command: "Finish",
			On:   []saga.Edge{saga.On(saga.OK, done), saga.On(saga.Close, closed), saga.On(saga.Superseded, replaced)},
			Fail: broken, Deadline: saga.Deadline{After: workPatience, To: saga.To(broken)}},
		{State: holding, Code: 5, Kind: saga.Waiting, Status: "merging", Command: saga.DeadlineOnly,
			On:       []saga.Edge{saga.On(saga.Resume, working), saga.On(saga.Close, closed), saga.On(saga.Superseded, replaced)},
			Deadline: saga.Deadline{After: holdPatience, To: saga.To(broken)}},
		{State: broken, Code: 6, Kind: saga.Failed, Status: "merge-failed",
			On: []saga.Edge{saga.On(saga.Retry, saga.FailedStep), saga.On(saga.Close, closed), saga.On(saga.Superseded, replaced)}},
		{State: done, Code: 7, Kind: saga.Final, Status: "merged"},
		{State: closed, Code: 8, Kind: saga.Final, Status: "closed"},
		{State: replaced, Code: 9, Kind: saga.Final, Status: "superseded"},
	},
}

func typeOf(s saga.State) string {
	spec, _ := trial.Spec(s)
	return saga.TypeOf(trial.Name, trial.Version, s, spec.Command)
}

func statusOf(s saga.State) string {
	spec, _ := trial.Spec(s)
	return string(spec.Status)
}

func kindOf(s saga.State) saga.Kind {
	spec, _ := trial.Spec(s)
	return spec.Kind
}
