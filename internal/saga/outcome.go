package saga

import (
	"encoding/json"
	"fmt"
	"time"
)

// Outcome is what a step returns. Make one with its constructor.
type Outcome struct {
	kind    outcomeKind
	event   Name
	data    json.RawMessage
	detail  string
	failure Failure
	after   time.Duration
}

type outcomeKind uint8

const (
	outcomeNone outcomeKind = iota
	outcomeMoved
	outcomeNotYet
	outcomeFailed
	outcomeUnclear
	outcomeNotDone
)

// Done says that the step did what its state is for. data may be nil.
func Done(detail string, data any) Outcome { return Moved(OK, detail, data) }

// Moved says that the step settled, by an event of its state's table.
func Moved(e Name, detail string, data any) Outcome {
	o := Outcome{kind: outcomeMoved, event: e, detail: detail}
	if data != nil {
		o.data = Patch(data)
	}
	return o
}

// NotYet says that there is nothing to do but look again; what was seen is the
// evidence. The state's schedule says when.
func NotYet(evidence string) Outcome { return Outcome{kind: outcomeNotYet, detail: evidence} }

// NotYetAfter is NotYet with the pause that the other side asked for.
func NotYetAfter(evidence string, after time.Duration) Outcome {
	return Outcome{kind: outcomeNotYet, detail: evidence, after: after}
}

// FailWith says that the step failed. A transient failure is tried again within
// the state's budget; any other ends the state at once.
func FailWith(kind ErrorKind, cause, hint string) Outcome {
	return Outcome{kind: outcomeFailed, failure: Failure{Kind: kind, Error: cause, Hint: hint}}
}

// FailAs is FailWith by an event of the state's table, for the failures that
// have a state of their own. It is never tried again by itself.
func FailAs(e Name, kind ErrorKind, cause, hint string) Outcome {
	return Outcome{kind: outcomeFailed, event: e, failure: Failure{Kind: kind, Error: cause, Hint: hint}}
}

// Unclear says that the call may have taken effect. Nothing is repeated before
// the next attempt has read the remote state.
func Unclear(cause string) Outcome {
	return Outcome{kind: outcomeUnclear, detail: cause}
}

// NotDone is a look's answer: the effect is surely absent and nothing is under way.
func NotDone(evidence string) Outcome { return Outcome{kind: outcomeNotDone, detail: evidence} }

// With lays more data over an outcome's own (facts that a failure learnt too).
func (o Outcome) With(data any) Outcome {
	merged, err := MergeData(o.data, Patch(data))
	if err != nil {
		panic("saga: data that is no object: " + err.Error())
	}
	o.data = merged
	return o
}

// Data is what the step learnt.
func (o Outcome) Data() json.RawMessage { return o.data }

// Event is the event of the table that the outcome names; empty where it names none.
func (o Outcome) Event() Name { return o.event }

// IsZero is true for the outcome that no constructor made: a step that forgot to answer.
func (o Outcome) IsZero() bool { return o.kind == outcomeNone }

// Settles is true for an outcome that leaves nothing to wait for: a move, or a
// failure that no further try can change.
func (o Outcome) Settles() bool {
	return o.kind == outcomeMoved || o.kind == outcomeFailed && (o.event != "" || o.failure.Kind != Transient)
}

// IsNotDone is true for a look's proof that the effect is absent.
func (o Outcome) IsNotDone() bool { return o.kind == outcomeNotDone }

// IsNotYet is true for "nothing to do but look again".
func (o Outcome) IsNotYet() bool { return o.kind == outcomeNotYet }

// Label is the outcome's kind, for metrics.
func (o Outcome) Label() string {
	switch o.kind {
	case outcomeMoved:
		return string(o.event)
	case outcomeNotYet:
		return "not_yet"
	case outcomeFailed:
		return "failed_" + string(o.failure.Kind)
	case outcomeUnclear:
		return "unclear"
	case outcomeNotDone:
		return "not_done"
	}
	return "none"
}

// String is one line for logs and notes.
func (o Outcome) String() string {
	switch o.kind {
	case outcomeMoved:
		return fmt.Sprintf("%s: %s", o.event, o.detail)
	case outcomeNotYet:
		return "not yet: " + o.detail
	case outcomeFailed:
		return fmt.Sprintf("failed (%s): %s", o.failure.Kind, o.failure.Error)
	case outcomeUnclear:
		return "outcome unknown: " + o.detail
	case outcomeNotDone:
		return "not done: " + o.detail
	}
	return "no outcome"
}

// Execution is what Settle must know of the run that gave an outcome.
type Execution struct {
	Overdue bool // the deadline had passed when it was claimed, or passed while it ran
	// Paused, where set, is how long deadlines are not applied. Overdue then
	// means that the claim was: a look, which counted no attempt.
	Paused time.Duration
	// CutOff: it was a look that an event, a lost lease or a stop ended before
	// it had seen anything. What it was for is looked at again, at once.
	CutOff bool
	Jitter float64 // in [0,1), spreads the backoff
}

