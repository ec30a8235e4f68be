package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// ErrIdempotencyMismatch says that an idempotency key was used before with another body.
var ErrIdempotencyMismatch = errors.New("the idempotency key was used with another body")

// Changes is what flow `change` asks.
type Changes interface {
	// StartChange is the door of flow change, in one transaction: it takes the
	// idempotency key, locks the binding's live or last saga and the binding
	// (made where it is new), calls decide, and writes what it answers: the old
	// saga's end, the new saga, its inputs, the binding reset to it. decide's
	// own error writes nothing (the key included) and comes back as it is. A
	// key that was used with the same hash answers the first answer and
	// Replayed; with another hash ErrIdempotencyMismatch.
	StartChange(ctx context.Context, in ChangeDoor, decide func(d DoorState) (StartChange, error)) (ChangeStarted, error)

	// Binding answers ErrNotFound for a pair that nobody asked for yet.
	Binding(ctx context.Context, subject, target string) (Binding, error)
	// Inputs are a saga's submitted files, in the order they were given.
	Inputs(ctx context.Context, sagaID string) ([]Input, error)

	// Callback is one transaction: it takes the key (source, request id), locks
	// the saga (waiting up to 2 s, then ErrBusy with nothing written) and reads
	// its binding, calls decide, writes the ledger row with its verdict and all
	// that decide answers. A callback whose key was seen is decided too, with
	// Seen set, and may write nothing but its ledger row.
	Callback(ctx context.Context, in Callback, decide func(s CallbackState) (CallbackDecision, error)) (CallbackEntry, error)
	// Callbacks are a saga's ledger rows, oldest first; after is exclusive.
	Callbacks(ctx context.Context, sagaID string, after int64, limit int) ([]CallbackEntry, error)
	// Operation finds the saga that a deploy callback without an operation id
	// is about: by merge commit, else by project and merge request number; the
	// newest one. ErrNotFound when there is none.
	OperationOf(ctx context.Context, project, mergeCommit string, mrIID int64) (string, error)
	// LiveSince are the deploys of the project and base for which a live
	// callback was recorded after since, newest first, at most limit.
	LiveSince(ctx context.Context, project, base string, since time.Time, limit int) ([]DeployRecord, error)

	// ApproveMR records that an account approved a head of the local forge's
	// merge request; again is a no-op. MRApprovals lists them, oldest first.
	ApproveMR(ctx context.Context, pullID, account, sha string) error
	MRApprovals(ctx context.Context, pullID string) ([]MRApproval, error)
}

// ChangeDoor is a request at the door.
type ChangeDoor struct {
	Key     *IdempotencyKey // nil: none was given
	Subject string
	Target  string
}

// IdempotencyKey makes a repeated request answer like the first.
type IdempotencyKey struct {
	Scope string // the actor: two of them may use the same key
	Key   string
	Hash  string // of the body, hex SHA-256
}

// DoorState is what decide sees, all under lock.
type DoorState struct {
	Binding Binding // zero OperationID: new
	Old     *Locked // the binding's last saga; nil when there is none
	Now     time.Time
}

// StartChange is what a decision to take a change writes.
type StartChange struct {
	Old    *Writes // the old saga's end; nil when there is nothing to end
	New    saga.Decision
	Status string // the binding's status
	Inputs []Input
}

// ChangeStarted is what the door answered.
type ChangeStarted struct {
	OperationID string
	State       saga.State // at the start
	Status      string     // at the start
	Replayed    bool
}

// Binding is the outward row of flow change: one per (subject, target).
type Binding struct {
	Subject     string
	Target      string
	Status      string
	OperationID string // the newest saga
	UpdatedAt   time.Time
}

// BindingWrite updates the binding that the saga owns; a newer saga's is left alone.
type BindingWrite struct {
	Status string
}

// Input is one submitted file.
type Input struct {
	Path    string `json:"path"`
	Action  string `json:"action"` // create, update, upsert, delete
	Content string `json:"content,omitempty"`
}

// Callback is one call from outside, as it came.
type Callback struct {
	ID          string          // uuid v7, the caller's; the ledger row's key
	Kind        string          // approval, deploy, webhook
	Source      string          // endpoint and credential, e.g. "approval/secret-1"
	RequestID   string          // the sender's delivery id
	Hash        string          // of the payload, hex SHA-256
	OperationID string          // what it says it is about; may be unknown or empty
	Payload     json.RawMessage // at most 16 KiB are kept
}

// CallbackState is what decide sees.
type CallbackState struct {
	Seen     bool    // this source and request id came before
	SameHash bool    // with the same payload
	Saga     *Locked // nil: no such operation
	Owner    bool    // the binding's newest operation is this saga
	Now      time.Time
}

// CallbackDecision is what a callback does.
type CallbackDecision struct {
	Verdict string
	Rule    string
	Actor   string
	Writes  *Writes // nil: nothing but the ledger row
	Deploy  *DeployRecord
}

// DeployRecord is what a deploy callback proved, kept for the watermark.
type DeployRecord struct {
	Project     string
	Base        string
	MRIID       int64
	MergeCommit string
	Result      string
}

// CallbackEntry is a row of the ledger.
type CallbackEntry struct {
	Seq       int64  // order of arrival
	ID        string // uuid
	SagaID    string // empty when no such operation exists
	Kind      string
	Source    string
	RequestID string
	Verdict   string
	Rule      string
	Actor     string
	Payload   json.RawMessage
	At        time.Time
	AppliedAt time.Time      // when an early one was applied; zero otherwise
	Decision  *saga.Decision `json:"-"` // what Callback wrote; nil where nothing
}

// MRApproval is one account's approval of one head.
type MRApproval struct {
	Account string
	SHA     string
	At      time.Time
}

// Refs are what a saga of flow change is found by when a callback names no
// operation: the merge request's number and the merge commit, from its data.
// Drivers write them in the transaction in which they first appear.
func Refs(row saga.Row) (mrIID int64, mergeCommit string) {
	if row.Flow != changeFlow {
		return 0, ""
	}
	var d struct {
		MRIID       int64  `json:"mrIid"`
		MergeCommit string `json:"mergeCommit"`
	}
	if json.Unmarshal(row.Data, &d) != nil {
		return 0, ""
	}
	return d.MRIID, d.MergeCommit
}

// changeFlow is the flow whose sagas callbacks look for.
const changeFlow = "change"
