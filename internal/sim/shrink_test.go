package sim

import "slices"

// shrink leaves out what a failing plan does not need to break the same
// invariant, then makes its choices the simplest ones. A plan stays runnable
// whatever is left out, so this is quicker and goes further than shrinking the
// bits it was drawn from.
func shrink(p plan, plant func(*rig)) (plan, *failure) {
	broken, _ := play(p, plant)
	if broken == nil {
		return p, nil
	}
	try := func(q plan) bool {
		f, _ := play(q, plant)
		if f == nil || f.invariant != broken.invariant {
			return false
		}
		p, broken = q, f
		return true
	}
	for before := -1; before != len(p.actions); {
		before = len(p.actions)
		for size := max(1, len(p.actions)/2); size > 0; size /= 2 {
			for i := 0; i+size <= len(p.actions); {
				if !try(plan{p.pulls, slices.Delete(slices.Clone(p.actions), i, i+size)}) {
					i += size
				}
			}
		}
	}
	try(plan{1, p.actions})
	for i := range p.actions {
		for _, simpler := range []func(*action){
			func(a *action) { a.a = 0 }, func(a *action) { a.b = 0 }, func(a *action) { a.c = 0 }, func(a *action) { a.d = 0 },
		} {
			q := plan{p.pulls, slices.Clone(p.actions)}
			if simpler(&q.actions[i]); q.actions[i] != p.actions[i] {
				try(q)
			}
		}
	}
	return p, broken
}
