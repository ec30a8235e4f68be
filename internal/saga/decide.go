package saga

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// The two refusals of Decide. Callers treat ErrAlreadyAdvanced as "nothing to do".
var (
	ErrIllegalTransition = errors.New("the table holds no such transition")
	ErrAlreadyAdvanced   = errors.New("the saga has already advanced past this event")
)

// Refusal says which event was refused in which state, and what is allowed.
type Refusal struct {
	Flow    string
	State   State
	Event   Name
	Allowed []Name // what an operator may do now
	Err     error  // ErrIllegalTransition or ErrAlreadyAdvanced
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s: %s in state %s: %v", r.Flow, r.Event, r.State, r.Err)
}

func (r *Refusal) Unwrap() error { return r.Err }

// Decision is what an event does: the row after it, the history it leaves and
// the command that comes next. The caller writes all of it in one transaction.
type Decision struct {
	Row   Row
	Moves []Move
	Notes []Note
	// Applied are the ids of early events that were applied now.
	Applied []string
	// KeepCommand: the outbox row stays as it is (an event was put aside for
	// the worker that holds it). Otherwise it is replaced by Row.Command, or
	// goes away where that is nil.
	KeepCommand bool
}

// Move is one row of history.
type Move struct {
	Seq    int64
	Event  Name
	From   State
	To     State
	Actor  string
	Detail string
}

// Note is something worth keeping that moves nothing.
type Note struct {
	Event  Name
	Actor  string
	Detail string
}

// Decide says what an event does to a saga. It is pure and total: it answers a
// decision, ErrAlreadyAdvanced or ErrIllegalTransition (both in a *Refusal),
// for every row and event.
func Decide(f *Flow, row Row, ev Event, s Settings) (Decision, error) {
	d := Decision{Row: row}
	spec, ok := f.Spec(row.State)
	if !ok {
		return d, refuse(f, row, nil, ev, ErrIllegalTransition)
	}
	if ev.Version != 0 && ev.Version < row.Version {
		return d, refuse(f, row, spec, ev, ErrAlreadyAdvanced)
	}
	if ev.Requeue != nil {
		return requeue(d, spec, ev, f, row, s)
	}
	edge, ok := edgeOf(spec, ev.Name)
	if !ok || !edge.open(row) {
		if alreadyUnderWay(row, spec, ev) {
			return d, refuse(f, row, spec, ev, ErrAlreadyAdvanced)
		}
		return d, refuse(f, row, spec, ev, ErrIllegalTransition)
	}

	// One actor at a time: an operator's event that meets a worker waits for
	// it; where a worker may have acted and is gone, for a look at what it did.
	// A waiting state's self-check has nothing to be looked at: its answer comes
	// late, and the next state's command waits for its lease (enter).
	if !ev.Step && interrupts(ev.Name) && spec.Kind == Running && row.Command.begun(ev.At) {
		if row.Pending != nil {
			return d, refuse(f, row, spec, ev, ErrAlreadyAdvanced)
		}
		p := ev
		p.Version = 0
		d.Row.Pending, d.KeepCommand = &p, true
		waits := "waits for the running step to stop: "
		if !row.Command.Leased(ev.At) {
			c := *row.Command
			c.AvailableAt = earlier(c.AvailableAt, ev.At)
			d.Row.Command, d.KeepCommand = &c, false
			waits = "waits for a look at what the last attempt did: "
		}
		d.Notes = []Note{{Event: ev.Name, Actor: ev.Actor, Detail: waits + ev.Detail}}
		return d, nil
	}

	pending := row.Pending
	if err := move(f, &d, spec, edge, ev, s); err != nil {
		return d, err
	}
	if pending == nil || (ev.Step && ev.Name == pending.Name) {
		return d, nil
	}
	// The step has ended; what a person asked meanwhile is applied now where
	// the new state still allows it. A proven merge beats it.
	d.Row.Pending = nil
	next, _ := f.Spec(d.Row.State)
	if fail := d.Row.Failure; next.Kind == Failed && (ev.Name == DeadlineUp || fail != nil && fail.Kind == UnknownOutcome) {
		// Nobody could see whether the step took effect: nothing is closed over it.
		d.Notes = append(d.Notes, Note{Event: pending.Name, Actor: pending.Actor,
			Detail: "was not applied: what the step did is not known; ask again when it can be seen"})
		return d, nil
	}
	if e, ok := edgeOf(next, pending.Name); ok && e.open(d.Row) {
		p := *pending
		p.At, p.Version = ev.At, 0
		return d, move(f, &d, next, e, p, s)
	}
	d.Notes = append(d.Notes, Note{Event: pending.Name, Actor: pending.Actor,
		Detail: fmt.Sprintf("came too late: the saga is in %s now", d.Row.State)})
	return d, nil
}

