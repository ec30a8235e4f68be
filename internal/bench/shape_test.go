package bench

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// steps is how many transitions a saga of the load makes, in both of its flows.
const steps = 4

// core is a flow that only has what every flow has: four steps, and no outward
// row. Its sagas carry 50 bytes of data.
var core = func() *saga.Flow {
	f := &saga.Flow{Name: "core", Version: 1, Entry: map[saga.Order]saga.State{saga.OrderDefault: "STEP_1"}}
	states := []saga.State{"STEP_1", "STEP_2", "STEP_3", "STEP_4", "DONE"}
	for i, s := range states[:steps] {
		f.States = append(f.States, saga.Spec{State: s, Code: i + 1, Kind: saga.Running, Status: "running", Phase: "run",
			Command: saga.Command(fmt.Sprint("Step", i+1)), On: []saga.Edge{saga.On(saga.OK, states[i+1])}, Fail: "BROKEN",
			Deadline: saga.Deadline{After: time.Hour, To: saga.To("BROKEN")}, Explain: saga.Sentence{Summary: "At work", WaitingFor: "its turn", Who: "nobody"}})
	}
	f.States = append(f.States,
		saga.Spec{State: "DONE", Code: 8, Kind: saga.Final, Status: "done", Phase: "end"},
		saga.Spec{State: "BROKEN", Code: 9, Kind: saga.Failed, Status: "broken", Phase: "end", On: []saga.Edge{saga.On(saga.Retry, saga.FailedStep)}})
	return f
}()

const mergeCommit = "8b7a60c4d23f2a9c1d5e8b7a60c4d23f2a9c1d5e"

// flows are what an instance knows in production, and core; their steps do nothing.
func flows() []engine.Flow {
	return []engine.Flow{
		{Table: core, Steps: idleSteps(core)},
		{Table: pull.Table, Steps: idleSteps(pull.Table), Outward: pull.Outward},
		{Table: change.Table, Steps: idleSteps(change.Table), Outward: change.Outward},
	}
}

func idleSteps(f *saga.Flow) map[saga.Command]engine.Step {
	out := map[saga.Command]engine.Step{}
	for _, s := range f.States {
		if s.Command == "" || s.Command == saga.DeadlineOnly {
			continue
		}
		var learnt any
		if f == pull.Table && s.Command == pull.CmdMerge {
			learnt = map[string]string{"mergeCommit": mergeCommit}
		}
		step := engine.Step{Look: func(context.Context, engine.Run) saga.Outcome { return saga.NotYet("nothing to see") }}
		if s.Kind == saga.Running {
			step.Perform = func(context.Context, engine.Run) saga.Outcome { return saga.Done("done", learnt) }
		}
		out[s.Command] = step
	}
	return out
}

// shape is a saga as it stands in the database after some transitions, to be
// written any number of times under new ids.
type shape struct {
	name  string
	row   saga.Row
	moves []saga.Move
	pull  *store.PullWrite // the outward row, where the flow is pull's
}

// The parts of a shape's data that differ from saga to saga.
const somePull = "00000000-0000-4000-8000-000000000000"

var (
	coreData   = `{"head":"3f2a9c1d5e8b7a60c4d2","mergeCommit":"8b7a"}` // 50 bytes
	pullData   = `{"pullId":"` + somePull + `","repo":"config-12","iid":4711,"source":"raise-limits","target":"main","headSha":"3f2a9c1d5e8b7a60c4d23f2a9c1d5e8b7a60c4d2","title":"Raise the limits","author":{"name":"Ada","email":"ada@example.org"}}`
	changeData = `{"forge":"default","project":"config-12","base":"main","mrIid":4711,"headSha":"3f2a9c1d5e8b7a60c4d23f2a9c1d5e8b7a60c4d2","digest":"9c1d5e8b7a60","approvedDigest":"9c1d5e8b7a60","round":1,"mergeCommit":"` + mergeCommit + `"}`
)

// live begins a saga and lets it make some transitions, by the same decisions
// as in production.
func live(tb testing.TB, name string, f engine.Flow, entry saga.State, data string, transitions int) shape {
	tb.Helper()
	now := time.Now().UTC().Truncate(time.Microsecond)
	d, err := saga.Start(f.Table, saga.Row{CreatedAt: now, Data: []byte(data), About: saga.About{Project: "config-12", Title: "Raise the limits"}},
		entry, "ada", "", saga.Settings{})
	if err != nil {
		tb.Fatal(err)
	}
	s := shape{name: name, row: d.Row, moves: d.Moves}
	if f.Outward != nil {
		s.pull = f.Outward(saga.Row{}, d).Pull
	}
	for range transitions {
		_, _, _, command, _ := saga.ParseType(s.row.Command.Type)
		out := f.Steps[command].Perform(tb.Context(), engine.Run{Row: s.row})
		w, err := f.Settle(store.Locked{Row: s.row, Held: true, Now: now}, "", out, saga.Execution{}, saga.Settings{})
		if err != nil {
			tb.Fatal(err)
		}
		s.row, s.moves, s.pull = w.Decision.Row, append(s.moves, w.Decision.Moves...), w.Outward.Pull
	}
	return s
}

