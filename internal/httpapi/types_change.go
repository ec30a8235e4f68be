package httpapi

import (
	"encoding/json"
	"time"
)

// NewChange asks for a change of configuration or code.
type NewChange struct {
	Subject     string         `json:"subject" doc:"Who the change is for"`
	Target      string         `json:"target" doc:"What it is about: one live request per (subject, target)"`
	Project     string         `json:"project" doc:"Repository or forge project"`
	Base        string         `json:"base,omitempty" doc:"The branch to change; the project's default branch where it isn't given"`
	Title       string         `json:"title"`
	Description string         `json:"description,omitempty"`
	Files       []ChangeFile   `json:"files" nullable:"false"`
	Labels      []string       `json:"labels,omitempty"`
	Ext         map[string]any `json:"ext,omitempty" doc:"Carried along, shown, sent to the approver; mrId is reserved"`
	Order       string         `json:"order,omitempty" doc:"approval_first or mr_first; as configured where it isn't given"`
}

// ChangeFile is one file of a change.
type ChangeFile struct {
	Path    string `json:"path"`
	Action  string `json:"action" doc:"create, update, upsert or delete"`
	Content string `json:"content,omitempty"`
}

// Plan is what a change would do. Nothing is written for it.
type Plan struct {
	Order        string          `json:"order"`
	States       []string        `json:"states" nullable:"false" doc:"The way it would go when nothing fails"`
	Base         string          `json:"base"`
	BaseSHA      string          `json:"baseSha"`
	Branch       string          `json:"branch"`
	MergeRequest PlanMR          `json:"mergeRequest"`
	Diff         string          `json:"diff"`
	Approvers    []string        `json:"approvers" nullable:"false" doc:"Who may approve; * is anybody. Empty where approvals come from outside"`
	Quorum       int             `json:"quorum,omitempty"`
	Checks       []string        `json:"checks" nullable:"false" doc:"Required checks"`
	Reviewers    []string        `json:"reviewers" nullable:"false" doc:"Accounts that approve the merge request"`
	Deadlines    []StateDeadline `json:"deadlines" nullable:"false"`
	InTheWay     string          `json:"inTheWay,omitempty" doc:"The operation that a submit would be refused for"`
}

// PlanMR is the merge request that a change would open.
type PlanMR struct {
	Title string `json:"title"`
	Body  string `json:"body"`
}

// StateDeadline is a state's patience.
type StateDeadline struct {
	State string `json:"state"`
	After string `json:"after" example:"7d"`
}

// ApprovalInput is one vote.
type ApprovalInput struct {
	Decision string `json:"decision" doc:"approved, rejected or withdrawn"`
	Reason   string `json:"reason,omitempty" maxLength:"1000"`
	As       string `json:"as,omitempty" maxLength:"100" doc:"The approver's name, only where no tokens are required"`
}

// CallbackEntry is a callback as the ledger keeps it.
type CallbackEntry struct {
	Seq       int64           `json:"seq"`
	Kind      string          `json:"kind"`
	Source    string          `json:"source"`
	RequestID string          `json:"requestId"`
	Verdict   string          `json:"verdict" enum:"applied,duplicate,stale,early,unknown,contradiction"`
	Rule      string          `json:"rule"`
	Actor     string          `json:"actor,omitempty"`
	At        time.Time       `json:"at"`
	AppliedAt time.Time       `json:"appliedAt,omitzero" doc:"When an early one was applied"`
	Payload   json.RawMessage `json:"payload,omitempty"`
}

// Verdict answers a callback.
type Verdict struct {
	Verdict string `json:"verdict" enum:"applied,duplicate,stale,early,unknown,contradiction"`
	Rule    string `json:"rule"`
}

// Binding is the outward row of a change: one per subject and target.
type Binding struct {
	Subject     string      `json:"subject"`
	Target      string      `json:"target"`
	Status      string      `json:"status"`
	OperationID string      `json:"operationId"`
	Operations  []Operation `json:"operations" nullable:"false" doc:"Newest first, at most 100"`
}

// ApprovalCallback is what an approval system sends. Fields it doesn't know are ignored.
type ApprovalCallback struct {
	_           struct{}       `additionalProperties:"true"`
	RequestID   string         `json:"requestId" maxLength:"200" doc:"The sender's delivery id"`
	OperationID string         `json:"operationId" maxLength:"200"`
	ApprovalID  string         `json:"approvalId,omitempty" maxLength:"200"`
	Decision    string         `json:"decision" doc:"approved, rejected or withdrawn"`
	By          string         `json:"by,omitempty"`
	Reason      string         `json:"reason,omitempty"`
	Ext         map[string]any `json:"ext,omitempty"`
}

// DeployCallback is what a deploy pipeline sends. Fields it doesn't know are ignored.
type DeployCallback struct {
	_           struct{} `additionalProperties:"true"`
	RequestID   string   `json:"requestId" maxLength:"200" doc:"The sender's delivery id"`
	Project     string   `json:"project,omitempty"`
	MRIID       int64    `json:"mrIid,omitempty"`
	OperationID string   `json:"operationId,omitempty" maxLength:"200"`
	MergeCommit string   `json:"mergeCommit,omitempty" maxLength:"100"`
	Result      string   `json:"result" doc:"live or failed"`
	Detail      string   `json:"detail,omitempty"`
}
