package change

import (
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
)

const day = 24 * time.Hour

// Table is flow `change`: request → approval → merge request → checks → approve
// and merge → live. The order is only the entry state; everything after it asks
// "is this content approved?" and "is there an MR?".
var Table = &saga.Flow{
	Name:    "change",
	Version: 1,
	Entry:   map[saga.Order]saga.State{ApprovalFirst: ApprovalSending, MRFirst: CreateStarted},
	Doors:   []saga.State{CreateRefused},
	Grows:   []string{"mergeCommit"},
	Kept:    applyKept,
	StateSetting: map[saga.State]string{
		CreateChecking: "checks.poll.budget",
		HandleChecking: "checks.poll.budget",
		HandleRebasing: "merge.rebase_poll.budget",
		HandleMerged:   "reconcile.max_age",
	},
	States: append(append(append(append(approvalStates, createStates...), handleStates...), closeStates...), deployStates...),
}

// open adds what every state shares that is neither final nor merged: it can be
// closed, and hands on the forge can merge or close the merge request.
func open(edges ...saga.Edge) []saga.Edge {
	return append(edges,
		saga.On(saga.Found, HandleMerged),
		saga.On(EvClosedOutside, ClosedOutside),
		saga.Edge{Event: saga.Close, To: saga.To(CloseStarted), Set: closing(CloseSucceeded)},
	)
}

func closing(as saga.State) map[string]string { return map[string]string{"closeAs": string(as)} }

// ended leads to an approval's end: by way of CLOSE_STARTED where there is an MR to close.
func ended(as saga.State) []saga.Target {
	return []saga.Target{{State: CloseStarted, When: hasMR}, {State: as}}
}

func endedOn(e saga.Name, as saga.State) saga.Edge {
	return saga.Edge{Event: e, To: ended(as), Set: closing(as)}
}

// closed leads to the final state that asked for the close.
func closed() []saga.Target {
	return []saga.Target{
		{State: ApprovalRejected, When: closesAs(ApprovalRejected)},
		{State: ApprovalWithdrawn, When: closesAs(ApprovalWithdrawn)},
		{State: ApprovalExpired, When: closesAs(ApprovalExpired)},
		{State: CloseSucceeded},
	}
}

var checkPoll = saga.Poll{Short: 5 * time.Second, ShortTries: 12, Long: 30 * time.Second}

var approvalStates = []saga.Spec{
	{
		State: ApprovalSending, Code: 10401, Kind: saga.Running, Status: StatusApprovalSending, Phase: "approval",
		Command: CmdRequestApproval,
		On: open(
			saga.On(EvSent, ApprovalSent),
			saga.Choose(EvApproved, hasMR, HandleStarted, CreateStarted),
			endedOn(EvRejected, ApprovalRejected),
			endedOn(EvWithdrawn, ApprovalWithdrawn),
		),
		Fail:     ApprovalSendFailed,
		Deadline: saga.Deadline{After: 10 * time.Minute, To: saga.To(ApprovalSendFailed), Kind: saga.UnknownOutcome, Hint: "whether the approver got the request is not known; retry sends it under the same id"},
		Explain:  saga.Sentence{Summary: "Sending the approval request", WaitingFor: "approval request", Who: "approval system"},
	},
	{
		State: ApprovalSent, Code: 10402, Kind: saga.Waiting, Status: StatusApprovalSent, Phase: "approval",
		Command: CmdAwaitApproval, Poll: saga.Poll{Long: time.Hour},
		On: open(
			saga.Choose(EvApproved, hasMR, HandleStarted, CreateStarted),
			endedOn(EvRejected, ApprovalRejected),
			endedOn(EvWithdrawn, ApprovalWithdrawn),
		),
		Deadline: saga.Deadline{After: 7 * day, To: ended(ApprovalExpired), Set: closing(ApprovalExpired), Kind: saga.NeedsHuman},
		Explain:  saga.Sentence{Summary: "Waiting for approval", WaitingFor: "approval", Who: "approvers"},
	},
	{State: ApprovalRejected, Code: 10403, Kind: saga.Final, Status: StatusRejected, Phase: "approval", Explain: saga.Sentence{Summary: "Rejected by {decidedBy}"}},
	{
		State: ApprovalSendFailed, Code: 10404, Kind: saga.Failed, Status: StatusCreateFailed, Phase: "approval",
		On:      open(saga.On(saga.Retry, ApprovalSending)),
		Explain: saga.Sentence{Summary: "The approval request could not be sent: {error}"},
		Hint:    "when the approval system answers again, retry",
	},
	{State: ApprovalExpired, Code: 10405, Kind: saga.Final, Status: StatusRejected, Phase: "approval", Explain: saga.Sentence{Summary: "Nobody approved in time"}},
	{State: ApprovalWithdrawn, Code: 10406, Kind: saga.Final, Status: StatusRejected, Phase: "approval", Explain: saga.Sentence{Summary: "Withdrawn by the requester"}},
}