// The shapes. ready is due at once, finished has its whole history, waiting
// waits for the deploy of a merged change and looks again in an hour.
func readyCore(tb testing.TB) shape {
	return live(tb, "core, ready", flows()[0], "STEP_1", coreData, 0)
}

func readyPull(tb testing.TB) shape {
	return live(tb, "pull, ready", flows()[1], pull.Validating, pullData, 0)
}

func finishedPull(tb testing.TB) shape {
	return live(tb, "pull, finished", flows()[1], pull.Validating, pullData, steps)
}

func waitingChange(tb testing.TB) shape {
	s := live(tb, "change, waiting", flows()[2], change.HandleMerged, changeData, 0)
	c := *s.row.Command
	c.AvailableAt = s.row.CreatedAt.Add(24 * time.Hour)
	s.row.Command = &c
	return s
}

// rows are what one saga is made of, by table.
type rows map[string][][]any

// tables in the order in which they are written, with the columns that differ
// from their defaults.
var tables = []struct {
	name    string
	columns []string
}{
	{"saga_instances", []string{"saga_id", "flow", "flow_version", "flow_order", "aggregate_id", "subject", "target", "project", "title", "created_at",
		"state", "version", "data", "waiting_since", "updated_at", "closed_at"}},
	{"saga_history", []string{"saga_id", "seq", "event", "from_state", "to_state", "actor", "detail", "at"}},
	{"pull_requests", []string{"pull_id", "repo", "iid", "source", "target", "title", "author", "created_at", "forge_state", "saga_status", "merge_commit",
		"operation_id", "updated_at"}},
	{"bindings", []string{"subject_id", "target_key", "operation_id", "status", "updated_at"}},
	{"change_inputs", []string{"saga_id", "n", "path", "action", "content"}},
	{"change_refs", []string{"saga_id", "project", "mr_iid", "merge_commit"}},
	{"outbox_events", []string{"saga_id", "type", "available_at", "queued_since", "deadline_at"}},
}

// add appends one more saga of a shape. n is unlike all others in its database;
// now is when it was made, and when its command is due if it is due at all.
func (r rows) add(s shape, n int64, now time.Time) {
	id, aggregate := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	age := now.Sub(s.row.CreatedAt)
	at := func(t time.Time) any {
		if t.IsZero() {
			return nil
		}
		return t.Add(age)
	}
	put := func(table string, row ...any) { r[table] = append(r[table], row) }
	x := s.row
	subject, target := "", ""
	if x.Flow == change.Table.Name {
		subject, target = "team-"+aggregate.String(), "limits"
	}
	data := bytes.ReplaceAll(x.Data, []byte(somePull), []byte(aggregate.String()))
	put("saga_instances", id, x.Flow, x.FlowVersion, string(x.Order), aggregate.String(), subject, target, x.About.Project, x.About.Title, at(x.CreatedAt),
		string(x.State), x.Version, string(data), at(x.WaitingSince), at(x.UpdatedAt), at(x.ClosedAt))
	for _, m := range s.moves {
		put("saga_history", id, m.Seq, string(m.Event), string(m.From), string(m.To), m.Actor, m.Detail, at(x.UpdatedAt))
	}
	if p := s.pull; p != nil {
		forgeState := "open"
		if p.MergedLocal {
			forgeState = "merged"
		}
		put("pull_requests", aggregate, x.About.Project, n, "raise-limits", "main", x.About.Title, "ada", at(x.CreatedAt), forgeState, p.Status, p.MergeCommit,
			id, at(x.UpdatedAt))
	}
	if x.Flow == change.Table.Name {
		spec, _ := change.Table.Spec(x.State)
		put("bindings", subject, target, id, string(spec.Status), at(x.UpdatedAt))
		put("change_inputs", id, 0, "limits.yaml", "update", "cpu: 4\nmemory: 8Gi\n")
		put("change_refs", id, x.About.Project, int64(4711), mergeCommit)
	}
	if c := x.Command; c != nil {
		put("outbox_events", id, c.Type, at(c.AvailableAt), at(c.QueuedSince), at(c.DeadlineAt))
	}
}
