package sim

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// state is what the checks remember of a saga.
type state struct {
	row    saga.Row
	before saga.Row // the row at the version before; what a slow person still sees
	trail  []store.Entry
	// What the last action promises; cleared by the check after it.
	still     string // why the saga may not move (a note is allowed)
	quiet     bool   // the late result is of a look that saw nothing: no note is due
	unchanged string // why nothing at all may be written
	accepted  string // an event that was taken must leave a trace
}

func (s *state) mark() store.Mark {
	if len(s.trail) == 0 {
		return store.Mark{}
	}
	return s.trail[len(s.trail)-1].Mark
}

// check compares the database with what it was before the action, with the
// table, and with the world.
func (r *rig) check() {
	ctx := context.Background()
	rows, err := r.db.Sagas(ctx, store.SagaFilter{})
	r.must(err)
	byID := map[string]saga.Row{}
	for _, row := range rows {
		byID[row.ID] = row
	}
	for _, id := range r.sagas {
		row, ok := byID[id]
		if !ok {
			r.breaks("I15", "%s was accepted and is gone", r.called(id))
			continue
		}
		r.checkSaga(ctx, row)
	}
	if len(rows) != len(r.sagas) {
		r.breaks("I15", "%d sagas are stored, %d were accepted", len(rows), len(r.sagas))
	}
	r.checkPulls(ctx, byID)
	r.checkWorld()
	if r.broken != nil {
		panic(stop{})
	}
}

func (r *rig) checkSaga(ctx context.Context, row saga.Row) {
	name := r.called(row.ID)
	s := r.states[row.ID]
	fresh := s == nil
	if fresh {
		s = &state{}
		r.states[row.ID] = s
	}
	added, err := r.db.History(ctx, row.ID, s.mark(), 1000)
	r.must(err)
	old := s.row
	r.checkTrail(name, fresh, old, row, added)
	r.checkShape(name, row)
	if !fresh {
		r.checkPromises(name, s, row, added)
		r.checkFinal(name, old, row)
	}
	if row.Version != old.Version {
		s.before = old
	}
	s.row, s.trail = row, append(s.trail, added...)
	s.still, s.unchanged, s.accepted, s.quiet = "", "", "", false
	r.checkBudget(name, s)
}

// checkTrail: I1 and I2, a state is what its history says, and every step of
// the history is in the table.
func (r *rig) checkTrail(name string, fresh bool, old, row saga.Row, added []store.Entry) {
	at, seq, before := old.State, old.Version, old
	failed := saga.State("")
	if old.Failure != nil {
		failed = old.Failure.Step
	}
	for _, e := range added {
		if e.IsNote {
			if e.Mark.Seq != seq {
				r.breaks("I2", "%s has a note at version %d between versions", name, e.Mark.Seq)
			}
			continue
		}
		seq++
		if e.Mark.Seq != seq || e.From != at {
			r.breaks("I2", "%s: history has %s → %s as number %d; it stood in %s at %d", name, e.From, e.To, e.Mark.Seq, at, seq-1)
		}
		if fresh && at == "" {
			if !slices.Contains([]saga.State{r.table.Entry[saga.OrderDefault]}, e.To) || e.Event != saga.Created {
				r.breaks("I1", "%s begins in %s by %s", name, e.To, e.Event)
			}
		} else if !r.allowed(at, e.Event, e.To, failed, before) {
			r.breaks("I1", "%s: the table has no %s —%s→ %s", name, at, e.Event, e.To)
		}
		if spec, ok := r.table.Spec(e.To); ok && spec.Kind == saga.Failed {
			if from, _ := r.table.Spec(at); from.Kind == saga.Running {
				failed = at
			}
		}
		r.taken[string(at)+" —"+string(e.Event)+"→ "+string(e.To)]++
		r.log("    %s: %s —%s→ %s (%s) %s", name, at, e.Event, e.To, e.Actor, saga.Clean(e.Detail, 90))
		at, before = e.To, row
	}
	if row.State != at || row.Version != seq {
		r.breaks("I2", "%s stands in %s at version %d; its history ends with %s at %d", name, row.State, row.Version, at, seq)
	}
	if row.Version == old.Version && !fresh && (!reflect.DeepEqual(row.Failure, old.Failure) || row.ClosedAt != old.ClosedAt || row.WaitingSince != old.WaitingSince) {
		r.breaks("I2", "%s changed without a row of history", name)
	}
}

