package sim

import (
	"context"
	"errors"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// ask is a request to merge; once all that is there has ended, for something new.
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
	if a.b == 14 {
		r.world.direct, seen = lost, seen+" (the forge can't be read)"
	}
	defer func() { r.world.direct = answered }()
	d, err := r.service.Operate(context.Background(), row, event, "because", "olga")
	r.clicked(id, event, seen, d, err)
}

// clicked records what a click did, and what it promises.
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
		m.raced = m.mergedBy == nil && r.world.direct != answered // nobody could see it
		if !m.raced {
			r.breaks("I13", "%s is closed by a click, and git has merged", r.called(id))
		}
	}
	r.log("olga: %s %s%s: %s", event, id, seen, became(d))
}

// became says in a word what an event that was taken did.
func became(d saga.Decision) string {
	if len(d.Moves) == 0 {
		return "waits for the step"
	}
	return string(d.Row.State)
}

// closePull closes the pull request, through its saga where one lives.
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
		if m.merges == 0 && r.world.merge(m, m.head(), nil) == nil {
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
