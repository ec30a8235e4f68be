package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// do runs one action. One that finds nothing to act on brings about what it
// needs: a commit lets a step return, a call or a commit claims, a claim that
// finds nothing due stirs the world.
func (r *rig) do(a action) {
	switch a.kind {
	case ask:
		r.ask(a)
	case claim:
		if got := r.claim(r.instances[a.a%instances], 1+a.b%2, a.c == 7); len(got) == 0 {
			r.stir(a)
		}
	case call:
		x, ok := pick(r.those(false), a.a)
		if !ok {
			r.do(action{kind: claim, a: a.a, b: a.c})
			return
		}
		for range a.d { // so that what comes late in a step is reached as often
			if !x.done {
				r.log("%s", x.advance(answered))
			}
		}
		switch f := answered; {
		case x.done:
		case a.b == 15:
			r.crash(x.on, a.c)
		default:
			if a.b >= 10 {
				f = faults[a.c]
			}
			r.log("%s", x.advance(f))
		}
	case run:
		if x, ok := pick(r.those(false), a.a); ok {
			r.run(x)
		}
	case commit:
		x, ok := pick(r.those(true), a.a)
		if !ok {
			if x, ok = pick(r.those(false), a.a); !ok {
				r.do(action{kind: claim, a: a.a, b: a.b, c: a.c})
				return
			}
			r.run(x)
		}
		r.commit(x, a.b)
	case work:
		i := r.instances[a.a%instances]
		for _, x := range r.claim(i, 1, false) {
			r.run(x)
			r.commit(x, a.b%2) // keeping the next command, or not
		}
	case beat:
		r.beat(r.instances[a.a%instances])
	case release:
		r.release(r.instances[a.a%instances])
	case crash:
		r.crash(r.instances[a.a%instances], a.b)
	case abandon:
		if x, ok := pick(r.those(false), a.a); ok && x.began && !x.abandoned {
			x.cancel()
			x.abandoned = true
			r.log("%s leaves %s behind", x.on.name, x.what())
		}
	case operate:
		r.operate(a)
	case send:
		r.send(a)
	case outside:
		r.outside(a)
	case jump:
		d := []time.Duration{time.Second, 200 * time.Millisecond, 5 * time.Second, 31 * time.Second, lease + time.Second, lease + time.Second,
			2*time.Minute + time.Second, settings.Queued + time.Second}[a.a]
		r.time = r.time.Add(d)
		r.log("%s pass", d)
	}
}

// stir makes something happen: time passes until the next command is due, or a
// person retries what failed, or asks for more.
func (r *rig) stir(a action) {
	in, ok, err := r.db.NextDue(context.Background(), r.kinds())
	r.must(err)
	if ok && in > 0 && in <= lease {
		r.time = r.time.Add(in)
		r.log("%s pass until something is due", in)
		return
	}
	for _, id := range r.sagas {
		if row := r.states[id].row; row.State == pull.MergeFailed {
			d, err := r.service.Operate(context.Background(), row, saga.Retry, "again", "olga")
			r.clicked(id, saga.Retry, "", d, err)
			return
		}
	}
	r.ask(a)
}

// kinds are the commands that an up-to-date instance knows.
func (r *rig) kinds() (out []string) {
	for _, k := range r.instances[0].kinds {
		out = append(out, k.Type)
	}
	return out
}

// those lists the executions whose step has returned, or has not.
func (r *rig) those(done bool) (out []*execution) {
	for _, x := range r.running {
		if x.done == done {
			out = append(out, x)
		}
	}
	return out
}

// claim takes what is due, or only what is overdue.
func (r *rig) claim(i *instance, n int, overdueOnly bool) (out []*execution) {
	in := store.Claim{Max: n, Lease: lease, Queued: settings.Queued, OverdueOnly: overdueOnly}
	for _, k := range i.kinds {
		k.Cap = n
		in.Kinds = append(in.Kinds, k)
	}
	got, err := r.db.Claim(context.Background(), in)
	r.must(err)
	for _, c := range got {
		r.alone(c.Row.ID, c.Lease.Token)
		if !i.knows(c.Row.Command.Type) {
			r.breaks("I14", "%s claims %s, which it doesn't know", i.name, c.Row.Command.Type)
		}
		x := r.begin(i, c)
		out = append(out, x)
		r.log("%s claims %s: %s, attempt %d%s", i.name, x.what(), c.Row.State, c.Row.Command.Attempt, mark(c.Overdue, ", overdue"))
	}
	return out
}

func mark(on bool, text string) string {
	if on {
		return text
	}
	return ""
}

