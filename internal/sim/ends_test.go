package sim

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// patience is how long a healthy world may take to bring everything to an end:
// the deadlines of all states, one after the other, and the leases of the dead.
func (r *rig) patience() time.Duration {
	d := 2 * lease
	for i := range r.table.States {
		if s := &r.table.States[i]; s.Kind == saga.Running {
			d += settings.DeadlineOf(s)
		}
	}
	return d
}

// ends heals the world and asserts that everything ends: first where it can by
// itself, then, with a person who retries, as it should.
func (r *rig) ends() {
	r.turn++
	var frozen []*execution
	for _, x := range slices.Clone(r.running) {
		if x.done {
			frozen = append(frozen, x) // they come back when all is over
			r.running = without(r.running, x)
			continue
		}
		x.end()
	}
	defer func() {
		for _, x := range frozen {
			x.end()
		}
	}()
	r.world.down = answered
	r.log("the world is healed; %d executions stay frozen", len(frozen))
	r.heal("by itself")
	for _, m := range r.world.requests {
		for len(m.flying) > 0 {
			r.log("%s: %s", m.pullID, r.world.land(m))
		}
	}

	for _, x := range frozen {
		r.turn++
		r.running = append(r.running, x)
		r.commitAll([]*execution{x}, false)
		r.check()
	}
	frozen = nil
	r.heal("after the late results") // a late result may have let nobody through, but asked for nothing

	for _, id := range r.pulls {
		r.resolve(id)
	}
	r.checkTrails()
}

// heal lets healthy instances work until nothing is open but what waits for a
// person. It fails when that takes longer than the deadlines allow.
func (r *rig) heal(when string) {
	ctx := context.Background()
	limit, still := r.time.Add(r.patience()), 0
	for {
		r.turn++
		if still++; still > 50 {
			r.breaks("I6", "the same is due again and again at one instant (%s)", when)
		}
		for _, i := range r.instances {
			for _, x := range r.claim(i, 5, false) {
				for x != nil {
					r.run(x)
					kept := r.commitAll([]*execution{x}, true)
					r.check()
					x, _ = pick(kept, 0)
				}
			}
		}
		r.check()
		in, ok, err := r.db.NextDue(ctx, r.kinds())
		r.must(err)
		if !ok {
			break
		}
		if in > 0 {
			r.time, still = r.time.Add(in), 0
		}
		if r.time.After(limit) {
			for _, id := range r.sagas {
				if row := r.states[id].row; row.Command != nil {
					r.breaks("I6", "%s is still in %s, %s after the world was healed (%s)", r.called(id), row.State, r.patience(), when)
				}
			}
			r.check()
		}
	}
	for _, id := range r.sagas {
		row := r.states[id].row
		if spec, ok := r.table.Spec(row.State); !ok || spec.Kind != saga.Final && spec.Kind != saga.Failed {
			r.breaks("I6", "%s in %s is neither at its end nor failed, and nothing is due (%s)", r.called(id), row.State, when)
		}
	}
	r.check()
}

// resolve is a person who brings a pull request to its end: what failed is
// retried in a healthy world, and what the forge no longer wants is closed.
func (r *rig) resolve(id string) {
	ctx := context.Background()
	m := r.requestOf(id)
	m.checks = forge.ChecksPassed
	for range 3 {
		p, err := r.db.Pull(ctx, id)
		r.must(err)
		if p.OperationID == "" || r.states[p.OperationID].row.State != pull.MergeFailed {
			break
		}
		r.turn++
		row := r.states[p.OperationID].row
		switch {
		case m.merges == 0 && (m.closed || r.world.closedHere(m)):
			d, err := r.service.Operate(ctx, row, saga.Close, "closed on the forge", "olga")
			r.clicked(row.ID, saga.Close, "", d, err)
		case m.merges == 0 && headOf(row) != m.head():
			r.ask(action{a: slices.Index(r.pulls, id)})
		default:
			d, err := r.service.Operate(ctx, row, saga.Retry, "the world is well", "olga")
			r.clicked(row.ID, saga.Retry, "", d, err)
		}
		r.check()
		r.heal("after a person's help")
	}
	p, err := r.db.Pull(ctx, id)
	r.must(err)
	if p.OperationID != "" {
		r.ended(p.OperationID, m)
	}
}

// ended asserts what the end of a pull request's newest saga must be.
func (r *rig) ended(id string, m *mergeRequest) {
	row, name := r.states[id].row, r.called(id)
	switch row.State {
	case pull.Merged:
		if m.merges != 1 || commitOf(row) != m.commit {
			r.breaks("I13", "%s is MERGED as %q; git has %d merges, %q", name, commitOf(row), m.merges, m.commit)
		}
		if !r.world.covered[m.commit] {
			r.breaks("I2", "%s is MERGED and its commit is not indexed", name)
		}
		for _, w := range watchers {
			if len(r.world.delivered[id+" "+w]) != 1 {
				r.breaks("I15", "%s is MERGED and %s was told under %d ids", name, w, len(r.world.delivered[id+" "+w]))
			}
		}
	case pull.PullClosed:
		if m.merges != 0 && !m.raced {
			r.breaks("I13", "%s is closed and git has merged", name)
		}
	default:
		r.breaks("I6", "%s ends in %s in a healthy world, with a person's help: %+v", name, row.State, row.Failure)
	}
	if r.broken != nil {
		panic(stop{})
	}
}

func headOf(row saga.Row) string {
	var d struct{ HeadSHA string }
	_ = json.Unmarshal(row.Data, &d) // data that can't be read has none
	return d.HeadSHA
}