// move applies one edge, and those of the passing states behind it.
func move(f *Flow, d *Decision, spec *Spec, edge Edge, ev Event, s Settings) error {
	for {
		data, err := MergeData(d.Row.Data, ev.Data)
		if err != nil {
			return fmt.Errorf("%s: data of event %s: %w", f.Name, ev.Name, err)
		}
		d.Row.Data = data
		if edge.Set != nil {
			if d.Row.Data, err = MergeData(d.Row.Data, Patch(edge.Set)); err != nil {
				return err
			}
		}
		to := choose(edge.To, d.Row)
		if to == FailedStep {
			if d.Row.Failure == nil || d.Row.Failure.Step == "" {
				return refuse(f, d.Row, spec, ev, ErrIllegalTransition)
			}
			to = d.Row.Failure.Step
		}
		target, ok := f.Spec(to)
		if !ok {
			return refuse(f, d.Row, spec, ev, ErrIllegalTransition)
		}
		settleFailure(&d.Row, spec, target, ev)
		d.Row.Version++
		d.Moves = append(d.Moves, Move{Seq: d.Row.Version, Event: ev.Name, From: spec.State, To: to, Actor: or(ev.Actor, ActorEngine), Detail: Clean(detailOf(ev), 2000)})
		d.Row.State, d.Row.WaitingSince, d.Row.UpdatedAt = to, ev.At, ev.At
		d.Row.Pending = nil
		if target.Kind != Passing {
			d.Row.Command = enter(f, target, ev, d.Row.Command, s)
			if target.Kind == Final {
				d.Row.ClosedAt = ev.At
			}
			return applyEarly(f, d, target, ev, s)
		}
		// A passing state has one edge, OK.
		spec = target
		edge, ok = target.Edge(OK)
		if !ok {
			return refuse(f, d.Row, target, Event{Name: OK}, ErrIllegalTransition)
		}
		ev = Event{Name: OK, Actor: ActorEngine, At: ev.At, Step: ev.Step}
	}
}

// applyEarly applies what came before the state that has just been entered.
func applyEarly(f *Flow, d *Decision, spec *Spec, ev Event, s Settings) error {
	drop := func(e Event, why string) {
		d.Notes = append(d.Notes, Note{Event: e.Name, Actor: e.Actor, Detail: "came early, and was dropped: " + why})
	}
	for i := 0; i < len(d.Row.Early); {
		e := d.Row.Early[i]
		edge, ok := edgeOf(spec, e.Name)
		if !ok || !edge.open(d.Row) {
			i++
			continue
		}
		d.Row.Early = slices.Delete(slices.Clone(d.Row.Early), i, i+1)
		if f.Kept != nil {
			now, dropped := f.Kept(d.Row, e)
			if dropped != "" {
				drop(e, dropped)
				continue
			}
			e = now
		}
		if e.ID != "" {
			d.Applied = append(d.Applied, e.ID)
		}
		e.At, e.Version, e.Step = ev.At, 0, ev.Step
		return move(f, d, spec, edge, e, s)
	}
	if spec.Kind == Final {
		for _, e := range d.Row.Early {
			drop(e, fmt.Sprintf("the saga ended in %s", spec.State))
		}
		d.Row.Early = nil
	}
	return nil
}

// Await keeps an event until the saga enters a state that has an edge for it.
func Await(row Row, ev Event) Decision {
	ev.Version = 0
	row.Early = append(slices.Clone(row.Early), ev)
	return Decision{Row: row, KeepCommand: true, Notes: []Note{{Event: ev.Name, Actor: ev.Actor, Detail: "came early; kept until its state is entered"}}}
}

