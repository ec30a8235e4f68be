package store

import (
	"context"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// Pulls is what flow `pull` asks.
type Pulls interface {
	// StartPull locks the pull request's live or last saga (if any) and the
	// pull request, calls decide with both, and writes what it answers: the
	// old saga's end, the new saga, the pull request's row. decide's own error
	// writes nothing and comes back as it is.
	StartPull(ctx context.Context, pullID string, decide func(p Pull, old *Locked, now time.Time) (StartPull, error)) (saga.Row, error)

	Pull(ctx context.Context, id string) (Pull, error)
	Pulls(ctx context.Context, f PullFilter) ([]Pull, error)
	Watchers(ctx context.Context, pullID string) ([]string, error)
	// AddWatchers adds those that are not there yet.
	AddWatchers(ctx context.Context, pullID string, names []string) error

	// Receipts are the recipients of a saga's notification that were reached.
	Receipts(ctx context.Context, sagaID string) (map[string]Receipt, error)
	// AddReceipt records one; a receipt that is there stays as it is.
	AddReceipt(ctx context.Context, sagaID string, r Receipt) error
}

// StartPull is what a decision to start a saga writes.
type StartPull struct {
	Old *Writes // the old saga's end; nil when there is nothing to end
	New saga.Decision
	// Status is the pull request's saga_status from now on.
	Status string
}

// Pull is a pull request: the local forge's truth (ForgeState, MergeCommit) and
// the saga's view (SagaStatus, OperationID) side by side.
type Pull struct {
	ID          string
	Forge       string // "default" for the local forge
	Repo        string
	IID         int64
	Source      string
	Target      string
	Title       string
	Description string
	Author      string
	ForgeState  string // open, merged, closed; for other forges what was last seen
	SagaStatus  string // empty until it was asked to merge
	MergeCommit string
	OperationID string // the newest saga; empty when there is none
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// PullFilter selects pull requests, newest first. Status is the outward one
// (open, merging, merged, merge-failed, closed).
type PullFilter struct {
	Repo   string
	Status string
	Query  string
	Limit  int
	Before *Cursor
}

// Status is the outward status: the saga's where there is one, else the forge's.
func (p Pull) Status() string {
	switch p.SagaStatus {
	case "", "superseded":
		return p.ForgeState
	}
	return p.SagaStatus
}

// Receipt says that a recipient was reached.
type Receipt struct {
	Recipient  string
	DeliveryID string
	At         time.Time
}