// alone: I3, nobody else may believe that he holds this saga's command.
func (r *rig) alone(id, token string) {
	for _, x := range r.running {
		if x.claimed.Row.ID == id && x.claimed.Lease.Token != token && x.until.After(r.time) {
			r.breaks("I3", "%s is leased again while %s may still act until %s", r.called(id), x.name, x.until.Sub(start))
		}
	}
}

// run lets a step return, without trouble but that of the world.
func (r *rig) run(x *execution) {
	for !x.done {
		r.log("%s", x.advance(answered))
	}
}

// How a commit goes; the rest of the sixteen choices are plain.
const (
	keeping     = 1 // the next command stays with the instance; and from mostly on
	mostly      = 9
	answerLost  = 2 // it is committed, the instance doesn't learn it and commits again
	deadBefore  = 3 // the instance dies before it commits
	deadAfter   = 4 // and after
	twoAtOnce   = 5 // another execution's outcome goes into the same transaction
	badCompany  = 7 // with it goes a write that the database refuses
	keepingDies = 6 // it dies with a command that it kept
)

// commit writes an execution's outcome, as the engine does.
func (r *rig) commit(x *execution, how int) {
	switch how {
	case deadBefore:
		r.log("%s dies before it commits what %s learnt", x.on.name, x.name)
		r.crash(x.on, 0)
		return
	case twoAtOnce:
		for _, o := range r.those(true) {
			if o.claimed.Row.ID != x.claimed.Row.ID {
				r.recorded["two in one commit"]++
				r.commitAll([]*execution{x, o}, false)
				return
			}
		}
	case badCompany:
		for _, id := range r.sagas {
			if id != x.claimed.Row.ID {
				r.bad = id
			}
		}
	}
	kept := r.commitAll([]*execution{x}, how == keeping || how == keepingDies || how == answerLost || how >= mostly)
	switch how {
	case answerLost:
		r.recorded["commit repeated"]++
		for _, k := range kept {
			k.end() // nobody knows of it
		}
		r.check()
		r.commitAll([]*execution{x}, true)
	case deadAfter, keepingDies:
		r.crash(x.on, 0)
	}
}

// commitAll writes outcomes in one transaction and answers the executions of
// commands that were kept.
func (r *rig) commitAll(xs []*execution, keep bool) (kept []*execution) {
	reqs := make([]store.Request, len(xs))
	for i, x := range xs {
		reqs[i] = store.Request{SagaID: x.claimed.Row.ID, Token: x.claimed.Lease.Token}
		if !r.holds(x) || x.abandoned {
			s := r.states[x.claimed.Row.ID]
			s.still, s.quiet = "the lease of "+x.name+" is lost", x.out.Label() == "not_yet" || x.out.Label() == "not_done"
			r.recorded["late result"]++
		}
	}
	if r.bad != "" {
		reqs = append(reqs, store.Request{SagaID: r.bad})
	}
	rs, err := r.applyAll(reqs, func(i int, l store.Locked) (store.Writes, error) {
		if i == len(xs) {
			note := saga.Note{Event: "bad", Actor: "nobody", Detail: "\x00"}
			return store.Writes{Decision: saga.Decision{Row: l.Row, KeepCommand: true, Notes: []saga.Note{note}}}, nil
		}
		x := xs[i]
		held := l.Held
		l.Held = held && !x.abandoned
		w, err := r.settle(r.flow, l, x.claimed.Lease.Token, x.out, saga.Execution{Overdue: x.overdue, Jitter: 0.5})
		if x.abandoned {
			w.Decision.KeepCommand = w.Decision.KeepCommand || held
		}
		next := w.Decision.Row.Command
		if err == nil && keep && l.Held && next != nil && !w.Decision.KeepCommand && len(w.Decision.Moves) > 0 &&
			!next.AvailableAt.After(l.Now) && x.on.knows(next.Type) {
			spec, _ := r.flow.Table.Spec(w.Decision.Row.State)
			w.Keep = &store.Keep{Token: uuid.NewString(), Lease: lease, Deadline: settings.DeadlineOf(spec)}
		}
		return w, err
	})
	r.must(err)
	if r.bad != "" {
		r.recorded["a bad item in a commit"]++
		r.log("with it goes a write on %s that is refused", r.bad)
		r.states[r.bad].unchanged = "a write was refused"
		if err := rs[len(xs)].Err; !errors.Is(err, store.ErrConflict) {
			r.breaks("I14", "a write that no database takes was answered %v", err)
		}
		r.bad = ""
	}
	for i, x := range xs {
		held := r.states[x.claimed.Row.ID].still == ""
		res := rs[i]
		r.log("%s commits %q for %s%s", x.on.name, x.out, x.what(), mark(!held, ": late"))
		switch {
		case res.Err == nil:
		case errors.Is(res.Err, store.ErrLeaseLost) && !held:
		default:
			r.breaks("I7", "the outcome of %s can't be persisted: %v", x.name, res.Err)
		}
		r.acted(x, res.Decision)
		if c := res.Decision.Row.Command; held && x.look && len(res.Decision.Moves) == 0 && c != nil && !c.AvailableAt.After(r.time) && c.DeadlineAt.After(r.time) {
			r.breaks("I6", "%s settled nothing and is due again at once: the world is asked in a circle", x.what())
		}
		x.end()
		if res.Kept {
			c := res.Decision.Row
			r.alone(c.ID, c.Command.LeaseToken)
			k := r.begin(x.on, store.Claimed{Row: c, Lease: store.Lease{SagaID: c.ID, Token: c.Command.LeaseToken}, Now: r.time})
			r.log("%s keeps the next command: %s", x.on.name, k.what())
			kept = append(kept, k)
		}
		if held && !res.Kept {
			if row, err := r.db.Saga(context.Background(), x.claimed.Row.ID); err != nil || row.Command != nil && row.Command.LeaseToken == x.claimed.Lease.Token {
				r.breaks("I7", "what %s answered left its command leased: %v", x.name, err)
			}
		}
	}
	return kept
}

