package app

import (
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	live, err := config.NewLive(ConfigOptions("", nil, map[string]any{
		"checks.poll.short": "1s", "checks.poll.short_tries": 2, "checks.poll.long": "3s", "checks.poll.budget": "4m",
		"deadlines.indexing": "5s", "deadlines.queued": "6m", "reconcile.max_age": "70h",
		"engine.attempts": 8, "engine.backoff": "9ms", "engine.backoff_max": "10ms",
	}))
	if err != nil {
		t.Fatal(err)
	}
	s := settings(live.Current)()
	poll := saga.Poll{Short: time.Second, ShortTries: 2, Long: 3 * time.Second}
	for state, want := range map[saga.State]time.Duration{
		pull.Validating: 4 * time.Minute, change.HandleChecking: 4 * time.Minute, change.HandleMerged: 70 * time.Hour, pull.Indexing: 5 * time.Second,
	} {
		if got := s.Deadlines[state]; got != want {
			t.Errorf("deadline of %s is %s, want %s", state, got, want)
		}
	}
	if s.Polls[pull.Validating] != poll || s.Polls[change.CreateChecking] != poll {
		t.Errorf("polls %+v", s.Polls)
	}
	if s.QueuedLimit() != 6*time.Minute || s.AttemptLimit() != 8 || s.Backoff != 9*time.Millisecond || s.BackoffMax != 10*time.Millisecond {
		t.Errorf("the rest is %+v", s)
	}
	if spec, _ := pull.Table.Spec(pull.Merging); s.DeadlineOf(spec) != spec.Deadline.After {
		t.Errorf("a state without a setting waits %s", s.DeadlineOf(spec))
	}
}

// Every state that can have a deadline takes one, or says which key has it.
func TestDeadlineKeys(t *testing.T) {
	t.Parallel()
	for _, f := range Flows() {
		for _, spec := range f.States {
			_, err := config.Load(ConfigOptions("", nil, map[string]any{"deadlines." + string(spec.State): "5m"}))
			_, elsewhere := f.StateSetting[spec.State]
			want := (spec.Kind == saga.Running || spec.Kind == saga.Waiting) && !elsewhere
			if (err == nil) != want {
				t.Errorf("deadlines.%s: %v", spec.State, err)
			}
		}
	}
}
