package saga_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// Every state of both flows explains itself: the property behind "at any moment
// every request is in a state that explains itself".
func TestEveryStateExplainsItself(t *testing.T) {
	t.Parallel()
	for _, f := range flows {
		for i := range f.States {
			spec := &f.States[i]
			if spec.Kind == saga.Passing {
				continue
			}
			row := rowIn(f, spec)
			row.WaitingSince = at
			if spec.Kind == saga.Waiting {
				row.Command.DeadlineAt = at.Add(time.Hour)
			}
			x := saga.Explain(f, row, saga.Settings{})
			if x.Summary == "" || strings.ContainsAny(x.Summary, "{}") {
				t.Errorf("%s: summary %q", spec.State, x.Summary)
			}
			for _, n := range spec.Actions(row) {
				if _, err := saga.Decide(f, row, saga.Event{Name: n, Actor: "ops", At: at}, saga.Settings{}); err != nil {
					t.Errorf("%s offers %s, and the table refuses it: %v", spec.State, n, err)
				}
			}
			if spec.Kind != saga.Running && spec.Kind != saga.Waiting {
				continue
			}
			if x.WaitingFor == "" || x.Who == "" || x.Since.IsZero() || x.Deadline.IsZero() || x.OnDeadline == "" || x.NextCheck.IsZero() {
				t.Errorf("%s: %+v", spec.State, x)
			}
			if _, ok := f.Spec(saga.State(x.OnDeadline)); !ok {
				t.Errorf("%s: the deadline leads to %q", spec.State, x.OnDeadline)
			}
		}
	}
}

// What git has merged can only be carried on.
func TestActionsFollowTheRow(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.MergeFailed)
	spec, _ := pull.Table.Spec(pull.MergeFailed)
	if got := spec.Actions(row); !slices.Equal(got, []saga.Name{saga.Retry, saga.Close}) {
		t.Errorf("before the merge: %v", got)
	}
	row.Data = saga.Patch(map[string]string{"mergeCommit": "abc"})
	if got := spec.Actions(row); !slices.Equal(got, []saga.Name{saga.Retry}) {
		t.Errorf("after the merge: %v", got)
	}
}

func TestExplainSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	row := pullRow(t, pull.Merging)
	row.Data = saga.Patch(map[string]string{"headSha": strings.Repeat("ab", 20)})
	x := saga.Explain(pull.Table, row, saga.Settings{})
	if x.Summary != "Merging ababababab (in the queue)" || !x.Deadline.Equal(at.Add(30*time.Minute)) {
		t.Errorf("%+v", x)
	}
	row.Command.DeadlineAt, row.Command.Unclear = at.Add(2*time.Minute), true
	row.Pending = &saga.Event{Name: saga.Close, Actor: "ann"}
	x = saga.Explain(pull.Table, row, saga.Settings{})
	for _, want := range []string{"outcome unknown, checking", "close by ann"} {
		if !strings.Contains(x.Summary, want) {
			t.Errorf("%q does not say %q", x.Summary, want)
		}
	}
	if x.Attempt != "1 of 10" || x.OnDeadline != "MERGE_FAILED" {
		t.Errorf("%+v", x)
	}
	unknown := saga.Explain(pull.Table, saga.Row{State: "FUTURE"}, saga.Settings{})
	if !strings.Contains(unknown.Summary, "FUTURE") {
		t.Errorf("%+v", unknown)
	}
}

func TestCleanMakesAnyTextSafe(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "in"))
		limit := rapid.IntRange(3, 40).Draw(t, "limit")
		out := saga.Clean(in, limit)
		if !utf8.ValidString(out) || len(out) > limit || strings.ContainsAny(out, "\x00\n\r\t\x1b") {
			t.Fatalf("%q became %q (limit %d)", in, out, limit)
		}
	})
	if got := saga.Clean("a\x00b\nc\xff", 100); got != "ab c\uFFFD" {
		t.Errorf("%q", got)
	}
}
