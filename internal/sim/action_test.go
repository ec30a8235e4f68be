package sim

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"
)

// kind is what an action does.
type kind string

const (
	ask     kind = "ask"     // somebody asks to merge a pull request
	claim   kind = "claim"   // an instance claims what is due
	call    kind = "call"    // an execution performs its next call to the world
	run     kind = "run"     // an execution goes on until its step returns
	commit  kind = "commit"  // an execution's outcome is committed
	work    kind = "work"    // claim, run and commit, without trouble
	beat    kind = "beat"    // an instance keeps its leases
	release kind = "release" // an instance gives an unstarted command back
	crash   kind = "crash"   // an instance dies and is there again with nothing
	abandon kind = "abandon" // an instance leaves a step that doesn't return to itself
	operate kind = "operate" // a person clicks
	send    kind = "send"    // an event of another kind, or of another time
	outside kind = "outside" // somebody does something on the forge
	jump    kind = "jump"    // time passes
)

// weights is how often each kind is drawn. The first is what shrinking prefers.
var weights = []struct {
	kind  kind
	times int
}{
	{ask, 5}, {work, 5}, {claim, 7}, {run, 5}, {commit, 10}, {call, 24}, {jump, 6}, {operate, 8},
	{send, 3}, {outside, 5}, {beat, 3}, {crash, 3}, {release, 1}, {abandon, 1},
}

// action is one line of a plan. Its numbers are choices: they are taken modulo
// what there is to choose from when the action runs, so that every plan can be
// run and any part of it can be left out.
type action struct {
	kind       kind
	a, b, c, d int
}

// plan is one sequence.
type plan struct {
	pulls   int
	actions []action
}

// GoString keeps rapid's own log short: the trace tells the story.
func (p plan) GoString() string { return fmt.Sprintf("%d actions", len(p.actions)) }

// bits draws a number below 1<<n, each equally often: rapid's own integers are
// mostly small ones, and here no choice is simpler than another.
func bits(t *rapid.T, n int) (v int) {
	for range n {
		v <<= 1
		if coin.Draw(t, "bit") {
			v |= 1
		}
	}
	return v
}

var coin = rapid.Bool()

// plans draws sequences. Their actions are drawn in groups, because a list of
// rapid's has five items on average, and shrinking takes single items away.
func plans() *rapid.Generator[plan] {
	var kinds []kind
	for _, w := range weights {
		for range w.times {
			kinds = append(kinds, w.kind)
		}
	}
	actions := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) action {
		return action{kind: kinds[bits(t, 8)*len(kinds)>>8], a: bits(t, 3), b: bits(t, 4), c: bits(t, 3), d: bits(t, 2)}
	}), 0, 20)
	return rapid.Custom(func(t *rapid.T) plan {
		p := plan{pulls: 1 + bits(t, 1), actions: []action{{kind: ask}}}
		p.actions = append(p.actions, slices.Concat(rapid.SliceOfN(actions, 8, 8).Draw(t, "actions")...)...)
		return p
	})
}

// pick chooses from a list; ok is false when there is nothing to choose.
func pick[T any](from []T, n int) (v T, ok bool) {
	if len(from) == 0 {
		return v, false
	}
	return from[n%len(from)], true
}
