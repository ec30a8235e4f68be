// Package store says what the engine, the flows and the API ask of a database.
// Two drivers implement it, postgres and sqlite, and one suite (storetest)
// proves that they behave alike.
//
// The verbs are few and coarse. Apply is the heart: it locks many sagas, hands
// each row to a pure decision, and commits everything that was decided in one
// transaction, while each saga is still answered alone.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// Sentinel errors. Drivers wrap them with what was asked.
var (
	ErrNotFound  = errors.New("not found")
	ErrExists    = errors.New("exists already")
	ErrBusy      = errors.New("another transaction holds this saga")                // nothing written; try again
	ErrLeaseLost = errors.New("the lease on this command is lost")                  // what was written is what decide answered for a lost lease
	ErrConflict  = errors.New("the database refused the write")                     // a constraint or a value it can't hold
	ErrUnknown   = errors.New("the connection was lost and the outcome is unknown") // only when even the look after it failed
)

// Store is one database. All methods are safe for concurrent use and honour
// their context; all times are the database's (Now).
type Store interface {
	Sagas
	Pulls
	Forge
	Changes
	Auditor
	Close() error
	// Ping answers quickly whether the database can be used.
	Ping(ctx context.Context) error
	// Now is the database's clock: mergeflow_now() on PostgreSQL, the injected
	// clock on SQLite.
	Now(ctx context.Context) (time.Time, error)
	// Schema is the migration number that the database stands at.
	Schema(ctx context.Context) (int64, error)
}

// Sagas is what the engine and the operations API ask.
type Sagas interface {
	// Claim leases due commands of the kinds it is told, at most Cap of each
	// and Max in all, oldest first within a kind, in one short transaction.
	// Rows that somebody else leases, locks or knows how to perform are left
	// alone. The attempt is counted before the claim is answered.
	Claim(ctx context.Context, in Claim) ([]Claimed, error)

	// Apply locks the sagas of reqs (one request per saga), calls decide for
	// each locked row, and commits all that was decided in one transaction.
	// It answers one Result per request, in the order of reqs:
	//
	//   - a saga that another transaction holds: ErrBusy, unless Wait is set;
	//   - a saga that doesn't exist: ErrNotFound;
	//   - decide's own error, with nothing written for that saga;
	//   - a lease that is lost: decide is called with Held false, what it
	//     returns is written, and the answer is ErrLeaseLost;
	//   - a value that the database refuses: ErrConflict for that saga alone
	//     (the batch is bisected).
	//
	// decide is pure and may be called more than once for one request. A COMMIT
	// whose answer was lost is settled by reading before anything is repeated.
	// The error beside the results is set when nothing at all is known to be
	// written (the database can't be reached).
	Apply(ctx context.Context, reqs []Request, decide func(i int, l Locked) (Writes, error)) ([]Result, error)

	// Heartbeat extends the leases that are still held and answers those that
	// are not (displaced) and those whose saga has an event waiting for the
	// worker to stop (Interrupt).
	Heartbeat(ctx context.Context, leases []Lease, until time.Duration) (Beat, error)

	// Release gives unstarted commands back: the lease ends, the attempt is
	// given back, the first claim's deadline is forgotten. Lost leases are ignored.
	Release(ctx context.Context, leases []Lease) error

	// NextDue is how long it is, by the database's clock, until the earliest
	// time at which a command of these kinds becomes due or a leased one's
	// lease ends (0: something is due now); ok is false when there is none.
	NextDue(ctx context.Context, kinds []string) (in time.Duration, ok bool, err error)

	// Wake tells other processes that commands are due; it never runs inside a
	// write's transaction. A driver without other processes does nothing.
	Wake(ctx context.Context) error
	// Listen calls wake whenever another process called Wake, until ctx ends.
	// It reconnects by itself. It returns at once when the driver has nothing
	// to listen to.
	Listen(ctx context.Context, wake func()) error

	Saga(ctx context.Context, id string) (saga.Row, error)
	Sagas(ctx context.Context, f SagaFilter) ([]saga.Row, error)
	// History answers transitions and notes, oldest first: by version, a
	// transition before the notes that were made at it. after is exclusive.
	History(ctx context.Context, id string, after Mark, limit int) ([]Entry, error)
	// Note leaves a note on a saga, without a lock on it.
	Note(ctx context.Context, id string, n saga.Note) error
	// Stats counts sagas. Parked are due commands of none of the known kinds.
	Stats(ctx context.Context, known []string) (Stats, error)
	// Backlog counts due, unleased commands, and stops counting at limit.
	Backlog(ctx context.Context, limit int) (int, error)
}

