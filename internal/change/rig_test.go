package change_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/forge/localgit"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// rig is flow change over a real database, real git and a real engine. The
// approver and the environment are the test's.
type rig struct {
	t        *testing.T
	dir      string
	work     string
	db       *sqlite.DB
	host     *localgit.Host
	forge    *faulty
	approver *approver
	env      *environment
	project  change.Project
	steps    *change.Steps
	eng      *engine.Engine
	svc      *change.Service
}

// faulty is the local forge whose calls can be replaced.
type faulty struct {
	*localgit.Host
	mu    sync.Mutex
	merge func(ctx context.Context, in forge.MergeInput) (string, error)
	down  error
	state forge.State   // where it is set, every merge request is in it
	blind bool          // nobody's approvals are seen
	gate  chan struct{} // while it is open, looks at an operation's branch wait
}

func (f *faulty) Branch(ctx context.Context, project, name string) (forge.Branch, error) {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil && strings.HasPrefix(name, "mergeflow/") {
		select {
		case <-gate:
		case <-ctx.Done():
			return forge.Branch{}, &forge.Error{Op: "look at branch", Kind: forge.KindTransient, Detail: ctx.Err().Error()}
		}
	}
	return f.Host.Branch(ctx, project, name)
}

// MergeRequest fails while the forge is down.
func (f *faulty) MergeRequest(ctx context.Context, ref forge.Ref) (forge.MergeRequest, error) {
	f.mu.Lock()
	err, state := f.down, f.state
	f.mu.Unlock()
	if err != nil {
		return forge.MergeRequest{}, &forge.Error{Op: "look", Kind: forge.KindTransient, Detail: err.Error()}
	}
	mr, err := f.Host.MergeRequest(ctx, ref)
	if state != "" {
		mr.State = state
	}
	return mr, err
}

// show gives every merge request that state; empty: their own.
func (f *faulty) show(s forge.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = s
}

func (f *faulty) Approvals(ctx context.Context, ref forge.Ref) ([]forge.Approval, error) {
	f.mu.Lock()
	blind := f.blind
	f.mu.Unlock()
	if blind {
		return nil, nil
	}
	return f.Host.Approvals(ctx, ref)
}

// hideApprovals makes approvals disappear as soon as they are given.
func (f *faulty) hideApprovals(hide bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blind = hide
}

func (f *faulty) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = err
}

// hold keeps steps from looking at their branch until the answer is called.
func (f *faulty) hold() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate = make(chan struct{})
	return sync.OnceFunc(func() { close(f.gate) })
}

func (f *faulty) Merge(ctx context.Context, in forge.MergeInput) (string, error) {
	f.mu.Lock()
	m := f.merge
	f.mu.Unlock()
	if m != nil {
		return m(ctx, in)
	}
	return f.Host.Merge(ctx, in)
}

func (f *faulty) set(m func(ctx context.Context, in forge.MergeInput) (string, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.merge = m
}

// approver is an approval system outside that can be asked.
type approver struct {
	mu        sync.Mutex
	sent      []approval.Request
	answers   map[string]approval.Answer
	withdrawn []string
	down      error
	keeps     error         // why requests are not taken back
	hanging   chan struct{} // where it is set, questions end with their asker; each leaves a signal
}

func (a *approver) Send(_ context.Context, r approval.Request) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down == nil {
		a.sent = append(a.sent, r)
	}
	return a.down
}