var createStates = []saga.Spec{
	{
		State: CreateStarted, Code: 10001, Kind: saga.Running, Status: StatusCreating, Phase: "create",
		Command:  CmdCreate,
		On:       open(saga.On(saga.OK, CreateChecking), saga.On(EvNoChange, CreateNoChange)),
		Fail:     CreateFailed,
		Deadline: saga.Deadline{After: 10 * time.Minute, To: saga.To(CreateFailed), Kind: saga.UnknownOutcome, Hint: "retry looks for what was created and goes on from there"},
		Explain:  saga.Sentence{Summary: "Creating branch, commit and merge request", WaitingFor: "merge request", Who: "forge"},
	},
	{
		State: CreateSucceeded, Code: 10002, Kind: saga.Passing, Status: StatusCreated, Phase: "create",
		On: []saga.Edge{saga.Choose(saga.OK, approved, HandleStarted, ApprovalSending)},
	},
	{
		State: CreateFailed, Code: 10003, Kind: saga.Failed, Status: StatusCreateFailed, Phase: "create",
		On:      open(saga.On(saga.Retry, CreateStarted)),
		Explain: saga.Sentence{Summary: "The merge request could not be created: {error}"},
		Hint:    "fix the cause, then retry",
	},
	{
		State: CreatePipelineFailed, Code: 10004, Kind: saga.Failed, Status: StatusCreateFailed, Phase: "create",
		On:      open(saga.On(saga.Retry, CreateChecking), saga.On(saga.Adopt, CreateChecking)),
		Explain: saga.Sentence{Summary: "The checks of {headSha} failed: {error}"},
		Hint:    "run the checks again for the same head, then retry; or close and submit again",
	},
	{
		State: CreateChecking, Code: 10005, Kind: saga.Running, Status: StatusCreating, Phase: "create",
		Command: CmdAwaitChecks, Execution: 2 * time.Minute, Poll: checkPoll,
		On: open(
			saga.On(saga.OK, CreateSucceeded),
			saga.On(EvRed, CreatePipelineFailed),
			saga.On(EvHeadMoved, HandleHeadMoved),
		),
		Fail:     CreatePipelinePending,
		Deadline: saga.Deadline{After: time.Hour, To: saga.To(CreatePipelinePending), Kind: saga.UnknownOutcome},
		Explain:  saga.Sentence{Summary: "Waiting for the check pipeline of {headSha}", WaitingFor: "pipeline", Who: "CI"},
	},
	{
		State: CreateRefused, Code: 10006, Kind: saga.Failed, Status: StatusCreateFailed, Phase: "create",
		On: []saga.Edge{
			saga.Choose(saga.Retry, mrFirst, CreateStarted, ApprovalSending),
			saga.On(saga.Close, CloseSucceeded),
			saga.On(saga.Superseded, CloseSucceeded),
		},
		Explain: saga.Sentence{Summary: "Stored, but not begun: {error}"},
		Hint:    "retry when the load has passed",
	},
	{State: CreateNoChange, Code: 10007, Kind: saga.Final, Status: StatusClosed, Phase: "create", Explain: saga.Sentence{Summary: "Nothing to do: the base already says so"}},
	{
		State: CreatePipelinePending, Code: 10502, Kind: saga.Waiting, Status: StatusCreating, Phase: "unknown",
		Command: CmdAwaitChecks, Poll: saga.Poll{Long: 5 * time.Minute},
		On: open(
			saga.On(saga.OK, CreateSucceeded),
			saga.On(EvRed, CreatePipelineFailed),
			saga.On(EvHeadMoved, HandleHeadMoved),
			saga.On(saga.Resume, CreateChecking),
			saga.On(saga.Fail, CreatePipelineFailed),
		),
		Deadline: saga.Deadline{After: 7 * day, To: saga.To(CreatePipelineFailed), Kind: saga.UnknownOutcome, Hint: "the pipeline never ended; look at CI, then retry"},
		Explain:  saga.Sentence{Summary: "The pipeline of {headSha} gave no result in time; still looking", WaitingFor: "an operator, or the pipeline after all", Who: "operators"},
	},
}

