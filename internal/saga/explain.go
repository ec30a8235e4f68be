package saga

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Explanation is a state that explains itself: what it waits for, from whom,
// since when, until when, what happens then, what was last seen.
type Explanation struct {
	Summary      string
	WaitingFor   string
	Who          string
	Since        time.Time
	Deadline     time.Time // zero in failed and final states
	OnDeadline   string
	NextCheck    time.Time // zero where nothing is due by itself
	LastEvidence string
	Attempt      string // "2 of 10"
}

// Explain makes the sentence of a saga's state from the table, the row and its
// command. It needs no other read.
func Explain(f *Flow, row Row, s Settings) Explanation {
	spec, ok := f.Spec(row.State)
	if !ok {
		return Explanation{Summary: fmt.Sprintf("State %s is not known to this version of mergeflow", row.State), Since: row.WaitingSince}
	}
	x := Explanation{
		Summary:    fill(spec.Explain.Summary, row),
		WaitingFor: spec.Explain.WaitingFor,
		Who:        spec.Explain.Who,
		Since:      row.WaitingSince,
	}
	c := row.Command
	if c == nil {
		return x
	}
	x.LastEvidence, x.NextCheck = c.Evidence, c.AvailableAt
	x.Deadline, x.OnDeadline = c.DeadlineAt, string(onDeadline(spec.Deadline.To, row))
	if spec.Kind == Running {
		x.Attempt = fmt.Sprintf("%d of %d", max(1, c.Attempt), s.AttemptLimit())
		if c.DeadlineAt.IsZero() {
			// Not begun yet: the queue's limit is the deadline.
			x.Deadline, x.OnDeadline = c.QueuedSince.Add(s.QueuedLimit()), string(spec.Fail)
			x.Summary += " (in the queue)"
		}
	}
	if c.Unclear {
		x.Summary += "; outcome unknown, checking"
	}
	if p := row.Pending; p != nil {
		x.Summary += fmt.Sprintf("; %s by %s is applied when the running step has stopped", p.Name, p.Actor)
	}
	return x
}

func onDeadline(ts []Target, row Row) State { return choose(ts, row) }

// fill replaces {key} by the saga's data at that key; {failedStep} and {error}
// come from the failure. Commit ids are shortened, what isn't known is left out.
func fill(template string, row Row) string {
	if !strings.Contains(template, "{") {
		return template
	}
	var data map[string]any
	_ = json.Unmarshal(row.Data, &data) // data that can't be read fills nothing
	var b strings.Builder
	for {
		before, rest, open := strings.Cut(template, "{")
		b.WriteString(before)
		if !open {
			break
		}
		key, after, closed := strings.Cut(rest, "}")
		if !closed {
			b.WriteString("{" + rest)
			break
		}
		b.WriteString(value(key, data, row))
		template = after
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func value(key string, data map[string]any, row Row) string {
	switch key {
	case "failedStep":
		if row.Failure != nil {
			return string(row.Failure.Step)
		}
		return ""
	case "error":
		if row.Failure != nil {
			return Clean(row.Failure.Error, 200)
		}
		return ""
	}
	switch v := data[key].(type) {
	case string:
		if isSHA(v) {
			return v[:10]
		}
		return v
	case float64:
		return fmt.Sprintf("%g", v)
	}
	return ""
}

func isSHA(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}
