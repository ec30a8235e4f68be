package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// bench is one case's database and the verbs that the cases are written in.
type bench struct {
	testing.TB
	Env
	ctx   context.Context
	pulls atomic.Int64
}

const repo = "trial/repo"

func newBench(t testing.TB, env Env) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	b := &bench{TB: t, Env: env, ctx: ctx}
	if _, err := env.Store.CreateRepo(ctx, store.Repo{Name: repo, DefaultBranch: "main", MergeStyle: "merge"}); err != nil {
		t.Fatalf("create the repository: %v", err)
	}
	return b
}

func (b *bench) must(err error, what string) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func newToken() string { return uuid.NewString() }

// pull makes a pull request.
func (b *bench) pull() store.Pull {
	b.Helper()
	p, err := b.newPull()
	b.must(err, "create a pull request")
	return p
}

func (b *bench) newPull() (store.Pull, error) {
	n := b.pulls.Add(1)
	return b.Store.CreatePull(b.ctx, store.Pull{ID: newID(), Forge: "default", Repo: repo, ForgeState: "open",
		Source: fmt.Sprintf("feature-%d", n), Target: "main", Title: fmt.Sprintf("Change %d", n), Author: "ada"}, nil)
}

// starts decides to start a saga for a pull request, whatever was there.
func starts(p store.Pull, now time.Time, entry saga.State) (store.StartPull, error) {
	row := saga.Row{ID: newID(), AggregateID: p.ID, CreatedAt: now,
		About: saga.About{Project: p.Repo, Title: p.Title, Subject: p.Source, Target: p.Target}}
	d, err := saga.Start(trial, row, entry, "ada", "asked to merge", saga.Settings{})
	return store.StartPull{New: d, Status: statusOf(entry)}, err
}

// start makes a pull request and a saga for it.
func (b *bench) start() saga.Row { b.Helper(); return b.startIn(working) }

func (b *bench) startIn(entry saga.State) saga.Row {
	b.Helper()
	row, err := b.Store.StartPull(b.ctx, b.pull().ID, func(p store.Pull, old *store.Locked, now time.Time) (store.StartPull, error) {
		return starts(p, now, entry)
	})
	b.must(err, "start a saga")
	return row
}

func (b *bench) startMany(n int) []saga.Row {
	b.Helper()
	rows := make([]saga.Row, n)
	for i := range rows {
		rows[i] = b.start()
	}
	return rows
}

// outward is the pull request's write that goes with a decision.
func outward(r saga.Row) store.Outward {
	var data struct {
		Commit string `json:"commit"`
	}
	_ = json.Unmarshal(r.Data, &data) // no data, no commit
	return store.Outward{Pull: &store.PullWrite{PullID: r.AggregateID, Status: statusOf(r.State), MergeCommit: data.Commit,
		CloseLocal: r.State == closed, MergedLocal: r.State == done}}
}

// decided is a decision with its outward write.
func decided(d saga.Decision, err error) (store.Writes, error) {
	if err != nil {
		return store.Writes{}, err
	}
	return store.Writes{Decision: d, Outward: outward(d.Row)}, nil
}

// send applies one event from outside.
func (b *bench) send(id string, ev saga.Event) store.Result {
	b.Helper()
	rs, err := b.Store.Apply(b.ctx, []store.Request{{SagaID: id, Wait: true}}, func(_ int, l store.Locked) (store.Writes, error) {
		e := ev
		e.At = l.Now
		return decided(saga.Decide(trial, l.Row, e, saga.Settings{}))
	})
	b.must(err, "apply")
	if len(rs) != 1 {
		b.Fatalf("apply answered %d results for one request", len(rs))
	}
	return rs[0]
}

func (b *bench) moved(id string, n saga.Name) saga.Row {
	b.Helper()
	r := b.send(id, saga.Event{Name: n, Actor: "ada"})
	b.must(r.Err, "event "+string(n))
	return r.Decision.Row
}

// settle is the decision that a claimed command's outcome leads to.
func settle(c store.Claimed, o saga.Outcome, l store.Locked) (store.Writes, error) {
	if !l.Held {
		return store.Writes{Decision: saga.Late(trial, l.Row, c.Lease.Token, o, l.Now)}, nil
	}
	ev := saga.Settle(trial, l.Row, o, saga.Execution{Overdue: c.Overdue}, saga.Settings{})
	ev.At = l.Now
	w, err := decided(saga.Decide(trial, l.Row, ev, saga.Settings{}))
	if len(w.Decision.Moves) == 0 {
		w.Outward = store.Outward{}
	}
	return w, err
}

// finish applies a claimed command's outcome.
func (b *bench) finish(c store.Claimed, o saga.Outcome, keep *store.Keep) store.Result {
	b.Helper()
	rs, err := b.Store.Apply(b.ctx, []store.Request{{SagaID: c.Row.ID, Token: c.Lease.Token}}, func(_ int, l store.Locked) (store.Writes, error) {
		w, err := settle(c, o, l)
		w.Keep = keep
		return w, err
	})
	b.must(err, "apply")
	return rs[0]
}

// kinds asks for every kind of the trial flow, up to n of each.
func kinds(n int) []store.ClaimKind {
	var out []store.ClaimKind
	for _, s := range trial.States {
		switch s.Kind {
		case saga.Running:
			out = append(out, store.ClaimKind{Type: typeOf(s.State), Cap: n, Deadline: s.Deadline.After})
		case saga.Waiting:
			out = append(out, store.ClaimKind{Type: typeOf(s.State), Cap: n, Look: true})
		}
	}
	return out
}

func kindNames() []string {
	var out []string
	for _, k := range kinds(1) {
		out = append(out, k.Type)
	}
	return out
}