var handleStates = []saga.Spec{
	{
		State: HandleStarted, Code: 10101, Kind: saga.Running, Status: StatusMerging, Phase: "handle",
		Command:  CmdApprove,
		On:       open(saga.On(saga.OK, HandleApproved), saga.On(EvHeadMoved, HandleHeadMoved)),
		Fail:     HandleApproveFailed,
		Deadline: saga.Deadline{After: 10 * time.Minute, To: saga.To(HandleApproveFailed), Kind: saga.UnknownOutcome, Hint: "retry reads who has approved before it approves"},
		Explain:  saga.Sentence{Summary: "Approving {headSha} with the reviewer accounts", WaitingFor: "approvals", Who: "forge"},
	},
	{
		State: HandleApproved, Code: 10102, Kind: saga.Running, Status: StatusMerging, Phase: "handle",
		Command: CmdMerge,
		On: open(
			saga.On(saga.OK, HandleMerged),
			saga.On(EvBehind, HandleRebasing),
			saga.On(EvUnfinished, HandleChecking),
			saga.On(EvUnapproved, HandleStarted),
			saga.On(EvRed, HandlePipelineFailed),
			saga.On(EvConflict, HandleRebaseConflict),
			saga.On(EvHeadMoved, HandleHeadMoved),
			saga.On(EvBlocked, HandleBlocked),
		),
		Fail:     HandleMergeFailed,
		Deadline: saga.Deadline{After: 30 * time.Minute, To: saga.To(HandleMergeFailed), Kind: saga.UnknownOutcome, Hint: "whether git merged could not be learnt; retry looks first and never merges twice"},
		Explain:  saga.Sentence{Summary: "Merging {headSha}", WaitingFor: "merge", Who: "forge"},
	},
	{
		State: HandleMergeFailed, Code: 10104, Kind: saga.Failed, Status: StatusHandleFailed, Phase: "handle",
		On:      open(saga.On(saga.Retry, HandleApproved)),
		Explain: saga.Sentence{Summary: "The merge failed: {error}"},
		Hint:    "fix the cause, then retry",
	},
	{
		State: HandleRebaseConflict, Code: 10105, Kind: saga.Failed, Status: StatusHandleFailed, Phase: "handle",
		On:      open(saga.On(saga.Retry, HandleRebasing), saga.On(saga.Adopt, CreateChecking)),
		Explain: saga.Sentence{Summary: "The branch conflicts with its target: {error}"},
		Hint:    "close and submit again on the current base; or take what conflicts off the target, then retry",
	},
	{
		State: HandleApproveFailed, Code: 10106, Kind: saga.Failed, Status: StatusHandleFailed, Phase: "handle",
		On:      open(saga.On(saga.Retry, HandleStarted)),
		Explain: saga.Sentence{Summary: "A reviewer account could not approve: {error}"},
		Hint:    "check the reviewer accounts' rights, then retry",
	},
	{
		State: HandleRebasing, Code: 10107, Kind: saga.Running, Status: StatusMerging, Phase: "handle",
		Command: CmdRebase, Poll: saga.Poll{Short: time.Second, ShortTries: 10, Long: 5 * time.Second},
		On: open(
			saga.On(saga.OK, HandleChecking),
			saga.On(EvConflict, HandleRebaseConflict),
			saga.On(EvHeadMoved, HandleHeadMoved),
			saga.On(EvExhausted, HandleMergeFailed),
		),
		Fail:     HandleMergeFailed,
		Deadline: saga.Deadline{After: 5 * time.Minute, To: saga.To(HandleRebasePending), Kind: saga.UnknownOutcome},
		Explain:  saga.Sentence{Summary: "Rebasing onto the target's tip", WaitingFor: "rebase", Who: "forge"},
	},
	{
		State: HandleChecking, Code: 10108, Kind: saga.Running, Status: StatusMerging, Phase: "handle",
		Command: CmdAwaitChecks, Execution: 2 * time.Minute, Poll: checkPoll,
		On: open(
			saga.Choose(saga.OK, approved, HandleStarted, ApprovalSending),
			saga.On(EvRed, HandlePipelineFailed),
			saga.On(EvHeadMoved, HandleHeadMoved),
		),
		Fail:     HandlePipelinePending,
		Deadline: saga.Deadline{After: time.Hour, To: saga.To(HandlePipelinePending), Kind: saga.UnknownOutcome},
		Explain:  saga.Sentence{Summary: "Waiting for the check pipeline of {headSha}", WaitingFor: "pipeline", Who: "CI"},
	},
	{
		State: HandlePipelineFailed, Code: 10109, Kind: saga.Failed, Status: StatusHandleFailed, Phase: "handle",
		On:      open(saga.On(saga.Retry, HandleChecking), saga.On(saga.Adopt, CreateChecking)),
		Explain: saga.Sentence{Summary: "The checks of {headSha} failed: {error}"},
		Hint:    "run the checks again for the same head, then retry; or close and submit again",
	},
	{
		State: HandleHeadMoved, Code: 10110, Kind: saga.Failed, Status: StatusHandleFailed, Phase: "handle",
		On:      open(saga.On(saga.Retry, saga.FailedStep), saga.On(saga.Adopt, CreateChecking)),
		Explain: saga.Sentence{Summary: "Somebody else pushed to the branch: {error}"},
		Hint:    "put the old head back, then retry; or close and submit again",
	},
	{
		State: HandleBlocked, Code: 10111, Kind: saga.Waiting, Status: StatusMerging, Phase: "handle",
		Command: CmdAwaitPeople, Poll: saga.Poll{Long: 5 * time.Minute},
		On:       open(saga.On(saga.OK, HandleApproved), saga.On(EvHeadMoved, HandleHeadMoved)),
		Deadline: saga.Deadline{After: 7 * day, To: saga.To(HandleMergeFailed), Kind: saga.NeedsHuman, Hint: "clear what blocks the merge request on the forge, then retry"},
		Explain:  saga.Sentence{Summary: "Something only people can clear blocks the merge", WaitingFor: "a person, on the forge", Who: "people on the forge"},
	},
	{
		State: HandlePipelinePending, Code: 10501, Kind: saga.Waiting, Status: StatusMerging, Phase: "unknown",
		Command: CmdAwaitChecks, Poll: saga.Poll{Long: 5 * time.Minute},
		On: open(
			saga.Choose(saga.OK, approved, HandleStarted, ApprovalSending),
			saga.On(EvRed, HandlePipelineFailed),
			saga.On(EvHeadMoved, HandleHeadMoved),
			saga.On(saga.Resume, HandleChecking),
			saga.On(saga.Fail, HandlePipelineFailed),
		),
		Deadline: saga.Deadline{After: 7 * day, To: saga.To(HandlePipelineFailed), Kind: saga.UnknownOutcome, Hint: "the pipeline never ended; look at CI, then retry"},
		Explain:  saga.Sentence{Summary: "The pipeline of {headSha} gave no result in time; still looking", WaitingFor: "an operator, or the pipeline after all", Who: "operators"},
	},
	{
		State: HandleRebasePending, Code: 10503, Kind: saga.Waiting, Status: StatusMerging, Phase: "unknown",
		Command: CmdRebase, Poll: saga.Poll{Long: 5 * time.Minute},
		On: open(
			saga.On(saga.OK, HandleChecking),
			saga.On(EvConflict, HandleRebaseConflict),
			saga.On(EvHeadMoved, HandleHeadMoved),
			saga.On(saga.Resume, HandleRebasing),
			saga.On(saga.Fail, HandleMergeFailed),
		),
		Deadline: saga.Deadline{After: 7 * day, To: saga.To(HandleMergeFailed), Kind: saga.UnknownOutcome, Hint: "the rebase never ended; look at the forge, then retry"},
		Explain:  saga.Sentence{Summary: "The rebase gave no result in time; still looking", WaitingFor: "an operator, or the rebase after all", Who: "operators"},
	},
}

