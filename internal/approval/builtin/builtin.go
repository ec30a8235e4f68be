// Package builtin is the approval that mergeflow keeps itself: people vote
// through the API and the command line, nothing is sent anywhere. Asking it
// answers nothing, because a vote is in the saga's own row.
package builtin

import (
	"context"

	"github.com/mergeflow/mergeflow/internal/approval"
)

// Approver is the built-in approval. The zero value works.
type Approver struct{}

var _ approval.Approver = Approver{}

// Send has nobody to send to: the request is the operation itself, which people
// see and decide.
func (Approver) Send(context.Context, approval.Request) error { return nil }

// Look can't be asked.
func (Approver) Look(context.Context, string) (approval.Answer, bool, error) {
	return approval.Answer{}, false, nil
}

// Withdraw has nothing to take back.
func (Approver) Withdraw(context.Context, string) error { return nil }
