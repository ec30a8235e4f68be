package saga

import (
	"errors"
	"fmt"
	"slices"
)

// Check proves what every table must hold: codes and states are unique, every
// target exists, every running state has a command, a failed state and a
// deadline, every waiting state a deadline that leads on, every state is
// reachable and can reach a final one, and final states have no way out. It
// answers all problems at once.
func Check(f *Flow) error {
	var errs []error
	bad := func(s State, format string, a ...any) {
		errs = append(errs, fmt.Errorf("flow %s: state %s: %s", f.Name, s, fmt.Sprintf(format, a...)))
	}
	codes, names := map[int]State{}, map[State]bool{}
	for _, s := range f.States {
		if other, taken := codes[s.Code]; taken {
			bad(s.State, "code %d is %s's", s.Code, other)
		}
		if names[s.State] {
			bad(s.State, "stands twice")
		}
		codes[s.Code], names[s.State] = s.State, true
	}
	for i := range f.States {
		checkState(f, &f.States[i], bad)
	}
	if len(f.Entry) == 0 {
		errs = append(errs, fmt.Errorf("flow %s: no entry state", f.Name))
	}
	for _, s := range entries(f) {
		if !names[s] {
			bad(s, "is an entry but not a state")
		}
	}
	reached := reachable(f, entries(f), false)
	for _, s := range f.States {
		if !reached[s.State] {
			bad(s.State, "can't be reached")
		}
		if s.Kind != Final && !reachesFinal(f, s.State) {
			bad(s.State, "can't reach a final state")
		}
	}
	return errors.Join(errs...)
}

func checkState(f *Flow, s *Spec, bad func(State, string, ...any)) {
	if s.Code == 0 || s.Status == "" || s.Phase == "" {
		bad(s.State, "needs a code, a status and a phase")
	}
	seen := map[Name]bool{}
	for _, e := range s.Edges() {
		if seen[e.Event] {
			bad(s.State, "event %s stands twice", e.Event)
		}
		seen[e.Event] = true
		if len(e.To) == 0 || e.To[len(e.To)-1].When.Holds != nil {
			bad(s.State, "event %s: the last target must have no guard", e.Event)
		}
		for i, t := range e.To {
			if t.When.Holds == nil && i < len(e.To)-1 {
				bad(s.State, "event %s: target %s hides those after it", e.Event, t.State)
			}
			if t.State == FailedStep {
				if s.Kind != Failed {
					bad(s.State, "event %s: only a failed state has a failed step", e.Event)
				}
				continue
			}
			if _, ok := f.Spec(t.State); !ok {
				bad(s.State, "event %s leads to %q, which is no state", e.Event, t.State)
			}
		}
	}
	mustFail := func() {
		target, ok := f.Spec(s.Fail)
		if !ok || (target.Kind != Failed && target.Kind != Waiting) {
			bad(s.State, "fail must lead to a failed or waiting state, not %q", s.Fail)
		}
	}
	mustEnd := func() {
		if s.Deadline.After <= 0 || len(s.Deadline.To) == 0 {
			bad(s.State, "needs a deadline and where it leads")
		}
	}
	explained := func() {
		if s.Explain.Summary == "" || s.Explain.WaitingFor == "" || s.Explain.Who == "" {
			bad(s.State, "needs a sentence: what it waits for, from whom")
		}
	}
	switch s.Kind {
	case Running:
		if s.Command == "" || s.Command == DeadlineOnly {
			bad(s.State, "needs a command")
		}
		if !seen[OK] && len(s.On) == 0 {
			bad(s.State, "success leads nowhere")
		}
		mustFail()
		mustEnd()
		explained()
	case Waiting:
		if s.Command == "" {
			bad(s.State, "needs a self-check command, or DeadlineOnly")
		}
		mustEnd()
		explained()
	case Passing:
		if s.Command != "" || len(s.On) != 1 || s.On[0].Event != OK {
			bad(s.State, "a passing state has the one event ok and no command")
		}
	case Failed:
		if s.Command != "" || !seen[Retry] {
			bad(s.State, "a failed state has no command and can be retried")
		}
	case Final:
		if s.Command != "" || len(seen) > 0 {
			bad(s.State, "a final state has no way out")
		}
	default:
		bad(s.State, "has no kind")
	}
}

func entries(f *Flow) []State {
	var out []State
	for _, s := range f.Entry {
		out = append(out, s)
	}
	slices.Sort(out)
	return append(out, f.Doors...)
}

// successors are the states one event away. With retries, a retry of the failed
// step leads back to every state that can fail into this one; without, it leads
// nowhere new, since a step that failed was reached before.
func successors(f *Flow, s *Spec, retries bool) []State {
	var out []State
	for _, e := range s.Edges() {
		for _, t := range e.To {
			if t.State == FailedStep {
				if retries {
					out = append(out, failedFrom(f, s.State)...)
				}
				continue
			}
			out = append(out, t.State)
		}
	}
	return out
}

func failedFrom(f *Flow, failed State) []State {
	var out []State
	for i := range f.States {
		p := &f.States[i]
		if p.Kind == Failed || p.Kind == Final {
			continue
		}
		for _, e := range p.Edges() {
			if slices.ContainsFunc(e.To, func(t Target) bool { return t.State == failed }) {
				out = append(out, p.State)
				break
			}
		}
	}
	return out
}

func reachable(f *Flow, from []State, retries bool) map[State]bool {
	seen := map[State]bool{}
	var walk func(State)
	walk = func(s State) {
		if seen[s] {
			return
		}
		seen[s] = true
		if spec, ok := f.Spec(s); ok {
			for _, n := range successors(f, spec, retries) {
				walk(n)
			}
		}
	}
	for _, s := range from {
		walk(s)
	}
	return seen
}

func reachesFinal(f *Flow, from State) bool {
	for s := range reachable(f, []State{from}, true) {
		if spec, ok := f.Spec(s); ok && spec.Kind == Final {
			return true
		}
	}
	return false
}