var closeStates = []saga.Spec{
	{
		State: CloseStarted, Code: 10201, Kind: saga.Running, Status: StatusClosing, Phase: "close",
		Command: CmdClose,
		On: []saga.Edge{
			{Event: saga.OK, To: closed()},
			{Event: EvClosedOutside, To: closed()},
			saga.On(saga.Found, HandleMerged),
		},
		Fail:     CloseFailed,
		Deadline: saga.Deadline{After: 10 * time.Minute, To: saga.To(CloseFailed), Kind: saga.UnknownOutcome, Hint: "retry looks what is left to close"},
		Explain:  saga.Sentence{Summary: "Closing merge request, branch and approval request", WaitingFor: "close", Who: "forge"},
	},
	{State: CloseSucceeded, Code: 10202, Kind: saga.Final, Status: StatusClosed, Phase: "close", Explain: saga.Sentence{Summary: "Closed"}},
	{
		State: CloseFailed, Code: 10203, Kind: saga.Failed, Status: StatusHandleFailed, Phase: "close",
		On: []saga.Edge{
			saga.On(saga.Retry, CloseStarted),
			{Event: EvClosedOutside, To: closed()},
			saga.On(saga.Found, HandleMerged),
		},
		Explain: saga.Sentence{Summary: "The merge request could not be closed: {error}"},
		Hint:    "fix the cause, then retry",
	},
	{State: ClosedOutside, Code: 10204, Kind: saga.Final, Status: StatusClosed, Phase: "close", Explain: saga.Sentence{Summary: "Somebody closed the merge request on the forge"}},
}