// allowed asks the model: the table, read anew. row is what an edge's condition
// is asked about.
func (r *rig) allowed(from saga.State, e saga.Name, to, failedStep saga.State, row saga.Row) bool {
	spec, ok := r.table.Spec(from)
	if !ok {
		return false
	}
	edge, ok := edgeOf(spec, e, row)
	return ok && slices.ContainsFunc(edge.To, func(t saga.Target) bool {
		return t.State == to || t.State == saga.FailedStep && to == failedStep
	})
}

func edgeOf(spec *saga.Spec, e saga.Name, row saga.Row) (saga.Edge, bool) {
	for _, x := range spec.Edges() {
		if x.Event == e && (x.If.Holds == nil || x.If.Holds(row)) {
			return x, true
		}
	}
	return saga.Edge{}, false
}

// checkShape: what must be true of a row for itself. I3: one command where one
// belongs; I6: a way on.
func (r *rig) checkShape(name string, row saga.Row) {
	spec, ok := r.table.Spec(row.State)
	if !ok {
		r.breaks("I1", "%s is in the unknown state %s", name, row.State)
		return
	}
	c := row.Command
	if working := spec.Kind == saga.Running || spec.Kind == saga.Waiting; working != (c != nil) {
		r.breaks("I3", "%s in %s (%s) has command %v", name, row.State, spec.Kind, c)
		return
	}
	if (spec.Kind == saga.Final) != !row.ClosedAt.IsZero() {
		r.breaks("I10", "%s in %s: closed at %v", name, row.State, row.ClosedAt)
	}
	if f := row.Failure; spec.Kind == saga.Failed && (f == nil || f.Step == "" || f.Kind == "" || f.Error == "" || f.Hint == "") {
		r.breaks("I7", "%s failed without saying why: %+v", name, f)
	}
	if c == nil {
		if row.Pending != nil {
			r.breaks("I15", "%s waits for nobody with %s pending", name, row.Pending.Name)
		}
		return
	}
	if want := saga.TypeOf(row.Flow, row.FlowVersion, row.State, spec.Command); c.Type != want {
		r.breaks("I3", "%s in %s has the command %s", name, row.State, c.Type)
	}
	limit := c.DeadlineAt
	if limit.IsZero() {
		limit = c.QueuedSince.Add(settings.Queued)
		if c.Attempt > 0 {
			r.breaks("I6", "%s was tried and has no deadline", name)
		}
	}
	if c.AvailableAt.After(later(limit, r.time)) && c.HeldFor == "" || c.AvailableAt.After(r.time.Add(2*time.Hour)) {
		r.breaks("I6", "%s is due at %s, after its limit %s", name, c.AvailableAt.Sub(start), limit.Sub(start))
	}
	if c.LeaseUntil.After(r.time.Add(lease)) {
		r.breaks("I6", "%s is leased until %s", name, c.LeaseUntil.Sub(start))
	}
	if row.Pending != nil && c.LeaseToken == "" && c.AvailableAt.After(r.time.Add(settings.PollOf(spec).After(1))) {
		r.breaks("I6", "%s has %s pending and is due only at %s", name, row.Pending.Name, c.AvailableAt.Sub(start))
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// checkPromises: what the action said about itself.
func (r *rig) checkPromises(name string, s *state, row saga.Row, added []store.Entry) {
	old := s.row
	if s.still != "" && (row.Version != old.Version || row.State != old.State || !reflect.DeepEqual(row.Pending, old.Pending)) {
		r.breaks("I5", "%s moved, though %s", name, s.still)
	}
	if s.still != "" && !s.quiet && len(added) == 0 {
		r.breaks("I15", "%s has no note of a late result", name)
	}
	if s.unchanged != "" && (len(added) > 0 || !reflect.DeepEqual(row, old)) {
		r.breaks("I8", "%s changed, though %s", name, s.unchanged)
	}
	if s.accepted != "" && len(added) == 0 {
		r.breaks("I15", "%s was accepted for %s and left no trace", s.accepted, name)
	}
	if p := old.Pending; p != nil && row.Pending == nil && !slices.ContainsFunc(added, func(e store.Entry) bool { return e.Event == p.Name }) {
		r.breaks("I15", "%s forgot the pending %s", name, p.Name)
	}
}

// checkFinal: I10; a late result may add the merge commit, nothing else.
func (r *rig) checkFinal(name string, old, row saga.Row) {
	if old.ClosedAt.IsZero() {
		return
	}
	if row.State != old.State || row.Version != old.Version || row.ClosedAt != old.ClosedAt {
		r.breaks("I10", "%s left its final state %s for %s", name, old.State, row.State)
	}
	if was := commitOf(old); was != "" && commitOf(row) != was {
		r.breaks("I10", "%s: merge commit %s became %s", name, was, commitOf(row))
	}
}

// checkBudget: I12, the tries of one visit are bounded by what is stored.
func (r *rig) checkBudget(name string, s *state) {
	tries := map[int64]int{}
	for _, e := range s.trail {
		if e.IsNote && e.Event == "attempt" {
			if tries[e.Mark.Seq]++; tries[e.Mark.Seq] >= attempts {
				r.breaks("I12", "%s is tried again after %d failed attempts", name, tries[e.Mark.Seq])
			}
		}
	}
}

func commitOf(row saga.Row) string {
	var d struct{ MergeCommit string }
	_ = json.Unmarshal(row.Data, &d) // data that can't be read has none
	return d.MergeCommit
}

// checkTrails: what was once in a history is there for ever, as it was.
func (r *rig) checkTrails() {
	for _, id := range r.sagas {
		all, err := r.db.History(context.Background(), id, store.Mark{}, 1000)
		r.must(err)
		if !reflect.DeepEqual(all, r.states[id].trail) {
			r.breaks("I2", "the history of %s has changed", r.called(id))
		}
	}
}

// checkPulls: I2, what users see is the newest saga's state.
func (r *rig) checkPulls(ctx context.Context, rows map[string]saga.Row) {
	pulls, err := r.db.Pulls(ctx, store.PullFilter{})
	r.must(err)
	for _, p := range pulls {
		name := r.called(p.ID)
		newest, open := "", 0
		for _, id := range r.sagas {
			if row, ok := rows[id]; ok && row.AggregateID == p.ID {
				newest = id
				if row.ClosedAt.IsZero() {
					open++
				}
			}
		}
		if p.OperationID != newest || open > 1 {
			r.breaks("I3", "%s shows %s; its newest saga is %s, %d are open", name, r.called(p.OperationID), r.called(newest), open)
			continue
		}
		m := r.requestOf(p.ID)
		if p.MergeCommit != "" && p.MergeCommit != m.commit {
			r.breaks("I13", "%s shows merge commit %s; git has %s", name, p.MergeCommit, m.commit)
		}
		if newest == "" {
			continue
		}
		row := rows[newest]
		if spec, ok := r.table.Spec(row.State); ok && p.SagaStatus != string(spec.Status) {
			r.breaks("I2", "%s shows %q; %s is in %s", name, p.SagaStatus, r.called(newest), row.State)
		}
		if c := commitOf(row); c != "" && p.MergeCommit != c {
			r.breaks("I2", "%s doesn't show the merge commit that %s knows", name, r.called(newest))
		}
	}
}

// checkWorld: what happened outside. I13: one merge; every watcher is told
// under one id; nothing merged is called closed.
func (r *rig) checkWorld() {
	for _, m := range r.world.requests {
		if m.merges > 1 {
			r.breaks("I13", "%s was merged %d times", r.called(m.pullID), m.merges)
		}
	}
	for key, ids := range r.world.delivered {
		if len(ids) > 1 {
			r.breaks("I9", "the message of %s went out under %d delivery ids", r.called(key), len(ids))
		}
	}
}
