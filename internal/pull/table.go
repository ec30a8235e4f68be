package pull

import (
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// The states of flow pull.
const (
	Validating  saga.State = "VALIDATING"
	Merging     saga.State = "MERGING"
	Notifying   saga.State = "NOTIFYING"
	Indexing    saga.State = "INDEXING"
	Merged      saga.State = "MERGED"
	MergeFailed saga.State = "MERGE_FAILED"
	PullClosed  saga.State = "PULL_CLOSED"
	Superseded  saga.State = "SUPERSEDED"
)

// The outward statuses of a pull request's saga.
const (
	StatusMerging     saga.Status = "merging"
	StatusMerged      saga.Status = "merged"
	StatusMergeFailed saga.Status = "merge-failed"
	StatusClosed      saga.Status = "closed"
	StatusSuperseded  saga.Status = "superseded"
)

// The commands of flow pull.
const (
	CmdValidate saga.Command = "Validate"
	CmdMerge    saga.Command = "Merge"
	CmdNotify   saga.Command = "NotifyWatchers"
	CmdIndex    saga.Command = "IndexRepository"
)

// Table is flow `pull`: validate → merge → notify → index → merged.
//
// Git is never rolled back: what fails after the merge marks the pull request
// merge-failed and offers a retry of that one step.
var Table = &saga.Flow{
	Name:    "pull",
	Version: 1,
	Entry:   map[saga.Order]saga.State{saga.OrderDefault: Validating},
	Grows:   []string{"mergeCommit"},
	StateSetting: map[saga.State]string{
		Validating: "checks.poll.budget",
	},
	States: []saga.Spec{
		{
			State: Validating, Code: 20101, Kind: saga.Running, Status: StatusMerging, Phase: "validate",
			Command: CmdValidate, Execution: 2 * time.Minute,
			Poll: saga.Poll{Short: 5 * time.Second, ShortTries: 12, Long: 30 * time.Second},
			On: []saga.Edge{
				saga.On(saga.OK, Merging),
				saga.On(saga.Found, Notifying),
				saga.On(saga.Close, PullClosed),
			},
			Fail:     MergeFailed,
			Deadline: saga.Deadline{After: time.Hour, To: saga.To(MergeFailed), Kind: saga.UnknownOutcome, Hint: "the required checks did not finish in time; retry keeps waiting for them"},
			Explain:  saga.Sentence{Summary: "Checking that {headSha} can be merged", WaitingFor: "validation", Who: "forge and CI"},
		},
		{
			State: Merging, Code: 20201, Kind: saga.Running, Status: StatusMerging, Phase: "merge",
			Command: CmdMerge,
			On: []saga.Edge{
				saga.On(saga.OK, Notifying),
				saga.On(saga.Close, PullClosed),
			},
			Fail:     MergeFailed,
			Deadline: saga.Deadline{After: 2 * time.Minute, To: saga.To(MergeFailed), Kind: saga.UnknownOutcome, Hint: "whether git merged could not be learnt; retry looks first and never merges twice"},
			Explain:  saga.Sentence{Summary: "Merging {headSha}", WaitingFor: "merge", Who: "forge"},
		},
		{
			State: Notifying, Code: 20301, Kind: saga.Running, Status: StatusMerging, Phase: "notify",
			Command:  CmdNotify,
			On:       []saga.Edge{saga.On(saga.OK, Indexing)},
			Fail:     MergeFailed,
			Deadline: saga.Deadline{After: 2 * time.Minute, To: saga.To(MergeFailed), Kind: saga.Transient, Hint: "the merge is done; retry tells only the watchers that were not reached yet"},
			Explain:  saga.Sentence{Summary: "Telling the watchers that {mergeCommit} is merged", WaitingFor: "notification", Who: "notification service"},
		},
		{
			State: Indexing, Code: 20401, Kind: saga.Running, Status: StatusMerging, Phase: "index",
			Command:  CmdIndex,
			On:       []saga.Edge{saga.On(saga.OK, Merged)},
			Fail:     MergeFailed,
			Deadline: saga.Deadline{After: 2 * time.Minute, To: saga.To(MergeFailed), Kind: saga.Transient, Hint: "the merge is done; retry runs only the index"},
			Explain:  saga.Sentence{Summary: "Making {mergeCommit} searchable", WaitingFor: "index", Who: "search index"},
		},
		{
			State: Merged, Code: 20501, Kind: saga.Final, Success: true, Status: StatusMerged, Phase: "done",
			Explain: saga.Sentence{Summary: "Merged as {mergeCommit}; watchers told, search index up to date"},
		},
		{
			State: MergeFailed, Code: 20901, Kind: saga.Failed, Status: StatusMergeFailed, Phase: "ended",
			On: []saga.Edge{
				saga.On(saga.Retry, saga.FailedStep),
				saga.Only(unmerged, saga.On(saga.Found, Notifying)),
				saga.Only(unmerged, saga.On(saga.Close, PullClosed)),
				saga.Only(unmerged, saga.On(saga.Superseded, Superseded)),
			},
			Explain: saga.Sentence{Summary: "{failedStep} failed: {error}"},
			Hint:    "fix the cause, then retry: only the failed step runs again",
		},
		{
			State: PullClosed, Code: 20902, Kind: saga.Final, Status: StatusClosed, Phase: "ended",
			Explain: saga.Sentence{Summary: "Closed without a merge"},
		},
		{
			State: Superseded, Code: 20903, Kind: saga.Final, Status: StatusSuperseded, Phase: "ended",
			Explain: saga.Sentence{Summary: "Ended by a newer request for the same pull request"},
		},
	},
}

// unmerged: what git has merged is neither closed nor begun anew, only carried on.
var unmerged = saga.Guard{Name: "git has not merged", Holds: func(r saga.Row) bool {
	d, err := dataOf(r)
	return err == nil && d.MergeCommit == ""
}}