// settleFailure keeps a saga's failure in step with its state: set on entering
// a failed state, kept until the step that failed has succeeded, then cleared.
func settleFailure(row *Row, from, to *Spec, ev Event) {
	switch {
	case to.Kind == Failed:
		step := from.State
		if from.Kind == Failed && row.Failure != nil {
			step = row.Failure.Step
		}
		f := Failure{Step: step, Kind: Deterministic, Error: detailOf(ev)}
		switch {
		case ev.Failure != nil:
			f = *ev.Failure
			f.Step = or(f.Step, step)
		case ev.Name == DeadlineUp:
			f.Kind = or(from.Deadline.Kind, UnknownOutcome)
			f.Error = "deadline passed: " + or(ev.Detail, "nothing was settled")
			f.Hint = from.Deadline.Hint
		case ev.Name == QueueLimit:
			f.Kind, f.Hint = Transient, "overloaded: no worker was free in time; retry when the load has passed"
			f.Error = "the command waited too long in the queue"
		}
		f.Kind = or(f.Kind, Deterministic)
		f.Hint = or(f.Hint, to.Hint)
		f.Error = Clean(or(f.Error, string(ev.Name)), 2000)
		row.Failure = &f
	case from.Kind != Failed:
		row.Failure = nil // the retried step is through
	case to.Success:
		row.Failure = nil // done after all
	}
}

func detailOf(ev Event) string {
	if ev.Detail != "" {
		return ev.Detail
	}
	if ev.Failure != nil {
		return ev.Failure.Error
	}
	return ""
}

// enter is the outbox row that a state begins with; nil for failed and final
// states. A running state's deadline starts with the first claim, a waiting
// state's with its entry. Where the event pulled the row from under a worker,
// the successor is not due before that worker's lease has ended (or the worker
// has come back: Late): two steps of one saga never act at once.
func enter(f *Flow, spec *Spec, ev Event, before *CommandRow, s Settings) *CommandRow {
	c := CommandRow{Type: TypeOf(f.Name, f.Version, spec.State, spec.Command), AvailableAt: ev.At, QueuedSince: ev.At}
	switch spec.Kind {
	case Running:
		if !ev.Step && before.Leased(ev.At) {
			c.AvailableAt, c.HeldFor = before.LeaseUntil, before.LeaseToken
		} else if before != nil && before.HeldFor != "" && before.AvailableAt.After(ev.At) {
			c.AvailableAt, c.HeldFor = before.AvailableAt, before.HeldFor
		}
	case Waiting:
		c.DeadlineAt = ev.At.Add(s.DeadlineOf(spec))
		c.AvailableAt = c.DeadlineAt
		if spec.Command != DeadlineOnly {
			c.AvailableAt = earlier(ev.At.Add(s.PollOf(spec).After(1)), c.DeadlineAt)
		}
		c.Evidence = Clean(detailOf(ev), 500)
	default:
		return nil
	}
	return &c
}

// Start is the first state of a new saga: its row, its first history entry, its
// command. row holds the identity, the data and CreatedAt.
func Start(f *Flow, row Row, entry State, actor, detail string, s Settings) (Decision, error) {
	spec, ok := f.Spec(entry)
	if !ok || spec.Kind == Passing {
		return Decision{}, fmt.Errorf("%s: %q is no state to begin in", f.Name, entry)
	}
	at := row.CreatedAt
	row.Flow, row.FlowVersion, row.State, row.Version = f.Name, f.Version, entry, 1
	row.WaitingSince, row.UpdatedAt = at, at
	row.Command = enter(f, spec, Event{At: at}, nil, s)
	return Decision{Row: row, Moves: []Move{{Seq: 1, Event: Created, To: entry, Actor: or(actor, ActorEngine), Detail: detail}}}, nil
}

// Late says what a result does whose lease is lost: it changes no state, leaves
// a note, adds those of its data keys that the flow declares to only grow, and
// lets a successor that waited for this worker begin.
func Late(f *Flow, row Row, token string, o Outcome, at time.Time) Decision {
	d := Decision{Row: row, KeepCommand: true}
	// A look that saw nothing leaves nothing: what displaced it says more.
	if o.kind != outcomeNotYet && o.kind != outcomeNotDone {
		d.Notes = []Note{{Event: "late", Actor: ActorEngine, Detail: "a result came after its lease was lost and changed nothing: " + Clean(o.String(), 500)}}
	}
	if grown := growing(f, row.Data, o.data); grown != nil {
		if data, err := MergeData(row.Data, grown); err == nil {
			d.Row.Data = data
		}
	}
	if row.Command != nil && row.Command.HeldFor == token && token != "" {
		c := *row.Command
		c.HeldFor, c.AvailableAt = "", earlier(c.AvailableAt, at)
		d.Row.Command, d.KeepCommand = &c, false
	}
	return d
}

