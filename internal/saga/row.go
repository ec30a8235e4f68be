package saga

import (
	"encoding/json"
	"time"
)

// Row is one saga as the database holds it under lock, its command included.
type Row struct {
	ID          string // uuid v7; API users call it the operation id
	Flow        string
	FlowVersion int
	Order       Order
	AggregateID string // what the saga is about: the pull request's id, the binding's key
	About       About  // immutable; what lists show and filter by
	State       State
	Version     int64 // counts transitions; also the history's seq
	Failure     *Failure
	Pending     *Event // an operator's event that waits for the leased command to end
	// Early are events that came before the state that awaits them; they are
	// applied in the transaction that enters it.
	Early []Event
	Data  json.RawMessage
	// WaitingSince is when the state was entered.
	WaitingSince time.Time
	CreatedAt    time.Time
	UpdatedAt    time.Time
	ClosedAt     time.Time // zero while open
	// Command is the saga's one outbox row; nil in failed and final states.
	Command *CommandRow
}

// About is what a saga is about, in the words of its users.
type About struct {
	Subject string // flow change: who it is for
	Target  string // flow change: what it is about
	Project string // repository or forge project
	Title   string
}

// CommandRow is a saga's row in the outbox. What concerns one execution
// (attempts, checks, evidence) lives with the command and ends with it.
type CommandRow struct {
	Type        string    // TypeOf(flow, version, state, command)
	AvailableAt time.Time // when it is due
	QueuedSince time.Time // since when it waits for a first claim
	DeadlineAt  time.Time // zero until a running state's command is first claimed
	Attempt     int       // executions begun that were no mere looks
	Checks      int       // looks that said "not yet"
	Unclear     bool      // the last execution's outcome is unknown
	Evidence    string    // what was last seen, one line
	LeaseUntil  time.Time // zero when nobody holds it
	LeaseToken  string    // random; empty when nobody holds it
	HeldFor     string    // the token of a displaced worker that this command waits for
}

// Leased says whether a worker holds the command at that time.
func (c *CommandRow) Leased(now time.Time) bool {
	return c != nil && c.LeaseUntil.After(now)
}

// begun says whether an execution may have acted: one that holds the command
// at that time, or one whose outcome never came.
func (c *CommandRow) begun(now time.Time) bool {
	return c != nil && (c.Leased(now) || c.Attempt > 0 || c.Unclear)
}

// Failure is why a saga stands in a failed state, or stood there before the
// retry that is now under way.
type Failure struct {
	Step  State
	Kind  ErrorKind
	Error string // the cause as it was, cleaned
	Hint  string // what a person can do
}

// ErrorKind sorts failures by what helps.
type ErrorKind string

// The kinds of failure.
const (
	Transient      ErrorKind = "transient"       // another try may work
	Deterministic  ErrorKind = "deterministic"   // another try gives the same
	NeedsHuman     ErrorKind = "needs_human"     // a person has to clear something first
	UnknownOutcome ErrorKind = "unknown_outcome" // it may or may not have happened
)

// MergeData lays patch over data, key by key at the top level. A null removes a key.
func MergeData(data, patch json.RawMessage) (json.RawMessage, error) {
	if len(patch) == 0 {
		return data, nil
	}
	if len(data) == 0 {
		data = json.RawMessage(`{}`)
	}
	var d, p map[string]json.RawMessage
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	if d == nil {
		d = map[string]json.RawMessage{}
	}
	for k, v := range p {
		if string(v) == "null" {
			delete(d, k)
			continue
		}
		d[k] = v
	}
	return json.Marshal(d)
}

// Patch makes a data patch of a value. It panics on a value that JSON can't
// hold, which is a programmer's mistake.
func Patch(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("saga: data that JSON can't hold: " + err.Error())
	}
	return b
}