// Claim is a request for work.
type Claim struct {
	Kinds []ClaimKind
	Max   int
	Lease time.Duration
	// Queued is how long a command may wait for its first claim.
	Queued time.Duration
	// OverdueOnly claims only commands whose deadline or queue limit has
	// passed: what a full instance still does, so that nothing waits for ever.
	OverdueOnly bool
}

// ClaimKind is one type of command that the instance knows (saga.TypeOf).
type ClaimKind struct {
	Type string
	Cap  int
	// Deadline is set on the row at its first claim; 0 leaves the row's own.
	Deadline time.Duration
	// Look is true for kinds whose claims are no attempts (a waiting state's self-check).
	Look bool
}

// Claimed is one leased command with its saga's row (Row.Command is the
// leased row, attempt counted).
type Claimed struct {
	Row     saga.Row
	Lease   Lease
	Overdue bool // the deadline, or the limit in the queue, has passed
	Now     time.Time
}

// Lease is a worker's time-limited claim on a saga's command.
type Lease struct {
	SagaID string
	Token  string // random uuid
}

// Beat is a heartbeat's answer.
type Beat struct {
	Lost      []Lease // displaced: cancel the step, its result will change nothing
	Interrupt []Lease // still held, but an event waits for the step to stop
}

// Request names one saga of an Apply.
type Request struct {
	SagaID string
	// Token, when set, is the lease under which the result was made. Without
	// it the event comes from outside and no lease is checked.
	Token string
	// Wait waits for a lock that another transaction holds (up to 2 s) instead
	// of answering ErrBusy.
	Wait bool
}

// Locked is one saga under lock.
type Locked struct {
	Row  saga.Row  // with its command, as it is now
	Held bool      // the request's lease is held; true where the request has no token
	Now  time.Time // the database's time; the decision's times are made from it
}

// Writes is all that one saga's decision writes.
type Writes struct {
	Decision saga.Decision
	Outward  Outward
	// Keep leases the next command to this instance in the same transaction
	// (ignored where there is none or it is not due yet).
	Keep *Keep
}

// Keep leases a new command at its birth.
type Keep struct {
	Token    string
	Lease    time.Duration
	Deadline time.Duration // as ClaimKind.Deadline
	Look     bool
}

// Outward is the write to the row that users see. Exactly one member is set,
// or none.
type Outward struct {
	Pull    *PullWrite
	Binding *BindingWrite
}

// PullWrite updates the pull request of a saga where the row's operation is
// still that saga; a newer saga's row is left alone.
type PullWrite struct {
	PullID      string
	Status      string // saga_status
	MergeCommit string // written when not empty; a commit that is there stays
	// CloseLocal also closes the local forge's merge request.
	CloseLocal bool
	// MergedLocal also marks the local forge's merge request merged.
	MergedLocal bool
}

// Result answers one request of an Apply.
type Result struct {
	Decision saga.Decision // what was written; its Row.Command holds the lease where it was kept
	Kept     bool
	Err      error
}

// SagaFilter selects sagas, newest first. Empty members select all.
type SagaFilter struct {
	Flow      string
	States    []saga.State // any of these; a status is expanded by the caller
	Aggregate string
	Subject   string
	Target    string
	Project   string
	OpenOnly  bool
	Query     string // part of title, subject, target or project, case-insensitive
	Limit     int
	Before    *Cursor // exclusive
}

// Cursor is a place in a list that is ordered newest first.
type Cursor struct {
	At time.Time
	ID string
}

// Mark is a place in a saga's history.
type Mark struct {
	Seq  int64
	Note int64 // 0: the transition itself
}

// Entry is one row of a saga's history.
type Entry struct {
	Mark   Mark
	IsNote bool
	Event  saga.Name
	From   saga.State
	To     saga.State
	Actor  string
	Detail string
	At     time.Time
}

// Stats counts sagas by flow and state, and what the outbox holds.
type Stats struct {
	States []StateCount
	Due    int
	Leased int
	Parked int
	Oldest time.Time // available_at of the oldest due command; zero when none
}

// StateCount is one row of Stats.
type StateCount struct {
	Flow  string
	State saga.State
	Open  bool
	Count int64
}
