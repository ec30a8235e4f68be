package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/forge"
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
		x, ok := pick(r.unfinished(), a.a)
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
		if x, ok := pick(r.unfinished(), a.a); ok {
			r.run(x)
		}
	case commit:
		x, ok := pick(r.finished(), a.a)
		if !ok {
			if x, ok = pick(r.unfinished(), a.a); !ok {
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
		if x, ok := pick(r.unfinished(), a.a); ok && x.began && !x.abandoned {
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

func (r *rig) kinds() (out []string) {
	for _, k := range r.instances[0].kinds {
		out = append(out, k.Type)
	}
	return out
}

func (r *rig) unfinished() (out []*execution) {
	for _, x := range r.running {
		if !x.done {
			out = append(out, x)
		}
	}
	return out
}

func (r *rig) finished() (out []*execution) {
	for _, x := range r.running {
		if x.done {
			out = append(out, x)
		}
	}
	return out
}

func (r *rig) ask(a action) {
	id, _ := pick(r.pulls, a.a)
	if m := r.requestOf(id); len(r.pulls) < mostPulls && (m.merges > 0 || m.closed || r.world.closedHere(m)) {
		id = r.propose()
	}
	if a.b == 15 {
		r.world.direct = lost
	}
	defer func() { r.world.direct = answered }()
	row, err := r.service.Merge(context.Background(), id, "", "ann")
	if err != nil {
		if !refusedBy(err) {
			r.must(err)
		}
		r.log("ann asks to merge %s: %v", id, err)
		return
	}
	r.sagas = append(r.sagas, row.ID)
	r.log("ann asks to merge %s: %s begins", id, row.ID)
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
		for _, o := range r.finished() {
			if o.claimed.Row.ID != x.claimed.Row.ID {
				r.commitAll([]*execution{x, o}, false)
				return
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
			r.states[x.claimed.Row.ID].still = "the lease of " + x.name + " is lost"
			r.recorded["late result"]++
		}
	}
	rs, err := r.applyAll(reqs, func(i int, l store.Locked) (store.Writes, error) {
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

// acted: a merge that the step's look could see is never closed over. One that
// somebody else makes after the look is beyond us.
func (r *rig) acted(x *execution, d saga.Decision) {
	m := r.requestOf(x.claimed.Row.AggregateID)
	for _, mv := range d.Moves {
		if mv.Event != saga.Close || m.merges == 0 {
			continue
		}
		if !m.elsewhere || !x.looked || m.mergedAt <= x.lookedAt {
			r.breaks("I13", "%s is closed by what %s answered, and git had merged", r.called(d.Row.ID), x.name)
		}
		m.raced = true
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

// clicks are what people choose from, where it failed and where it runs.
var clicks = map[bool][]saga.Name{
	true:  {saga.Retry, saga.Close, saga.Retry, saga.Retry, saga.Retry, saga.Retry, saga.Resume, saga.Retry},
	false: {saga.Close, saga.Retry, saga.Close, saga.Adopt},
}

// operate is a person's click, on what the person last saw.
func (r *rig) operate(a action) {
	if a.c == 7 {
		r.closePull(a)
		return
	}
	id, ok := pick(r.sagas, a.a)
	if !ok {
		return
	}
	row, seen := r.states[id].row, ""
	event, _ := pick(clicks[row.State == pull.MergeFailed], a.b)
	if before := r.states[id].before; a.c == 6 && before.ID != "" {
		row, seen = before, " (as of version "+fmt.Sprint(before.Version)+")"
	}
	d, err := r.service.Operate(context.Background(), row, event, "because", "olga")
	r.clicked(id, event, seen, d, err)
}

func (r *rig) clicked(id string, event saga.Name, seen string, d saga.Decision, err error) {
	if err != nil {
		if !refusedBy(err) {
			r.must(err)
		}
		var no *saga.Refusal
		if errors.As(err, &no) {
			r.states[id].unchanged = "olga's " + string(event) + " was refused"
		}
		r.log("olga: %s %s%s: %v", event, id, seen, err)
		return
	}
	r.states[id].accepted = string(event)
	if c := r.states[id].row.Command; len(d.Moves) > 0 && event == saga.Close && c != nil && (c.Leased(r.time) || c.Attempt > 0 || c.Unclear) {
		r.breaks("I3", "%s is closed at once, and a worker may be acting or have acted", r.called(id))
	}
	if m := r.requestOf(r.states[id].row.AggregateID); len(d.Moves) > 0 && event == saga.Close && m.merges > 0 {
		r.breaks("I13", "%s is closed by a click, and git has merged", r.called(id))
	}
	r.log("olga: %s %s%s: %s", event, id, seen, became(d))
}

func became(d saga.Decision) string {
	if len(d.Moves) == 0 {
		return "waits for the step"
	}
	return string(d.Row.State)
}

func (r *rig) closePull(a action) {
	id, _ := pick(r.pulls, a.a)
	_, err := r.service.Close(context.Background(), id, "because", "olga")
	if err != nil && !refusedBy(err) {
		r.must(err)
	}
	r.log("olga closes %s: %v", id, err)
}

// send is an event that is foreign, repeated, or older than what it is about.
func (r *rig) send(a action) {
	id, ok := pick(r.sagas, a.a)
	if !ok {
		return
	}
	row := r.states[id].row
	m := r.requestOf(row.AggregateID)
	ev := saga.Event{Name: "deploy-live", Actor: "a stranger"}
	switch a.b % 5 {
	case 1, 2:
		if m.merges > 0 {
			r.found(id, m)
			return
		}
	case 3:
		ev.Name, ev.Version = saga.Close, row.Version-1
	case 4:
		ev.Name, ev.Version = saga.Retry, row.Version-1
	}
	if ev.Version == 0 && (ev.Name == saga.Close || ev.Name == saga.Retry) {
		ev.Name = "deploy-live" // 0 would be no version at all
	}
	r.sends(id, ev)
}

// found is the forge's own word that it merged, any number of times.
func (r *rig) found(id string, m *mergeRequest) {
	r.sends(id, saga.Event{Name: saga.Found, Actor: "webhook", Data: saga.Patch(map[string]string{"mergeCommit": m.commit})})
}

// sends delivers an event and compares what became of it with the table.
func (r *rig) sends(id string, ev saga.Event) {
	row := r.states[id].row
	d, err := door{r}.Send(context.Background(), id, ev)
	spec, _ := r.table.Spec(row.State)
	_, legal := edgeOf(spec, ev.Name, row)
	old := ev.Version != 0 && ev.Version < row.Version
	switch {
	case err == nil:
		r.states[id].accepted = string(ev.Name)
		if old || !legal {
			r.breaks("I8", "%s in %s at version %d was taken", ev.Name, row.State, ev.Version)
		}
	case !refusedBy(err):
		r.must(err)
	default:
		r.states[id].unchanged = string(ev.Name) + " was refused"
	}
	r.log("%s: %s for %s%s: %s", ev.Actor, ev.Name, id, mark(old, " of an older version"), said(d, err))
}

func said(d saga.Decision, err error) string {
	if err != nil {
		return err.Error()
	}
	return became(d)
}

// outside is what people and CI do on the forge.
func (r *rig) outside(a action) {
	m, _ := pick(r.world.requests, a.a)
	switch a.b {
	case 0, 1, 2, 3, 4:
		if s := r.world.land(m); s != "" {
			r.log("%s: %s", m.pullID, s)
		}
	case 5:
		if m.merges == 0 && r.world.merge(m, m.head()) == nil {
			m.elsewhere = true
			r.log("somebody merges %s on the forge", m.pullID)
			if p, err := r.db.Pull(context.Background(), m.pullID); err == nil && p.OperationID != "" && a.c%2 == 1 {
				r.found(p.OperationID, m)
			}
		}
	case 8:
		r.world.down = []fault{lost, unknown, answered, answered}[a.c%4]
		r.log("the world: %s", r.world.down)
	case 6:
		m.closed = !m.closed && m.merges == 0
		r.log("on the forge %s is %s", m.pullID, map[bool]string{true: "closed", false: "open"}[m.closed])
	case 7:
		m.pushes++
		r.log("somebody pushes to %s", m.pullID)
	case 9, 10, 11:
		m.checks = forge.ChecksPending
		r.log("checks of %s run", m.pullID)
	case 12:
		m.checks = forge.ChecksFailed
		r.log("checks of %s are red", m.pullID)
	default:
		m.checks = forge.ChecksPassed
		r.log("checks of %s are green", m.pullID)
	}
}