func growing(f *Flow, have, learnt json.RawMessage) json.RawMessage {
	if len(learnt) == 0 || len(f.Grows) == 0 {
		return nil
	}
	var h, l map[string]json.RawMessage
	if json.Unmarshal(learnt, &l) != nil {
		return nil
	}
	_ = json.Unmarshal(have, &h) // an empty row has none
	out := map[string]json.RawMessage{}
	for _, k := range f.Grows {
		if v, ok := l[k]; ok && h[k] == nil {
			out[k] = v
		}
	}
	if len(out) == 0 {
		return nil
	}
	return Patch(out)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func requeue(d Decision, spec *Spec, ev Event, f *Flow, row Row, s Settings) (Decision, error) {
	if row.Command == nil {
		return d, refuse(f, row, spec, ev, ErrAlreadyAdvanced)
	}
	q, c := ev.Requeue, *row.Command
	c.Attempt, c.Checks, c.Unclear, c.Evidence = q.Attempt, q.Checks, q.Unclear, q.Evidence
	c.AvailableAt, c.LeaseUntil = ev.At.Add(q.After), time.Time{}
	switch end := ev.At.Add(q.Extend); {
	case q.Extend <= 0:
	case c.DeadlineAt.IsZero():
		c.QueuedSince = end.Add(-s.QueuedLimit())
	default:
		c.DeadlineAt = end
	}
	if !c.DeadlineAt.IsZero() && c.AvailableAt.After(c.DeadlineAt) {
		c.AvailableAt = c.DeadlineAt // the last look is at the deadline, not after it
	}
	data, err := MergeData(row.Data, ev.Data)
	if err != nil {
		return d, err
	}
	d.Row.Data, d.Row.Command = data, &c
	if q.Note != "" {
		d.Notes = append(d.Notes, Note{Event: "attempt", Actor: ActorEngine, Detail: q.Note})
	}
	if row.Pending == nil {
		// What an older instance kept because it did not know this state: its
		// entry is past, so that nothing else would apply it.
		err = applyEarly(f, &d, spec, ev, s)
	}
	return d, err
}

func choose(ts []Target, row Row) State {
	for _, t := range ts {
		if t.When.Holds == nil || t.When.Holds(row) {
			return t.State
		}
	}
	return ""
}

func edgeOf(spec *Spec, n Name) (Edge, bool) {
	if e, ok := spec.Edge(n); ok {
		return e, true
	}
	switch {
	case n == Fail && spec.Fail != "", n == QueueLimit && spec.Kind == Running && spec.Fail != "":
		return On(n, spec.Fail), true
	case n == DeadlineUp && len(spec.Deadline.To) > 0:
		return Edge{Event: n, To: spec.Deadline.To, Set: spec.Deadline.Set}, true
	}
	return Edge{}, false
}

// interrupts says which events wait for a leased command instead of pulling the
// row from under its worker.
func interrupts(n Name) bool { return n == Close || n == Superseded }

// alreadyUnderWay recognises the repeat of an operator's event whose effect has begun.
func alreadyUnderWay(row Row, spec *Spec, ev Event) bool {
	switch ev.Name {
	case Retry:
		return row.Failure != nil && spec.Kind == Running
	}
	return false
}

func refuse(f *Flow, row Row, spec *Spec, ev Event, err error) error {
	r := &Refusal{Flow: f.Name, State: row.State, Event: ev.Name, Err: err}
	if spec != nil {
		r.Allowed = spec.Actions(row)
	}
	return r
}

// Actions are the events that an operator may send to a saga in this state.
func (s *Spec) Actions(row Row) []Name {
	var out []Name
	for _, e := range s.On {
		if e.open(row) && (IsOperator(e.Event) || e.Event == Fail && s.Kind != Running) {
			out = append(out, e.Event)
		}
	}
	return out
}
