package httpapi

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
)

type searchIn struct {
	Repo  string `query:"repo" doc:"All repositories where it isn't given"`
	Query string `query:"q" required:"true" maxLength:"250" doc:"What the lines hold, whatever its case"`
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
}

type statsOut struct {
	Body Stats
}

func (a *api) searchRoutes() {
	register(a, get("search", "/v1/search", "Search the code that was merged", 422, 503), a.search)
	register(a, get("get-stats", "/v1/stats", "Count operations by flow, phase, state and status"), a.stats)
}

func (a *api) search(ctx context.Context, in *searchIn) (*page[Hit], error) {
	hits, err := a.Index.Search(ctx, search.Query{Repo: in.Repo, Text: in.Query, Limit: in.Limit})
	if err != nil {
		if _, answered := errors.AsType[*search.Error](err); !answered && ctx.Err() == nil {
			a.Log.WarnContext(ctx, "the search index can't be reached", "request", requestIDOf(ctx), "error", err)
			return nil, unavailable("the search index can't be reached")
		}
		return nil, err
	}
	return &page[Hit]{pageOf(hits, in.Limit, func(h search.Hit) Hit { return Hit(h) }, func(search.Hit) string { return "" })}, nil
}

func (a *api) stats(ctx context.Context, _ *struct{}) (*statsOut, error) {
	s, err := a.Store.Stats(ctx, a.Engine.Kinds())
	if err != nil {
		return nil, err
	}
	return &statsOut{a.countStats(s)}, nil
}

// tally counts under keys and keeps them in the order of their first use.
type tally[K comparable] struct {
	order []K
	n     map[K]int64
}

func (t *tally[K]) add(k K, n int64) {
	if t.n == nil {
		t.n = map[K]int64{}
	}
	if _, ok := t.n[k]; !ok {
		t.order = append(t.order, k)
	}
	t.n[k] += n
}

// each visits the counts in their order.
func each[K comparable, T any](t tally[K], show func(K, int64) T) []T {
	out := make([]T, 0, len(t.order))
	for _, k := range t.order {
		out = append(out, show(k, t.n[k]))
	}
	return out
}

func (a *api) countStats(s store.Stats) Stats {
	type pair struct {
		flow, name string
		code       int
	}
	var flows, open tally[string]
	var phases, states, statuses tally[pair]
	slices.SortFunc(s.States, func(x, y store.StateCount) int {
		return cmp.Or(cmp.Compare(x.Flow, y.Flow), cmp.Compare(a.code(x.Flow, x.State), a.code(y.Flow, y.State)), cmp.Compare(x.State, y.State))
	})
	for _, c := range s.States {
		status, phase := unknown, unknown
		code := a.code(c.Flow, c.State)
		a.ops.each(c.Flow, func(spec *saga.Spec) {
			if spec.State == c.State {
				status, phase = string(spec.Status), spec.Phase
			}
		})
		flows.add(c.Flow, c.Count)
		if c.Open {
			open.add(c.Flow, c.Count)
		}
		phases.add(pair{c.Flow, phase, code / 100}, c.Count)
		states.add(pair{c.Flow, string(c.State), code}, c.Count)
		statuses.add(pair{flow: c.Flow, name: status}, c.Count)
	}
	return Stats{
		Flows: each(flows, func(f string, n int64) FlowCount { return FlowCount{Flow: f, Open: open.n[f], Count: n} }),
		Phases: each(phases, func(p pair, n int64) PhaseCount {
			return PhaseCount{Flow: p.flow, Phase: p.name, Code: p.code, Count: n}
		}),
		States: each(states, func(p pair, n int64) StateCount {
			return StateCount{Flow: p.flow, State: p.name, Code: p.code, Count: n}
		}),
		Statuses: each(statuses, func(p pair, n int64) StatusCount { return StatusCount{Flow: p.flow, Status: p.name, Count: n} }),
		Queue:    Queue{Due: s.Due, Leased: s.Leased, Parked: s.Parked, Oldest: utc(s.Oldest)},
	}
}

// code is a state's number; 0 for a state that no table here has.
func (a *api) code(flow string, state saga.State) (code int) {
	a.ops.each(flow, func(spec *saga.Spec) {
		if spec.State == state {
			code = spec.Code
		}
	})
	return code
}
