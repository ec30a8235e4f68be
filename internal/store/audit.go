package store

import (
	"context"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// Auditor looks for faults in what is stored: states of the data that no
// transaction of a working product leaves behind. It repairs nothing.
type Auditor interface {
	// Audit reads one snapshot and answers at most limit findings (100 where
	// limit isn't positive), grouped by what is broken. It may run on a live
	// database: it takes no row locks, keeps no more than the findings in
	// memory, and holds its snapshot only as long as it reads. Sagas of a flow,
	// a version or a state that flows doesn't hold belong to another version of
	// the product; for them only what holds in every flow is checked.
	Audit(ctx context.Context, flows []AuditFlow, limit int) ([]Finding, error)
}

// Finding is one fault.
type Finding struct {
	// Invariant is the architecture's name of what is broken ("I3"), or Once.
	Invariant string
	SagaID    string // empty where no saga is concerned
	Detail    string // one sentence for an operator
}

// Once is the invariant of what the outside may see or cause a single time: a
// delivery, the effect of a callback.
const Once = "once"

// MaxLease is how far a lease may reach into the future before it counts as
// a fault: heartbeats renew leases of minutes.
const MaxLease = 24 * time.Hour

// AuditFlow is a flow's table as far as a query can check it.
type AuditFlow struct {
	Name    string
	Version int
	States  []AuditState
	// Attempts is how often a step may be begun, as the configuration says;
	// 0: not checked.
	Attempts int
}

// AuditState is one state of it.
type AuditState struct {
	State   saga.State
	Kind    saga.Kind
	Status  saga.Status
	Command saga.Command
}

// AuditOf takes from a table what an audit needs.
func AuditOf(f *saga.Flow) AuditFlow {
	a := AuditFlow{Name: f.Name, Version: f.Version, States: make([]AuditState, len(f.States))}
	for i, s := range f.States {
		a.States[i] = AuditState{State: s.State, Kind: s.Kind, Status: s.Status, Command: s.Command}
	}
	return a
}
