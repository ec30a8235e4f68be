// Package approval says what flow change asks of whoever approves changes.
// Drivers: builtin (people vote through the API; nothing is sent anywhere) and
// webhook (a signed request to a system outside, answered by a callback).
package approval

import (
	"context"
	"fmt"
	"time"
)

// Request is one approval request: one round of one operation. The id is the
// same on every try, so that the approver can drop what it has already seen.
type Request struct {
	ApprovalID  string         `json:"approvalId"`
	OperationID string         `json:"operationId"`
	Round       int            `json:"round"`
	Order       string         `json:"order"`
	Subject     string         `json:"subject"`
	Target      string         `json:"target"`
	Project     string         `json:"project"`
	Title       string         `json:"title"`
	Description string         `json:"description"`
	Files       []File         `json:"files"`
	Ext         map[string]any `json:"ext"` // ext.mrId is set when an MR exists
	CallbackURL string         `json:"callbackUrl"`
	ExpiresAt   time.Time      `json:"expiresAt"`
}

// File is one submitted file.
type File struct {
	Path    string `json:"path"`
	Action  string `json:"action"`
	Content string `json:"content,omitempty"`
}

// Decision is what an approver said.
type Decision string

// The decisions. None is "not decided yet".
const (
	None      Decision = ""
	Approved  Decision = "approved"
	Rejected  Decision = "rejected"
	Withdrawn Decision = "withdrawn"
)

// Answer is a decision that was looked up.
type Answer struct {
	Decision Decision
	By       string
	Reason   string
}

// Approver is where approvals come from. Safe for concurrent use; honours the
// context. Errors are *Error where the approver answered.
type Approver interface {
	// Send asks. Repeating it under the same id is harmless.
	Send(ctx context.Context, r Request) error
	// Look asks for the decision; ok is false where this approver can't be asked.
	Look(ctx context.Context, approvalID string) (a Answer, ok bool, err error)
	// Withdraw takes a request back; one that is not there is no error.
	Withdraw(ctx context.Context, approvalID string) error
}

// Error is an answer that was no success.
type Error struct {
	Status    int
	Detail    string
	Transient bool
}

// Error says what was answered.
func (e *Error) Error() string { return fmt.Sprintf("approval: answered %d: %s", e.Status, e.Detail) }
