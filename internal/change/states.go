package change

import "github.com/mergeflow/mergeflow/internal/saga"

// The states of flow change. A code's first three digits are its phase.
const (
	CreateStarted         saga.State = "CREATE_STARTED"
	CreateSucceeded       saga.State = "CREATE_SUCCEEDED"
	CreateFailed          saga.State = "CREATE_FAILED"
	CreatePipelineFailed  saga.State = "CREATE_PIPELINE_FAILED"
	CreateChecking        saga.State = "CREATE_CHECKING"
	CreateRefused         saga.State = "CREATE_REFUSED"
	CreateNoChange        saga.State = "CREATE_NO_CHANGE"
	CreatePipelinePending saga.State = "CREATE_PIPELINE_PENDING"

	HandleStarted         saga.State = "HANDLE_STARTED"
	HandleApproved        saga.State = "HANDLE_APPROVED"
	HandleMerged          saga.State = "HANDLE_MERGED"
	HandleMergeFailed     saga.State = "HANDLE_MERGE_FAILED"
	HandleRebaseConflict  saga.State = "HANDLE_REBASE_CONFLICT"
	HandleApproveFailed   saga.State = "HANDLE_APPROVE_FAILED"
	HandleRebasing        saga.State = "HANDLE_REBASING"
	HandleChecking        saga.State = "HANDLE_CHECKING"
	HandlePipelineFailed  saga.State = "HANDLE_PIPELINE_FAILED"
	HandleHeadMoved       saga.State = "HANDLE_HEAD_MOVED"
	HandleBlocked         saga.State = "HANDLE_BLOCKED"
	HandlePipelinePending saga.State = "HANDLE_PIPELINE_PENDING"
	HandleRebasePending   saga.State = "HANDLE_REBASE_PENDING"

	CloseStarted   saga.State = "CLOSE_STARTED"
	CloseSucceeded saga.State = "CLOSE_SUCCEEDED"
	CloseFailed    saga.State = "CLOSE_FAILED"
	ClosedOutside  saga.State = "CLOSED_OUTSIDE"

	CalledBack      saga.State = "CALLED_BACK"
	DeployFailed    saga.State = "DEPLOY_FAILED"
	DeployAbandoned saga.State = "DEPLOY_ABANDONED"
	DeployUnknown   saga.State = "DEPLOY_UNKNOWN"

	ApprovalSending    saga.State = "APPROVAL_SENDING"
	ApprovalSent       saga.State = "APPROVAL_SENT"
	ApprovalRejected   saga.State = "APPROVAL_REJECTED"
	ApprovalSendFailed saga.State = "APPROVAL_SEND_FAILED"
	ApprovalExpired    saga.State = "APPROVAL_EXPIRED"
	ApprovalWithdrawn  saga.State = "APPROVAL_WITHDRAWN"
)

// The outward statuses of a binding.
const (
	StatusApprovalSending saga.Status = "APPROVAL_SENDING"
	StatusApprovalSent    saga.Status = "APPROVAL_SENT"
	StatusRejected        saga.Status = "REJECTED"
	StatusCreating        saga.Status = "MR_CREATING"
	StatusCreated         saga.Status = "MR_CREATED"
	StatusCreateFailed    saga.Status = "CREATE_FAILED"
	StatusMerging         saga.Status = "MERGING"
	StatusMerged          saga.Status = "MERGED"
	StatusHandleFailed    saga.Status = "HANDLE_FAILED"
	StatusClosing         saga.Status = "CLOSING"
	StatusClosed          saga.Status = "CLOSED"
	StatusValidated       saga.Status = "VALIDATED"
)

// The commands of flow change.
const (
	CmdRequestApproval saga.Command = "RequestApproval"
	CmdAwaitApproval   saga.Command = "AwaitApproval"
	CmdCreate          saga.Command = "CreateMergeRequest"
	CmdAwaitChecks     saga.Command = "AwaitChecks"
	CmdApprove         saga.Command = "ApproveMergeRequest"
	CmdMerge           saga.Command = "MergeMergeRequest"
	CmdRebase          saga.Command = "RebaseMergeRequest"
	CmdAwaitPeople     saga.Command = "AwaitPeople"
	CmdClose           saga.Command = "CloseMergeRequest"
	CmdReconcile       saga.Command = "Reconcile"
)

// The events of flow change beside those that every flow shares.
const (
	EvSent          saga.Name = "sent"
	EvApproved      saga.Name = "approved"
	EvRejected      saga.Name = "rejected"
	EvWithdrawn     saga.Name = "withdrawn"
	EvNoChange      saga.Name = "no-change"
	EvRed           saga.Name = "red"
	EvHeadMoved     saga.Name = "head-moved"
	EvBehind        saga.Name = "behind"
	EvConflict      saga.Name = "conflict"
	EvUnfinished    saga.Name = "checks-unfinished"
	EvUnapproved    saga.Name = "approval-gone"
	EvBlocked       saga.Name = "blocked"
	EvExhausted     saga.Name = "rebases-used-up"
	EvClosedOutside saga.Name = "closed-outside"
	EvLive          saga.Name = "live"
	EvDeployFailed  saga.Name = "deploy-failed"
)

// The orders of flow change: nothing but entry states.
const (
	ApprovalFirst saga.Order = "approval_first"
	MRFirst       saga.Order = "mr_first"
)
