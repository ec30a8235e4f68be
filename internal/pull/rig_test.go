package pull_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/forge/localgit"
	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// rig is flow pull over a real database, real git and a real engine; the
// services behind it are recorders that can be told to fail.
type rig struct {
	t      *testing.T
	dir    string
	db     *sqlite.DB
	host   *localgit.Host
	svc    *pull.Service
	eng    *engine.Engine
	told   *recorder
	index  *index
	forge  *faulty
	settle saga.Settings
}

// faulty is the local forge whose merge can lose its answer or be refused
// without effect.
type faulty struct {
	forge.Host
	mu    sync.Mutex
	merge func(ctx context.Context, in forge.MergeInput) (string, error) // nil: the real one
	calls int
}

// CloseMergeRequest is the local forge's: a close and a merge exclude each other.
func (f *faulty) CloseMergeRequest(ctx context.Context, ref forge.Ref) error {
	return f.Host.(*localgit.Host).CloseMergeRequest(ctx, ref)
}

func (f *faulty) Merge(ctx context.Context, in forge.MergeInput) (string, error) {
	f.mu.Lock()
	f.calls++
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

// elsewhere is a forge whose word on every merge request is mr; without one it
// is down.
type elsewhere struct {
	forge.Forge
	mr *forge.MergeRequest
}

func (e *elsewhere) MergeRequest(context.Context, forge.Ref) (forge.MergeRequest, error) {
	if e.mr == nil {
		return forge.MergeRequest{}, &forge.Error{Op: "look", Kind: forge.KindTransient, Detail: "down"}
	}
	return *e.mr, nil
}

type recorder struct {
	mu   sync.Mutex
	sent map[string][]string // watcher → delivery ids
	bad  map[string]error
}

func (n *recorder) Recipients(watchers []string) []notify.Recipient {
	var out []notify.Recipient
	for _, w := range watchers {
		out = append(out, notify.Recipient{Key: "webhook:" + w, Watcher: w})
	}
	return out
}

func (n *recorder) Send(_ context.Context, to notify.Recipient, m notify.Message) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.bad[to.Watcher]; err != nil {
		return err
	}
	n.sent[to.Watcher] = append(n.sent[to.Watcher], m.DeliveryID)
	return nil
}

func (n *recorder) fail(watcher string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bad[watcher] = err
}

func (n *recorder) deliveries(watcher string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.sent[watcher])
}

type index struct {
	mu      sync.Mutex
	down    error
	covered []string
}

func (x *index) Covers(_ context.Context, t search.Target) (bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Contains(x.covered, t.Commit), x.down
}

func (x *index) Index(_ context.Context, t search.Target) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.down == nil {
		x.covered = append(x.covered, t.Commit)
	}
	return x.down
}

func (x *index) Search(context.Context, search.Query) ([]search.Hit, error) { return nil, nil }

func (x *index) set(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.down = err
}

func newRig(t *testing.T) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: ":memory:"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{t: t, dir: t.TempDir(), db: db, told: &recorder{sent: map[string][]string{}, bad: map[string]error{}}, index: &index{}}
	r.host = localgit.New(localgit.Options{Dir: filepath.Join(r.dir, "repos"), Store: db})
	r.forge = &faulty{Host: r.host}
	forges := func(name string) (forge.Forge, bool) { return r.forge, name == pull.LocalForge }
	r.settle = saga.Settings{Attempts: 2, Backoff: time.Millisecond, BackoffMax: 2 * time.Millisecond,
		Polls: map[saga.State]saga.Poll{pull.Validating: {Short: 5 * time.Millisecond, ShortTries: 10000}}}
	steps := &pull.Steps{Forges: forges, Notifier: r.told, Index: r.index, Store: db}
	r.eng, err = engine.New(engine.Options{Store: db, Flows: []engine.Flow{steps.Flow()}, Settings: func() saga.Settings { return r.settle }, Poll: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r.eng.Start()
	t.Cleanup(func() { _ = r.eng.Stop(context.Background()) })
	r.svc = &pull.Service{Store: db, Host: r.forge, Forges: forges, Engine: r.eng}
	return r
}

func (r *rig) git(dir string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// work is a clone in which a test commits and pushes.
type work struct {
	r   *rig
	dir string
}

func (r *rig) repo(checks ...string) *work {
	r.t.Helper()
	if _, err := r.host.CreateRepository(r.t.Context(), forge.Repository{Name: "app", DefaultBranch: "main", MergeStyle: forge.MergeCommit, RequiredChecks: checks}); err != nil {
		r.t.Fatal(err)
	}
	w := &work{r: r, dir: r.t.TempDir()}
	r.git(w.dir, "init", "-q", "-b", "main")
	r.git(w.dir, "remote", "add", "origin", r.bare())
	w.push("main", "README.md", "hello\n")
	return w
}

func (r *rig) bare() string { return filepath.Join(r.dir, "repos", "app.git") }

// push commits one file on a branch, which begins at main where it is new, and
// answers the new head.
func (w *work) push(branch, file, content string) string {
	w.r.t.Helper()
	if branch != "main" {
		if w.r.git(w.dir, "branch", "--list", branch) == "" {
			w.r.git(w.dir, "checkout", "-q", "-b", branch, "main")
		} else {
			w.r.git(w.dir, "checkout", "-q", branch)
		}
	}
	if err := os.WriteFile(filepath.Join(w.dir, file), []byte(content), 0o600); err != nil {
		w.r.t.Fatal(err)
	}
	w.r.git(w.dir, "add", ".")
	w.r.git(w.dir, "commit", "-q", "-m", "change "+file)
	w.r.git(w.dir, "push", "-q", "origin", branch)
	head := w.r.git(w.dir, "rev-parse", "HEAD")
	w.r.git(w.dir, "checkout", "-q", "main")
	return head
}

func (r *rig) pull(source string, watchers ...string) pull.View {
	r.t.Helper()
	v, err := r.svc.Create(r.t.Context(), forge.NewMergeRequest{Project: "app", Source: source, Target: "main", Title: "Add " + source, Watchers: watchers})
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r *rig) merge(id string) string {
	r.t.Helper()
	row, err := r.svc.Merge(r.t.Context(), id, "", "ann")
	if err != nil {
		r.t.Fatal(err)
	}
	return row.ID
}

func (r *rig) until(op string, s saga.State) saga.Row {
	r.t.Helper()
	signal, end := r.eng.Subscribe(op)
	defer end()
	limit := time.After(20 * time.Second)
	for {
		row, err := r.db.Saga(r.t.Context(), op)
		if err != nil {
			r.t.Fatal(err)
		}
		if row.State == s {
			return row
		}
		select {
		case <-signal:
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			r.t.Fatalf("%s, not %s: %+v %+v", row.State, s, row.Failure, row.Command)
		}
	}
}

func (r *rig) view(id string) pull.View {
	r.t.Helper()
	v, err := r.svc.View(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// merges counts the commits on main's first-parent line after the first one.
func (r *rig) merges() int {
	r.t.Helper()
	return strings.Count(r.git(r.bare(), "log", "--first-parent", "--format=%H", "main")+"\n", "\n") - 1
}

func (r *rig) refused(err error, code string) *pull.Refusal {
	r.t.Helper()
	var refusal *pull.Refusal
	if !errors.As(err, &refusal) || refusal.Code != code {
		r.t.Fatalf("expected the refusal %s, got %v", code, err)
	}
	return refusal
}

func (r *rig) states(op string) []saga.State {
	r.t.Helper()
	es, err := r.db.History(r.t.Context(), op, store.Mark{}, 100)
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