func (a *approver) Look(ctx context.Context, id string) (approval.Answer, bool, error) {
	a.mu.Lock()
	hanging := a.hanging
	a.mu.Unlock()
	if hanging != nil {
		select {
		case hanging <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return approval.Answer{}, false, ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answers[id], true, a.down
}

func (a *approver) Withdraw(_ context.Context, id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.keeps != nil {
		return a.keeps
	}
	a.withdrawn = append(a.withdrawn, id)
	return nil
}

// refuseWithdrawals answers every withdrawal like this; nil: they are taken.
func (a *approver) refuseWithdrawals(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keeps = err
}

func (a *approver) answer(id string, d approval.Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[id] = approval.Answer{Decision: d, By: "ann"}
}

func (a *approver) set(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = err
}

// hang makes every question take as long as its asker lets it, and waits for one.
func (a *approver) hang() {
	a.mu.Lock()
	a.hanging = make(chan struct{}, 1)
	a.mu.Unlock()
	<-a.hanging
}

// environment is where a pipeline outside deploys.
type environment struct {
	mu     sync.Mutex
	live   map[string]bool
	refuse error // what deploying answers
}

func (e *environment) Look(_ context.Context, r deploy.Release) (deploy.State, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live[r.OperationID] {
		return deploy.Live, nil
	}
	return deploy.Absent, nil
}
func (e *environment) Deploy(context.Context, deploy.Release) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refuse
}
func (e *environment) Immediate() bool { return false }

// fail answers every deploy like this; nil: it is done by a pipeline outside.
func (e *environment) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refuse = err
}

func (e *environment) set(op string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[op] = true
}

func newRig(t *testing.T, repo forge.Repository) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: ":memory:"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{t: t, dir: t.TempDir(), work: t.TempDir(), db: db, project: change.Project{Forge: "default"},
		approver: &approver{answers: map[string]approval.Answer{}}, env: &environment{live: map[string]bool{}}}
	r.host = localgit.New(localgit.Options{Dir: filepath.Join(r.dir, "repos"), Store: db, ApprovalStore: db})
	r.forge = &faulty{Host: r.host}
	forges := func(name string) (forge.Changer, bool) { return r.forge, name == "default" }
	projects := func(string) change.Project { return r.project }
	often := saga.Poll{Short: 5 * time.Millisecond, ShortTries: 100000}
	settings := saga.Settings{Attempts: 2, Backoff: time.Millisecond, BackoffMax: 2 * time.Millisecond,
		Deadlines: map[saga.State]time.Duration{change.ApprovalSent: 3 * time.Hour}, Polls: map[saga.State]saga.Poll{
			change.ApprovalSent: often, change.CloseStarted: often, change.CreateChecking: often, change.HandleChecking: often, change.HandleMerged: often}}
	r.steps = &change.Steps{Forges: forges, Projects: projects, Approver: r.approver, Deployer: r.env, Store: db, Settings: func() saga.Settings { return settings }, CallbackURL: "http://127.0.0.1:1/"}
	r.eng, err = engine.New(engine.Options{Store: db, Flows: []engine.Flow{r.steps.Flow()}, Settings: func() saga.Settings { return settings }, Poll: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r.eng.Start()
	t.Cleanup(func() { _ = r.eng.Stop(context.Background()) })
	r.svc = &change.Service{Store: db, Forges: forges, Projects: projects, Engine: r.eng,
		DefaultBase: func(context.Context, string) (string, error) { return "main", nil },
		Order:       func() saga.Order { return change.ApprovalFirst },
		Backlog:     func(context.Context) (int, int, error) { return 0, 100, nil }}
	repo.Name, repo.DefaultBranch, repo.MergeStyle = "app", "main", forge.MergeCommit
	if _, err := r.host.CreateRepository(t.Context(), repo); err != nil {
		t.Fatal(err)
	}
	r.git("init", "-q", "-b", "main")
	r.git("remote", "add", "origin", filepath.Join(r.dir, "repos", "app.git"))
	r.commit("main", "base.yaml", "x: 1\n")
	return r
}

func (r *rig) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.work
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit pushes one file on a branch, made where it is new.
func (r *rig) commit(branch, file, content string) string {
	r.t.Helper()
	if branch != "main" {
		r.git("checkout", "-q", "-B", branch)
	}
	r.write(file, content)
	r.git("commit", "-q", "-m", "change "+file)
	r.git("push", "-q", "origin", branch)
	return r.git("rev-parse", "HEAD")
}

// write puts one file into the next commit.
func (r *rig) write(file, content string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.work, file), []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.git("add", ".")
}

