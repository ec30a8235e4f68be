package sim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
)

// within is how many sequences may pass before a planted fault is found.
const within = 600

// plant is a known fault, put into the core by a small wrapper.
type plant struct {
	name string
	want string // the invariants that may catch it
	put  func(*rig)
}

type (
	settling  = func(*engine.Flow, store.Locked, string, saga.Outcome, saga.Execution) (store.Writes, error)
	receiving = func(*engine.Flow, store.Locked, saga.Event) (store.Writes, error)
)

func onSettle(wrap func(r *rig, real settling) settling) func(*rig) {
	return func(r *rig) { r.settle = wrap(r, r.settle) }
}

func onReceive(wrap func(r *rig, real receiving) receiving) func(*rig) {
	return func(r *rig) { r.receive = wrap(r, r.receive) }
}

// after changes what a step's outcome writes.
func after(change func(l store.Locked, w *store.Writes)) func(*rig) {
	return onSettle(func(_ *rig, real settling) settling {
		return func(f *engine.Flow, l store.Locked, token string, o saga.Outcome, x saga.Execution) (store.Writes, error) {
			w, err := real(f, l, token, o, x)
			change(l, &w)
			return w, err
		}
	})
}

// ready drops what a command remembers of the worker that holds or held it.
func ready(c *saga.CommandRow, leased, begun bool) *saga.CommandRow {
	if c == nil {
		return nil
	}
	d := *c
	if leased {
		d.LeaseUntil = start
	}
	if begun {
		d.Attempt, d.Unclear = 0, false
	}
	return &d
}

// mergesBlindly is a merge step that trusts its own state instead of the forge.
func mergesBlindly(r *rig) {
	step := r.flow.Steps[pull.CmdMerge]
	step.Perform = func(ctx context.Context, run engine.Run) saga.Outcome {
		m := r.requestOf(run.Row.AggregateID)
		commit, err := fakeForge{r.world}.Merge(ctx, forge.MergeInput{Ref: m.ref, HeadSHA: headOf(run.Row)})
		switch forge.KindOf(err) {
		case "":
			return saga.Done("merged", map[string]string{"mergeCommit": commit})
		case forge.KindTransient:
			return saga.FailWith(saga.Transient, err.Error(), "")
		case forge.KindUnclear:
			return saga.Unclear(err.Error())
		}
		return saga.FailWith(saga.Deterministic, err.Error(), "")
	}
	steps := maps.Clone(r.flow.Steps)
	steps[pull.CmdMerge] = step
	r.flow.Steps = steps
}

// edit puts another table under the core; the model keeps the right one.
func edit(s saga.State, change func(*saga.Spec)) func(*rig) {
	return func(r *rig) {
		table := *pull.Table
		table.States = slices.Clone(table.States)
		spec, _ := table.Spec(s)
		spec.On = slices.Clone(spec.On)
		change(spec)
		r.flow.Table = &table
	}
}

// freshIDs tells people under a new delivery id each time.
type freshIDs struct{ notify.Notifier }

func (f freshIDs) Send(ctx context.Context, to notify.Recipient, m notify.Message) error {
	m.DeliveryID = uuid.NewString()
	return f.Notifier.Send(ctx, to, m)
}

