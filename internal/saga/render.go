package saga

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Table prints a flow as a Markdown table: docs/states.md and `mergeflow flow`.
func Table(f *Flow) string {
	var b strings.Builder
	b.WriteString("| state | code | kind | status | phase | command | moves on | fail | deadline |\n|---|---|---|---|---|---|---|---|---|\n")
	for i := range f.States {
		s := &f.States[i]
		var moves []string
		for _, e := range s.On {
			move := string(e.Event) + " → " + targets(e.To)
			if e.If.Name != "" {
				move += " (only if " + e.If.Name + ")"
			}
			moves = append(moves, move)
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s | %s | %s | %s |\n",
			s.State, s.Code, s.Kind, s.Status, s.Phase, command(s), strings.Join(moves, "; "), s.Fail, deadline(f, s))
	}
	return b.String()
}

func command(s *Spec) string {
	if s.Command == "" || s.Command == DeadlineOnly {
		return ""
	}
	return "`" + string(s.Command) + "`"
}

func deadline(f *Flow, s *Spec) string {
	if s.Deadline.After == 0 {
		return ""
	}
	out := Duration(s.Deadline.After) + " → " + targets(s.Deadline.To)
	if s.Deadline.Kind != "" {
		out += " (" + string(s.Deadline.Kind) + ")"
	}
	if key := f.StateSetting[s.State]; key != "" {
		out += ", `" + key + "`"
	}
	return out
}

// Duration prints a duration without its zero parts: 7d, 1h30m, 2m.
func Duration(d time.Duration) string {
	if d >= 24*time.Hour && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func targets(ts []Target) string {
	var out []string
	for _, t := range ts {
		name := string(t.State)
		switch {
		case t.When.Name != "":
			name += " if " + t.When.Name
		case len(ts) > 1:
			name += " otherwise"
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}

// Arrow is one transition as a diagram draws it.
type Arrow struct {
	From, To State
	Label    string
}

// Arrows lists a flow's transitions, those between the same two states joined,
// in the table's order. A retry of the failed step is drawn to itself.
func Arrows(f *Flow) []Arrow {
	var out []Arrow
	add := func(from, to State, label string) {
		for i := range out {
			if out[i].From == from && out[i].To == to {
				if !slices.Contains(strings.Split(out[i].Label, ", "), label) {
					out[i].Label += ", " + label
				}
				return
			}
		}
		out = append(out, Arrow{from, to, label})
	}
	for i := range f.States {
		s := &f.States[i]
		for _, e := range s.Edges() {
			for _, t := range e.To {
				if t.State == FailedStep {
					for _, back := range failedFrom(f, s.State) {
						add(s.State, back, string(e.Event))
					}
					continue
				}
				label := string(e.Event)
				if t.When.Name != "" {
					label += " if " + t.When.Name
				}
				add(s.State, t.State, label)
			}
		}
	}
	return out
}

// Mermaid prints a flow as a Mermaid state diagram.
func Mermaid(f *Flow) string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	for _, s := range entries(f) {
		fmt.Fprintf(&b, "    [*] --> %s\n", s)
	}
	for _, a := range Arrows(f) {
		fmt.Fprintf(&b, "    %s --> %s: %s\n", a.From, a.To, a.Label)
	}
	for _, s := range f.States {
		if s.Kind == Final {
			fmt.Fprintf(&b, "    %s --> [*]\n", s.State)
		}
	}
	for _, k := range []Kind{Running, Waiting, Passing, Failed, Final} {
		fmt.Fprintf(&b, "    classDef %s %s\n", k, mermaidStyle[k])
		var names []string
		for _, s := range f.States {
			if s.Kind == k {
				names = append(names, string(s.State))
			}
		}
		if len(names) > 0 {
			fmt.Fprintf(&b, "    class %s %s\n", strings.Join(names, ","), k)
		}
	}
	return b.String()
}

var mermaidStyle = map[Kind]string{
	Running: "fill:#dbeafe,stroke:#1d4ed8", Waiting: "fill:#fef9c3,stroke:#a16207", Passing: "fill:#f1f5f9,stroke:#475569",
	Failed: "fill:#fee2e2,stroke:#b91c1c", Final: "fill:#dcfce7,stroke:#15803d",
}

// Matrix is the state × event matrix: for every pair, where it leads or "" for
// an event that the state refuses. It is generated from the declared sets, so a
// new state or event can't be forgotten.
func Matrix(f *Flow) map[State]map[Name]string {
	out := map[State]map[Name]string{}
	for i := range f.States {
		s := &f.States[i]
		out[s.State] = map[Name]string{}
		for _, n := range f.Events() {
			out[s.State][n] = ""
		}
		for _, e := range s.Edges() {
			out[s.State][e.Event] = targets(e.To)
		}
	}
	return out
}