func (r *rig) submission(file string) change.Submission {
	return change.Submission{Subject: "team", Target: file, Project: "app", Title: "Change " + file, Description: "because",
		Files: []store.Input{{Path: file, Action: "upsert", Content: "limit: 200\n"}}}
}

func (r *rig) submit(file string, order saga.Order) string {
	r.t.Helper()
	in := r.submission(file)
	in.Order = order
	s, err := r.svc.Submit(r.t.Context(), in, nil, "sue")
	if err != nil {
		r.t.Fatal(err)
	}
	return s.OperationID
}

// mergeByHand merges what a merge request holds, as a person on the forge would.
func (r *rig) mergeByHand(ref forge.Ref) error {
	mr, err := r.host.MergeRequest(r.t.Context(), ref)
	if err != nil {
		return err
	}
	_, err = r.host.Merge(r.t.Context(), forge.MergeInput{Ref: ref, HeadSHA: mr.HeadSHA, OperationID: "theirs", Title: "theirs", When: time.Unix(1, 0)})
	return err
}

// until waits until an operation is in one of the states.
func (r *rig) until(op string, states ...saga.State) saga.Row {
	r.t.Helper()
	return r.untilRow(op, func(row saga.Row) bool { return slices.Contains(states, row.State) }, states)
}

// untilRow waits until an operation's row is as it should be.
func (r *rig) untilRow(op string, is func(saga.Row) bool, want ...any) saga.Row {
	r.t.Helper()
	signal, end := r.eng.Subscribe(op)
	defer end()
	limit := time.After(20 * time.Second)
	for {
		row, err := r.db.Saga(r.t.Context(), op)
		if err != nil {
			r.t.Fatal(err)
		}
		if is(row) {
			return row
		}
		select {
		case <-signal:
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			r.t.Fatalf("%s, not as wanted %v: %+v %+v", row.State, want, row.Failure, row.Command)
		}
	}
}

func (r *rig) approve(op string, round int) {
	r.approver.answer(change.ApprovalID(op, round), approval.Approved)
}

// history is an operation's history as text, a line each.
func (r *rig) history(op string) string {
	r.t.Helper()
	es, err := r.db.History(r.t.Context(), op, store.Mark{}, 200)
	if err != nil {
		r.t.Fatal(err)
	}
	var out strings.Builder
	for _, e := range es {
		fmt.Fprintf(&out, "%s %s>%s %s: %s\n", e.Event, e.From, e.To, e.Actor, e.Detail)
	}
	return out.String()
}

func (r *rig) states(op string) []saga.State {
	r.t.Helper()
	es, err := r.db.History(r.t.Context(), op, store.Mark{}, 200)
	if err != nil {
		r.t.Fatal(err)
	}
	var out []saga.State
	for _, e := range es {
		if !e.IsNote {
			out = append(out, e.To)
		}
	}
	return out
}

// status reports the check "ci" of an operation's head.
func (r *rig) status(row saga.Row, state string) {
	r.t.Helper()
	var d struct{ HeadSHA string }
	if err := json.Unmarshal(row.Data, &d); err != nil {
		r.t.Fatal(err)
	}
	if d.HeadSHA == "" {
		r.t.Fatalf("%s has no head yet", row.State)
	}
	if err := r.host.SetStatus(r.t.Context(), forge.Status{Project: "app", SHA: d.HeadSHA, Context: "ci", State: state}); err != nil {
		r.t.Fatal(err)
	}
}

// merges counts the merges on main.
func (r *rig) merges() int {
	r.t.Helper()
	r.git("fetch", "-q", "origin")
	return len(strings.Fields(r.git("log", "--first-parent", "--merges", "--format=%H", "origin/main")))
}

func asRefusal(err error) string {
	if e, ok := errors.AsType[*change.Refusal](err); ok {
		return e.Code
	}
	return ""
}

// untilVersion waits until an operation has moved that far.
func (r *rig) untilVersion(op string, version int64) {
	r.t.Helper()
	r.untilRow(op, func(row saga.Row) bool { return row.Version >= version }, "version", version)
}