var plants = []plant{
	{"a result counts though its lease is lost", "I5", onSettle(func(_ *rig, real settling) settling {
		return func(f *engine.Flow, l store.Locked, token string, o saga.Outcome, x saga.Execution) (store.Writes, error) {
			l.Held = l.Held || l.Row.Command != nil
			return real(f, l, token, o, x)
		}
	})},
	{"the merge step doesn't look first", "I9", mergesBlindly},
	{"the merge step doesn't look first, and nobody watches its reads", "I13", func(r *rig) {
		mergesBlindly(r)
		r.ignored["I9"] = true
	}},
	{"an unclear merge counts as done", "I13", onSettle(func(r *rig, real settling) settling {
		return func(f *engine.Flow, l store.Locked, token string, o saga.Outcome, x saga.Execution) (store.Writes, error) {
			if l.Row.State == pull.Merging && o.Label() == "unclear" {
				o = saga.Done("surely merged", map[string]string{"mergeCommit": strings.Repeat("d", 40)})
			}
			return real(f, l, token, o, x)
		}
	})},
	{"a close is applied over a leased command", "I3", onReceive(func(_ *rig, real receiving) receiving {
		return func(f *engine.Flow, l store.Locked, ev saga.Event) (store.Writes, error) {
			if ev.Name == saga.Close {
				l.Row.Command = ready(l.Row.Command, true, true)
			}
			return real(f, l, ev)
		}
	})},
	{"a close doesn't ask what a dead worker did", "I3", onReceive(func(_ *rig, real receiving) receiving {
		return func(f *engine.Flow, l store.Locked, ev saga.Event) (store.Writes, error) {
			if ev.Name == saga.Close && !l.Row.Command.Leased(l.Now) {
				l.Row.Command = ready(l.Row.Command, false, true)
			}
			return real(f, l, ev)
		}
	})},
	{"a pending close is applied after a look that failed", "I13", onSettle(func(_ *rig, real settling) settling {
		return func(f *engine.Flow, l store.Locked, token string, o saga.Outcome, x saga.Execution) (store.Writes, error) {
			if l.Held && l.Row.Pending != nil && !o.Settles() {
				o = saga.NotDone("it looked like that")
			}
			return real(f, l, token, o, x)
		}
	})},
	{"a successor doesn't wait for the displaced worker", "I3", onReceive(func(_ *rig, real receiving) receiving {
		return func(f *engine.Flow, l store.Locked, ev saga.Event) (store.Writes, error) {
			w, err := real(f, l, ev)
			if c := w.Decision.Row.Command; c != nil && c.HeldFor != "" {
				c.HeldFor, c.AvailableAt = "", l.Now
			}
			return w, err
		}
	})},
	{"a transition without its history", "I2 I3", onReceive(func(_ *rig, real receiving) receiving {
		return func(f *engine.Flow, l store.Locked, ev saga.Event) (store.Writes, error) {
			w, err := real(f, l, ev)
			w.Decision.Moves = nil
			return w, err
		}
	})},
	{"a transition that users don't see", "I2", after(func(_ store.Locked, w *store.Writes) { w.Outward = store.Outward{} })},
	{"a transition without the next command", "I3", after(func(l store.Locked, w *store.Writes) {
		if w.Decision.Row.State == pull.Notifying && l.Held && len(w.Decision.Moves) > 0 {
			w.Decision.Row.Command = nil
		}
	})},
	{"a deadline that is never applied", "I6", onSettle(func(_ *rig, real settling) settling {
		return func(f *engine.Flow, l store.Locked, token string, o saga.Outcome, x saga.Execution) (store.Writes, error) {
			x.Overdue = false
			return real(f, l, token, o, x)
		}
	})},
	{"a budget that starts anew with each try", "I12", after(func(l store.Locked, w *store.Writes) {
		if c := w.Decision.Row.Command; l.Held && c != nil && len(w.Decision.Moves) == 0 {
			c.Attempt = 0
		}
	})},
	{"a pending event that a requeue forgets", "I15", after(func(_ store.Locked, w *store.Writes) {
		if len(w.Decision.Moves) == 0 {
			w.Decision.Row.Pending = nil
		}
	})},
	{"a late result that leaves no note", "I15", after(func(l store.Locked, w *store.Writes) {
		if !l.Held {
			w.Decision.Notes = nil
		}
	})},
	{"an outcome that can't be stored", "I7", after(func(_ store.Locked, w *store.Writes) {
		if w.Decision.Row.State == pull.MergeFailed && len(w.Decision.Moves) > 0 {
			w.Decision.Moves[0].Detail += "\x00"
		}
	})},
	{"an outcome that nobody stores", "I7", onSettle(func(_ *rig, real settling) settling {
		return func(f *engine.Flow, l store.Locked, token string, o saga.Outcome, x saga.Execution) (store.Writes, error) {
			if o.Label() == "failed_deterministic" {
				return store.Writes{}, errors.New("not handled")
			}
			return real(f, l, token, o, x)
		}
	})},
	{"an event of an older version is taken", "I8", onReceive(func(_ *rig, real receiving) receiving {
		return func(f *engine.Flow, l store.Locked, ev saga.Event) (store.Writes, error) {
			ev.Version = 0
			return real(f, l, ev)
		}
	})},
	{"a step runs inside a transaction", "I4", onSettle(func(r *rig, real settling) settling {
		return func(f *engine.Flow, l store.Locked, token string, o saga.Outcome, x saga.Execution) (store.Writes, error) {
			_, _ = index{r.world}.Covers(context.Background(), search.Target{})
			return real(f, l, token, o, x)
		}
	})},
	{"people are told under a new id each time", "I9", func(r *rig) { r.steps.Notifier = freshIDs{r.steps.Notifier} }},
	{"a retry begins from the start", "I1", edit(pull.MergeFailed, func(s *saga.Spec) {
		s.On[0] = saga.On(saga.Retry, pull.Validating)
	})},
	{"a final state that can be left", "I1 I10", edit(pull.PullClosed, func(s *saga.Spec) {
		s.On = append(s.On, saga.On(saga.Retry, pull.Validating), saga.On(saga.Close, pull.MergeFailed))
	})},
}

// The checks are worth what they find: each known fault, within a few sequences.
func TestPlantedFaultsAreFound(t *testing.T) {
	t.Parallel()
	gen := plans()
	for _, p := range plants {
		t.Run(strings.ReplaceAll(p.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			for seed := 1; seed <= within; seed++ {
				f, _ := play(gen.Example(seed), p.put)
				if f == nil {
					continue
				}
				if !slices.Contains(strings.Fields(p.want), f.invariant) {
					t.Fatalf("sequence %d broke another invariant than %s: %s", seed, p.want, f)
				}
				t.Logf("sequence %d: %s", seed, f.invariant)
				return
			}
			t.Errorf("%d sequences found nothing", within)
		})
	}
}

// A failing sequence is printed as a person would tell it.
func TestAFailingSequenceShrinksToItsStory(t *testing.T) {
	t.Parallel()
	gen := plans()
	for seed := 1; seed <= within; seed++ {
		p := gen.Example(seed)
		if f, _ := play(p, mergesBlindly); f == nil {
			continue
		}
		small, f := shrink(p, mergesBlindly)
		if len(small.actions) > 6 || strings.Count(f.trace, "\n") > 20 {
			t.Errorf("%d of %d actions are left:\n%s", len(small.actions), len(p.actions), f)
		}
		for _, part := range []string{"ann asks to merge p1: s1 begins", "MERGING", "merge: "} {
			if !strings.Contains(f.trace, part) {
				t.Errorf("the story doesn't tell %q:\n%s", part, f)
			}
		}
		again, g := shrink(p, mergesBlindly)
		if !slices.Equal(small.actions, again.actions) || f.trace != g.trace {
			t.Errorf("the same sequence tells another story:\n%s\n%s", f, g)
		}
		return
	}
	t.Error("nothing to shrink was found")
}