// holds says whether an execution's lease is still its own.
func (r *rig) holds(x *execution) bool {
	row, err := r.db.Saga(context.Background(), x.claimed.Row.ID)
	r.must(err)
	return row.Command != nil && row.Command.LeaseToken == x.claimed.Lease.Token
}

// acted: a merge that the step's look could see, or that the step itself made,
// is never closed over. What lands between the look and the commit is beyond
// us: somebody's on the forge, or that of a worker that outlived its lease.
func (r *rig) acted(x *execution, d saga.Decision) {
	m := r.requestOf(x.claimed.Row.AggregateID)
	for _, mv := range d.Moves {
		if mv.Event != saga.Close || m.merges == 0 {
			continue
		}
		if !x.looked || m.mergedAt <= x.lookedAt || m.mergedBy == x {
			r.breaks("I13", "%s is closed by what %s answered, and git had merged", r.called(d.Row.ID), x.name)
		}
		m.raced = true
		r.recorded["closed while it was merged"]++
	}
}

func (r *rig) requestOf(pullID string) *mergeRequest {
	for _, m := range r.world.requests {
		if m.pullID == pullID {
			return m
		}
	}
	panic("no merge request of " + pullID)
}

// beat keeps an instance's leases, and tells steps that are not wanted any more.
func (r *rig) beat(i *instance) {
	var leases []store.Lease
	byToken := map[string]*execution{}
	for _, x := range r.running {
		if x.on == i && !x.abandoned {
			leases = append(leases, x.claimed.Lease)
			byToken[x.claimed.Lease.Token] = x
		}
	}
	if len(leases) == 0 {
		return
	}
	b, err := r.db.Heartbeat(context.Background(), leases, lease)
	r.must(err)
	lost := map[string]bool{}
	for _, l := range b.Lost {
		lost[l.Token] = true
		byToken[l.Token].cancel()
	}
	for _, l := range b.Interrupt {
		byToken[l.Token].cancel()
	}
	for _, l := range leases {
		if !lost[l.Token] {
			r.alone(l.SagaID, l.Token)
			byToken[l.Token].until = r.time.Add(lease)
		}
	}
	r.log("%s keeps %d leases: %d lost, %d interrupted", i.name, len(leases), len(b.Lost), len(b.Interrupt))
}

// release gives unstarted commands back.
func (r *rig) release(i *instance) {
	var leases []store.Lease
	for _, x := range slices.Clone(r.running) {
		if x.on == i && !x.began && !x.done && x.seen == nil {
			leases = append(leases, x.claimed.Lease)
			r.log("%s gives %s back", i.name, x.what())
			x.end()
		}
	}
	if len(leases) > 0 {
		r.must(r.db.Release(context.Background(), leases))
	}
}

// crash ends all that an instance did. A call that was under way is not made,
// made, or (a merge) made later.
func (r *rig) crash(i *instance, how int) {
	for _, x := range slices.Clone(r.running) {
		if x.on != i {
			continue
		}
		said := ""
		if x.began && !x.done {
			said = " before: " + x.at
			switch {
			case how%3 == 1:
				x.effect()
				said = " after: " + x.at
			case how%3 == 2 && x.at == "merge":
				r.world.fly(x)
				said = " in the middle of: merge"
			}
			r.recorded["crash"+said]++
		}
		r.log("%s dies and drops %s%s", i.name, x.what(), said)
		x.end()
	}
}
