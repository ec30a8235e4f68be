package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/forge/localgit"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// fixture is the API over real HTTP with the real parts behind it: SQLite, the
// engine, the local forge. Only the notifier and the index are the test's.
type fixture struct {
	t      *testing.T
	db     *sqlite.DB
	index  *index
	engine *engine.Engine
	url    string
	client *httpapi.Client
	dir    string
	log    *logged
	due    atomic.Int64 // how many commands the door of flow change believes to be due
}

// changes is the door of flow change; its engine performs none of its steps here.
func (f *fixture) changes(host *localgit.Host) *change.Service {
	return &change.Service{
		Store: f.db, Forges: func(name string) (forge.Changer, bool) { return host, name == pull.LocalForge },
		Projects:    func(string) change.Project { return change.Project{Forge: pull.LocalForge} },
		DefaultBase: func(context.Context, string) (string, error) { return "main", nil },
		Engine:      f.engine, Order: func() saga.Order { return change.ApprovalFirst },
		Builtin: &change.Rules{For: func(string) ([]string, int) { return []string{"*"}, 1 }},
		Backlog: func(context.Context) (int, int, error) { return int(f.due.Load()), 100, nil },
	}
}

// options are what a test changes before the server starts.
type option func(*httpapi.Options)

func start(t *testing.T, with ...option) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir(), index: newIndex(), log: &logged{}}
	var err error
	if f.db, err = sqlite.Open(t.Context(), sqlite.Options{Path: sqlite.Memory}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.db.Close() })
	host := localgit.New(localgit.Options{Dir: f.dir, Store: f.db})
	forges := func(name string) (forge.Forge, bool) { return host, name == pull.LocalForge }
	steps := &pull.Steps{Forges: forges, Notifier: nobody{}, Index: f.index, Store: f.db}
	f.engine, err = engine.New(engine.Options{
		Store: f.db, Flows: []engine.Flow{steps.Flow()},
		Settings: func() saga.Settings { return saga.Settings{Attempts: 1} }, // the first failure is the last
	})
	if err != nil {
		t.Fatal(err)
	}
	f.engine.Start()
	t.Cleanup(func() {
		f.index.release()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = f.engine.Stop(ctx)
	})
	server := httptest.NewUnstartedServer(nil)
	f.url = "http://" + server.Listener.Addr().String()
	o := httpapi.Options{
		Store: f.db, Engine: f.engine, Flows: []*saga.Flow{pull.Table, change.Table}, Host: host, Index: f.index, PublicURL: f.url, Version: "test",
		Changes: f.changes(host),
		Pulls:   &pull.Service{Store: f.db, Host: host, Forges: forges, Engine: f.engine},
		Git:     host.GitHandler("/git/", func(*http.Request, bool) error { return nil }),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") }),
		Log:     slog.New(slog.NewJSONHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range with {
		c(&o)
	}
	h, err := httpapi.New(o)
	if err != nil {
		t.Fatal(err)
	}
	server.Config = httpapi.NewServer(h, nil)
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	f.client = &httpapi.Client{BaseURL: f.url}
	return f
}

// repo makes a repository with main and these branches, each one commit ahead.
func (f *fixture) repo(name string, branches ...string) httpapi.Repository {
	f.t.Helper()
	r, err := f.client.CreateRepo(f.t.Context(), httpapi.NewRepository{Name: name})
	if err != nil {
		f.t.Fatal(err)
	}
	var s strings.Builder
	commit := func(branch, from, file string) {
		fmt.Fprintf(&s, "commit refs/heads/%s\ncommitter t <t@t> 1700000000 +0000\ndata 1\nx\n%sM 100644 inline %s\ndata %d\n%s\n", branch, from, file, len(file), file)
	}
	commit("main", "", "main.txt")
	for _, b := range branches {
		commit(b, "from refs/heads/main\n", strings.ReplaceAll(b, "/", "-")+".txt")
	}
	f.git(name, s.String(), "fast-import", "--quiet")
	return r
}

func (f *fixture) git(repo, stdin string, args ...string) string {
	f.t.Helper()
	c := exec.CommandContext(f.t.Context(), "git", append([]string{"-c", "safe.directory=*", "--git-dir", filepath.Join(f.dir, repo+".git")}, args...)...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		f.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// pull opens a pull request of a branch into main.
func (f *fixture) pull(repo, branch string) httpapi.Pull {
	f.t.Helper()
	p, err := f.client.CreatePull(f.t.Context(), httpapi.NewPull{Repo: repo, Source: branch, Target: "main", Title: "Merge " + branch})
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// until waits until an operation stands as wanted.
func (f *fixture) until(id string, is func(httpapi.Operation) bool) httpapi.Operation {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	defer cancel()
	var last httpapi.Operation
	for ev, err := range f.client.Watch(ctx, id, "") {
		if err != nil {
			f.t.Fatalf("operation %s stands in %s: %v", id, last.State, err)
		}
		if ev.Operation != nil {
			if last = *ev.Operation; is(last) {
				return last
			}
		}
	}
	f.t.Fatalf("operation %s ended in %s", id, last.State)
	return last
}

func inState(s saga.State) func(httpapi.Operation) bool {
	return func(o httpapi.Operation) bool { return o.State == string(s) }
}

// answer is one raw answer.
type answer struct {
	status int
	header http.Header
	body   string
	error  httpapi.Error
}

// do makes a raw call; header holds names and values in turn.
func (f *fixture) do(method, path, body string, header ...string) answer {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	return f.send(req)
}

func (f *fixture) send(req *http.Request) answer {
	f.t.Helper()
	resp, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, body: string(b)}
	if a.status >= 400 {
		if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
			f.t.Fatalf("%s %s: %d is a %s: %s", req.Method, req.URL, a.status, ct, b)
		}
		if err := json.Unmarshal(b, &a.error); err != nil {
			f.t.Fatal(err)
		}
		if a.error.Status != a.status || a.error.Code == "" || a.error.Title == "" {
			f.t.Fatalf("%s %s: %d is an incomplete problem: %s", req.Method, req.URL, a.status, b)
		}
	}
	return a
}

// refused checks a refusal's status and code, and the bad fields where some are named.
func (a answer) refused(t *testing.T, status int, code string, fields ...string) {
	t.Helper()
	var got []string
	for _, e := range a.error.Errors {
		got = append(got, e.Location)
	}
	if a.status != status || a.error.Code != code || strings.Join(got, " ") != strings.Join(fields, " ") {
		t.Errorf("answered %d %s %q, want %d %s %q: %s", a.status, a.error.Code, got, status, code, fields, a.body)
	}
}

// index is an index that the test breaks, holds and mends.
type index struct {
	mu   sync.Mutex
	fail error
	hold chan struct{} // closed: nothing is held
	hits []search.Hit
}

func newIndex() *index {
	i := &index{hold: make(chan struct{})}
	close(i.hold)
	return i
}

func (i *index) set(fail error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fail = fail
}

// block holds every indexing until release.
func (i *index) block() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hold = make(chan struct{})
}

func (i *index) release() {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.hold:
	default:
		close(i.hold)
	}
}

func (i *index) state() (chan struct{}, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hold, i.fail
}

func (i *index) Covers(context.Context, search.Target) (bool, error) { return false, nil }

func (i *index) Index(ctx context.Context, _ search.Target) error {
	hold, fail := i.state()
	select {
	case <-hold:
		return fail
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (i *index) Search(_ context.Context, q search.Query) ([]search.Hit, error) {
	if _, fail := i.state(); fail != nil {
		return nil, fail
	}
	var out []search.Hit
	for _, h := range i.hits {
		if strings.Contains(h.Text, q.Text) && (q.Repo == "" || q.Repo == h.Repo) {
			out = append(out, h)
		}
	}
	return out, nil
}

// nobody is a notifier without recipients.
type nobody struct{}

func (nobody) Recipients([]string) []notify.Recipient                       { return nil }
func (nobody) Send(context.Context, notify.Recipient, notify.Message) error { return nil }

// logged collects log lines.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
func decode(t *testing.T, body string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), into); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
}
