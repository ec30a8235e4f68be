package saga

import (
	"slices"
	"time"
)

// State is the fine step status: what operators and metrics see.
type State string

// FailedStep is the target of a retry that re-enters whichever state failed.
const FailedStep State = "(failed step)"

// Status is the coarse outward status: what users see, and what decides
// whether they may ask again. It is a function of the state.
type Status string

// Command names what a running state does to the outside, or what a waiting
// state looks for.
type Command string

// DeadlineOnly is the command of a waiting state that has no self-check: its
// outbox row only carries the deadline.
const DeadlineOnly Command = "Deadline"

// Kind says what a state is.
type Kind uint8

// The kinds of state.
const (
	// Running: a command is due or leased.
	Running Kind = iota + 1
	// Waiting: for an event; there may be a self-check command.
	Waiting
	// Passing: entered and left within one transaction; nothing happens there.
	Passing
	// Failed: retry is possible; no command.
	Failed
	// Final: never left.
	Final
)

func (k Kind) String() string {
	switch k {
	case Running:
		return "running"
	case Waiting:
		return "waiting"
	case Passing:
		return "passing"
	case Failed:
		return "failed"
	case Final:
		return "final"
	}
	return "unknown"
}

// Order names an entry state; flows with one way in use OrderDefault.
type Order string

// OrderDefault is the order of a flow that has only one.
const OrderDefault Order = ""

// Flow is one table of states and transitions.
type Flow struct {
	Name    string
	Version int
	// Entry is where a new saga begins, by order.
	Entry map[Order]State
	// Doors are further states that a submit may enter (CREATE_REFUSED).
	Doors  []State
	States []Spec
	// StateSetting says which setting rules a state's deadline where it isn't
	// `deadlines` (checks.poll.budget and the like); `deadlines` refuses those.
	StateSetting map[State]string
	// Grows names the data keys that a late result may still add: facts that
	// only grow (the merge commit).
	Grows []string
	// Kept looks at an event that came early, when a state is entered that has
	// an edge for it: it answers the event as it is to be applied now, or why it
	// is dropped. It is pure. nil: events are applied as they came.
	Kept func(row Row, ev Event) (now Event, dropped string)
}

// Spec is one state: one row of the table.
type Spec struct {
	State   State
	Code    int
	Kind    Kind
	Status  Status
	Phase   string
	Command Command // running: what is done; waiting: the self-check, or DeadlineOnly
	// Execution limits one execution of the command; 0 means that a running state's
	// deadline alone does, and for a self-check the engine's limit.
	Execution time.Duration
	// Poll is the schedule of "not yet"; a waiting state's self-check interval is Long.
	Poll Poll
	On   []Edge
	// Fail is where a failure leads that has no edge of its own.
	Fail State
	// Retry is what retry re-enters from a failed state; empty: FailedStep.
	Deadline Deadline
	Explain  Sentence
	// Success marks a final state in which what the saga is for is done: no
	// failure on the way there is shown any more.
	Success bool
	// Hint tells an operator what a failed state needs when the failure itself says nothing.
	Hint string
}

// Poll is a tiered schedule: ShortTries looks Short apart, then one every Long.
type Poll struct {
	Short      time.Duration
	ShortTries int
	Long       time.Duration
}

// After is the pause before look number n (from 1).
func (p Poll) After(n int) time.Duration {
	if n <= p.ShortTries && p.Short > 0 {
		return p.Short
	}
	if p.Long > 0 {
		return p.Long
	}
	return p.Short
}

// Deadline is the end of a state's patience.
type Deadline struct {
	After time.Duration // default; settings may replace it
	To    []Target
	Kind  ErrorKind
	Hint  string
	Set   map[string]string // as Edge.Set
}

// Sentence holds the words of a state. Summary may hold {field} of the
// saga's data and facts, see Explanation.
type Sentence struct {
	Summary    string
	WaitingFor string
	Who        string
}

// Name names an event.
type Name string

// Events that every flow shares. A flow adds its own.
const (
	OK         Name = "ok"         // the command did what the state is for
	Fail       Name = "fail"       // the command failed; or an operator gives up a wait
	Retry      Name = "retry"      // an operator re-enters the failed step
	Resume     Name = "resume"     // an operator keeps waiting
	Close      Name = "close"      // a person ends it
	Adopt      Name = "adopt"      // an operator takes somebody else's push as the new head
	DeadlineUp Name = "deadline"   // the state's patience ended
	QueueLimit Name = "overloaded" // the command waited in the queue too long
	Superseded Name = "superseded" // a newer request ended it
	Found      Name = "merged"     // the forge says that it is merged
	Created    Name = "created"    // the history's first entry; in no table
)

// Edge is one transition: an event and where it leads.
type Edge struct {
	Event Name
	To    []Target
	// If, where set, is the condition under which the edge is there at all: a
	// merge that is done can't be closed.
	If Guard
	// Set is recorded in the saga's data when the edge is taken, before its
	// guards and those of passing states behind it are asked.
	Set map[string]string
}

// Target is where an edge leads when its guard holds; the first that holds is
// taken, and the last of an edge has no guard.
type Target struct {
	State State
	When  Guard
}

// Guard is a named question about a saga's row (with the event's data merged in).
type Guard struct {
	Name  string
	Holds func(Row) bool
}

// To is a plain target.
func To(s State) []Target { return []Target{{State: s}} }

// On is an edge with a plain target.
func On(e Name, s State) Edge { return Edge{Event: e, To: To(s)} }

// Choose is an edge that leads to s when g holds and to otherwise where it doesn't.
func Choose(e Name, g Guard, s, otherwise State) Edge {
	return Edge{Event: e, To: []Target{{State: s, When: g}, {State: otherwise}}}
}

// Spec finds a state's row of the table.
func (f *Flow) Spec(s State) (*Spec, bool) {
	for i := range f.States {
		if f.States[i].State == s {
			return &f.States[i], true
		}
	}
	return nil, false
}

// Edge finds what a state does on an event.
func (s *Spec) Edge(e Name) (Edge, bool) {
	for _, x := range s.On {
		if x.Event == e {
			return x, true
		}
	}
	return Edge{}, false
}

// Events lists every event the table uses, the implied ones included, in the
// order of their first use.
func (f *Flow) Events() []Name {
	var out []Name
	add := func(n Name) {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	for i := range f.States {
		for _, e := range f.States[i].Edges() {
			add(e.Event)
		}
	}
	return out
}

// Edges lists a state's transitions with the ones its fields imply: fail,
// deadline, overloaded.
func (s *Spec) Edges() []Edge {
	out := slices.Clone(s.On)
	has := func(n Name) bool { return slices.ContainsFunc(out, func(e Edge) bool { return e.Event == n }) }
	if s.Fail != "" && !has(Fail) {
		out = append(out, On(Fail, s.Fail))
	}
	if len(s.Deadline.To) > 0 {
		out = append(out, Edge{Event: DeadlineUp, To: s.Deadline.To, Set: s.Deadline.Set})
	}
	if s.Kind == Running && s.Fail != "" {
		out = append(out, On(QueueLimit, s.Fail))
	}
	return out
}

// Only puts a condition on an edge.
func Only(g Guard, e Edge) Edge {
	e.If = g
	return e
}

func (e Edge) open(row Row) bool { return e.If.Holds == nil || e.If.Holds(row) }

// IsOperator says whether an event is a person's, offered as an action. Adopt is
// not offered before there is a way to send it.
func IsOperator(n Name) bool {
	switch n {
	case Retry, Resume, Close:
		return true
	}
	return false
}
