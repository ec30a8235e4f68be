package app

import (
	"sync/atomic"
	"time"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// Flows are the tables that this version knows.
func Flows() []*saga.Flow { return []*saga.Flow{fault.Older(pull.Table), fault.Older(change.Table)} }

// ConfigOptions say how configuration is loaded: file (empty: what
// MERGEFLOW_CONFIG names, or none), the environment, flags by key, and which
// states the tables let `deadlines` set.
func ConfigOptions(file string, env []string, flags map[string]any) config.Options {
	o := config.Options{File: file, Env: env, Flags: flags, RefusedDeadlines: map[string]string{}}
	for _, f := range Flows() {
		for _, s := range f.States {
			if instead, ok := f.StateSetting[s.State]; ok {
				o.RefusedDeadlines[string(s.State)] = instead
			} else if s.Kind == saga.Running || s.Kind == saga.Waiting {
				o.States = append(o.States, string(s.State))
			}
		}
	}
	return o
}

// settings makes what the engine asks of the running configuration. They are
// made once per configuration, because the engine asks at every decision.
func settings(current func() *config.Config) func() saga.Settings {
	type made struct {
		of *config.Config
		s  saga.Settings
	}
	var last atomic.Pointer[made]
	return func() saga.Settings {
		c := current()
		if m := last.Load(); m != nil && m.of == c {
			return m.s
		}
		m := &made{c, settingsOf(c)}
		last.Store(m)
		return m.s
	}
}

func settingsOf(c *config.Config) saga.Settings {
	s := saga.Settings{
		Deadlines: map[saga.State]time.Duration{},
		Polls:     map[saga.State]saga.Poll{},
		Queued:    c.Queued(), Attempts: c.Engine.Attempts,
		Backoff: c.Engine.Backoff, BackoffMax: c.Engine.BackoffMax,
	}
	for state, d := range c.StateDeadlines() {
		s.Deadlines[saga.State(state)] = d
	}
	by := map[string]config.Poll{"checks.poll.budget": c.Checks.Poll, "merge.rebase_poll.budget": c.Merge.RebasePoll}
	for _, f := range Flows() {
		for state, key := range f.StateSetting {
			if p, ok := by[key]; ok {
				s.Deadlines[state] = p.Budget
				s.Polls[state] = saga.Poll{Short: p.Short, ShortTries: p.ShortTries, Long: p.Long}
			} else if key == "reconcile.max_age" {
				s.Deadlines[state] = c.Reconcile.MaxAge
			}
		}
	}
	s.Polls[change.HandleMerged] = reconcilePoll(c)
	return s
}

// reconcilePoll is when a merged change is looked at: at once where we deploy
// or merged is live, else min_age after the merge, and no more often than that.
func reconcilePoll(c *config.Config) saga.Poll {
	if c.Deploy.Kind == "callback" {
		return saga.Poll{Long: max(c.Reconcile.MinAge, time.Second)}
	}
	return saga.Poll{Short: time.Millisecond, ShortTries: 1, Long: 5 * time.Second}
}