func (b *bench) claim(n int) []store.Claimed {
	b.Helper()
	return b.claimWith(store.Claim{Kinds: kinds(n), Max: n, Lease: lease, Queued: queuePatience})
}

func (b *bench) claimWith(in store.Claim) []store.Claimed {
	b.Helper()
	cs, err := b.Store.Claim(b.ctx, in)
	b.must(err, "claim")
	return cs
}

// claimOne claims the one command that is due.
func (b *bench) claimOne() store.Claimed {
	b.Helper()
	cs := b.claim(10)
	if len(cs) != 1 {
		b.Fatalf("claimed %d commands, want 1", len(cs))
	}
	return cs[0]
}

func (b *bench) saga(id string) saga.Row {
	b.Helper()
	r, err := b.Store.Saga(b.ctx, id)
	b.must(err, "read saga")
	return r
}

func (b *bench) history(id string) []store.Entry {
	b.Helper()
	es, err := b.Store.History(b.ctx, id, store.Mark{}, 1000)
	b.must(err, "read history")
	return es
}

// now is the database's clock.
func (b *bench) now() time.Time {
	b.Helper()
	t, err := b.Store.Now(b.ctx)
	b.must(err, "now")
	return t
}

func (b *bench) wantErr(got, want error, what string) {
	b.Helper()
	if !errors.Is(got, want) {
		b.Fatalf("%s: got error %v, want %v", what, got, want)
	}
}

func (b *bench) wantState(id string, want saga.State) saga.Row {
	b.Helper()
	r := b.saga(id)
	if r.State != want {
		b.Fatalf("saga stands in %s, want %s", r.State, want)
	}
	return r
}

// about says whether two times differ by less than slack: a real database's
// clock goes on while a case runs.
func about(got, want time.Time) bool {
	const slack = 20 * time.Second
	d := got.Sub(want)
	return d > -slack && d < slack
}

// audit proves what holds for every saga at any time: its row, its history,
// its command and its pull request say the same.
func (b *bench) audit(ids []string) {
	b.Helper()
	commands := 0
	for _, id := range ids {
		if err := b.auditOne(id); err != nil {
			b.Errorf("saga %s: %v", id, err)
		}
		if b.saga(id).Command != nil {
			commands++
		}
	}
	// Every command belongs to an audited saga: none is left over.
	if all, err := b.Store.Backlog(b.ctx, 1<<20); err != nil || all > commands {
		b.Errorf("%d commands are due and %d sagas have one (%v)", all, commands, err)
	}
}

func (b *bench) auditOne(id string) error {
	r := b.saga(id)
	switch kindOf(r.State) {
	case saga.Running, saga.Waiting:
		if r.Command == nil {
			return fmt.Errorf("no command in state %s", r.State)
		}
		if r.Command.Type != typeOf(r.State) {
			return fmt.Errorf("command %s in state %s", r.Command.Type, r.State)
		}
		if (r.Command.LeaseToken == "") != r.Command.LeaseUntil.IsZero() {
			return fmt.Errorf("half a lease: %+v", r.Command)
		}
	case saga.Passing:
		return fmt.Errorf("stays in passing state %s", r.State)
	default:
		if r.Command != nil {
			return fmt.Errorf("command %s in state %s", r.Command.Type, r.State)
		}
	}
	if (kindOf(r.State) == saga.Final) == r.ClosedAt.IsZero() {
		return fmt.Errorf("state %s, closed at %v", r.State, r.ClosedAt)
	}
	var seq int64
	var at saga.State
	for _, e := range b.history(id) {
		if e.IsNote {
			continue
		}
		if seq++; e.Mark.Seq != seq || e.From != at {
			return fmt.Errorf("history breaks at %d: %s → %s after %s", e.Mark.Seq, e.From, e.To, at)
		}
		at = e.To
	}
	if seq != r.Version || at != r.State {
		return fmt.Errorf("history ends at %d %s, row says %d %s", seq, at, r.Version, r.State)
	}
	p, err := b.Store.Pull(b.ctx, r.AggregateID)
	if err != nil {
		return err
	}
	if p.OperationID == id && p.SagaStatus != statusOf(r.State) {
		return fmt.Errorf("pull request says %q in state %s", p.SagaStatus, r.State)
	}
	return nil
}

// snapshot is everything that a refused write must leave as it was.
func (b *bench) snapshot(id string) string {
	b.Helper()
	r := b.saga(id)
	p, err := b.Store.Pull(b.ctx, r.AggregateID)
	b.must(err, "read pull request")
	r.Data = compact(r.Data)
	out, err := json.Marshal([]any{r, p, b.history(id)})
	b.must(err, "snapshot")
	return string(out)
}

// unchanged runs f and proves that the saga is as it was.
func (b *bench) unchanged(id string, f func()) {
	b.Helper()
	before := b.snapshot(id)
	f()
	if after := b.snapshot(id); after != before {
		b.Fatalf("something was written:\nbefore %s\nafter  %s", before, after)
	}
}

// compact writes JSON in one form: a database may keep it in another.
func compact(j json.RawMessage) json.RawMessage {
	if len(bytes.TrimSpace(j)) == 0 {
		return json.RawMessage(`{}`)
	}
	var v any
	if json.Unmarshal(j, &v) != nil {
		return j
	}
	return saga.Patch(v)
}

// sameCommand compares times by what they mean.
func sameCommand(a, b *saga.CommandRow) bool { return cmp.Equal(a, b) }

func ids(rows []saga.Row) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = r.ID
	}
	return out
}

func claimedIDs(cs []store.Claimed) []string {
	out := make([]string, len(cs))
	for i, c := range cs {
		out[i] = c.Row.ID
	}
	return out
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