var deployStates = []saga.Spec{
	{
		State: HandleMerged, Code: 10103, Kind: saga.Waiting, Status: StatusMerged, Phase: "deploy",
		Command: CmdReconcile, Execution: 2 * time.Minute, Poll: saga.Poll{Long: 10 * time.Minute},
		On: []saga.Edge{
			saga.On(EvLive, CalledBack),
			saga.On(EvDeployFailed, DeployFailed),
			saga.On(saga.Fail, DeployFailed),
		},
		Deadline: saga.Deadline{After: 7 * day, To: saga.To(DeployUnknown), Kind: saga.UnknownOutcome},
		Explain:  saga.Sentence{Summary: "Merged as {mergeCommit}; waiting until it is live", WaitingFor: "deploy", Who: "deploy pipeline"},
	},
	{State: CalledBack, Code: 10301, Kind: saga.Final, Success: true, Status: StatusValidated, Phase: "deploy", Explain: saga.Sentence{Summary: "Live as {mergeCommit}"}},
	{
		State: DeployFailed, Code: 10302, Kind: saga.Failed, Status: StatusMerged, Phase: "deploy",
		On: []saga.Edge{
			saga.On(EvLive, CalledBack),
			saga.On(saga.Retry, HandleMerged),
			saga.On(saga.Fail, DeployAbandoned),
		},
		Explain: saga.Sentence{Summary: "Merged, but the deploy failed: {error}"},
		Hint:    "repair the deploy, then retry waits for it again; fail gives it up, so that a corrective change may follow",
	},
	{State: DeployAbandoned, Code: 10303, Kind: saga.Final, Status: StatusClosed, Phase: "deploy", Explain: saga.Sentence{Summary: "Merged, but its deploy was given up"}},
	{
		State: DeployUnknown, Code: 10504, Kind: saga.Waiting, Status: StatusMerged, Phase: "unknown",
		Command: saga.DeadlineOnly,
		On: []saga.Edge{
			saga.On(EvLive, CalledBack),
			saga.On(EvDeployFailed, DeployFailed),
			saga.On(saga.Resume, HandleMerged),
			saga.On(saga.Fail, DeployAbandoned),
		},
		Deadline: saga.Deadline{After: 30 * day, To: saga.To(DeployFailed), Kind: saga.UnknownOutcome, Hint: "nobody ever said whether it is live; look at the deploy"},
		Explain:  saga.Sentence{Summary: "Merged as {mergeCommit}; nobody said whether it is live", WaitingFor: "an operator, or the callback after all", Who: "operators"},
	},
}