// Settle turns a step's outcome into the event that Decide takes: a move, or a
// requeue while the budget lasts. It is where "a deadline is applied only after
// a look that settled nothing" and "a close waits for the step" are decided.
//
// While deadlines pause, a command that was claimed past its own and that the
// look did not settle gets the time until the pause's end, and is claimed as any
// other in it: its deadline is moved and not just disregarded, so that what runs
// then has a limit and is counted as an attempt.
func Settle(f *Flow, row Row, o Outcome, x Execution, s Settings) Event {
	spec, ok := f.Spec(row.State)
	ev := Event{Version: row.Version, Actor: ActorEngine, Step: true, Data: o.data, Detail: o.detail}
	if !ok || row.Command == nil {
		ev.Name = Fail
		return ev
	}
	c := row.Command
	q := Requeue{Attempt: c.Attempt, Checks: c.Checks, Evidence: Clean(o.detail, 500)}
	// A waiting state waits for an event; a self-check that fails is no event.
	selfCheck := spec.Kind == Waiting
	if x.CutOff && !o.Settles() {
		q.Unclear, q.Evidence = c.Unclear || o.kind == outcomeUnclear, c.Evidence
		ev.Data, ev.Requeue = nil, &q
		return ev
	}
	switch o.kind {
	case outcomeMoved:
		ev.Name = o.event
		return ev
	case outcomeFailed:
		if o.event != "" {
			return failed(ev, o)
		}
		if selfCheck || row.Pending != nil {
			break // what a person asked needs a look that proves what there is
		}
		if o.failure.Kind != Transient {
			return failed(ev, o)
		}
		if x.Overdue {
			break
		}
		if c.Attempt >= s.AttemptLimit() {
			return failed(ev, o)
		}
		q.Evidence = Clean(o.failure.Error, 500)
		q.After = s.BackoffAfter(c.Attempt, x.Jitter)
		q.Note = fmt.Sprintf("attempt %d of %d failed: %s", c.Attempt, s.AttemptLimit(), q.Evidence)
		ev.Requeue = &q
		return ev
	case outcomeUnclear:
		if x.Overdue || row.Pending != nil || selfCheck {
			break
		}
		if c.Attempt >= s.AttemptLimit() {
			ev.Name = Fail
			ev.Failure = &Failure{Kind: UnknownOutcome, Error: o.detail, Hint: "the last answer was lost; retry looks at the remote state first"}
			return ev
		}
		q.Unclear = true
		q.After = s.BackoffAfter(c.Attempt, x.Jitter)
		q.Note = fmt.Sprintf("attempt %d of %d: outcome unknown, checking: %s", c.Attempt, s.AttemptLimit(), q.Evidence)
		ev.Requeue = &q
		return ev
	case outcomeNone:
		if selfCheck {
			q.Evidence = "the self-check answered nothing"
			break
		}
		ev.Name = Fail
		ev.Failure = &Failure{Kind: Deterministic, Error: "the step answered nothing", Hint: "this is a fault in mergeflow; please report it"}
		return ev
	}

	// Nothing was settled: not yet, not done, or an error while the deadline
	// or a person's close is waiting.
	notDone := o.kind == outcomeNotDone
	if row.Pending != nil && notDone {
		p := *row.Pending
		p.Version, p.Step = row.Version, true
		return p
	}
	if x.Overdue && x.Paused <= 0 {
		ev.Name = DeadlineUp
		if c.DeadlineAt.IsZero() && spec.Kind == Running {
			ev.Name = QueueLimit
		}
		cause := o.detail
		if o.kind == outcomeFailed {
			cause = o.failure.Error
		}
		ev.Detail = Clean(cause, 500)
		return ev
	}
	q.Checks++
	if !x.Overdue {
		q.Attempt = max(0, c.Attempt-1) // a look is no attempt
	}
	q.Unclear = (c.Unclear || o.kind == outcomeUnclear) && !notDone
	q.After = o.after
	if q.After <= 0 {
		q.After = s.PollOf(spec).After(q.Checks)
	}
	if x.Overdue {
		q.Extend = x.Paused
		if spec.Command == DeadlineOnly {
			q.After = x.Paused // there is nothing to look at before
		}
	}
	switch {
	case row.Pending == nil:
	case o.kind == outcomeUnclear:
		q.After = 0 // a step was stopped for a person who waits: look at once
	default:
		q.After = min(q.After, s.PollOf(spec).After(1))
	}
	if o.kind == outcomeFailed {
		q.Evidence = Clean(o.failure.Error, 500)
	}
	ev.Data = nil // a look that settled nothing teaches nothing
	if o.kind == outcomeNotYet {
		ev.Data = o.data
	}
	ev.Requeue = &q
	return ev
}

func failed(ev Event, o Outcome) Event {
	f := o.failure
	ev.Name, ev.Failure = or(o.event, Fail), &f
	return ev
}
