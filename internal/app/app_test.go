package app_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/app"
	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// limit bounds every wait of these tests.
const limit = 30 * time.Second

// text is a log that can be read while it is written.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

func newApp(t *testing.T, file string, flags map[string]any) (*app.App, *text) {
	t.Helper()
	live, err := config.NewLive(app.ConfigOptions(file, nil, flags))
	if err != nil {
		t.Fatal(err)
	}
	log := &text{}
	a, err := app.New(app.Options{Config: live, Version: "test", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return a, log
}

func started(t *testing.T, file string, flags map[string]any) (*app.App, *text) {
	t.Helper()
	a, log := newApp(t, file, flags)
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a, log
}

func stop(t *testing.T, a *app.App) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func onPort0(dir string) map[string]any {
	return map[string]any{"listen": "127.0.0.1:0", "data_dir": filepath.Join(dir, "data")}
}

// git runs the git client in dir.
func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	c := exec.Command("git", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull,
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// waitingMerge asks for a merge that waits for a check, and answers the pull
// request and its operation.
func waitingMerge(t *testing.T, c *httpapi.Client) (httpapi.Pull, string) {
	t.Helper()
	r, err := c.CreateRepo(t.Context(), httpapi.NewRepository{Name: "app", RequiredChecks: []string{"ci"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	git(t, dir, "clone", "-q", r.CloneURL, ".")
	git(t, dir, "switch", "-q", "-c", "main")
	git(t, dir, "commit", "-q", "--allow-empty", "-m", "one")
	git(t, dir, "switch", "-q", "-c", "change")
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "two")
	git(t, dir, "push", "-q", "origin", "main", "change")
	p, err := c.CreatePull(t.Context(), httpapi.NewPull{Repo: "app", Source: "change", Target: "main", Title: "two"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.MergePull(t.Context(), p.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	return p, a.OperationID
}

// await watches an operation until it is settled, and answers how it stands.
func await(t *testing.T, c *httpapi.Client, id string) httpapi.Operation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for ev, err := range c.Watch(ctx, id, "") {
		if err != nil {
			t.Fatal(err)
		}
		if o := ev.Operation; o != nil && (o.Failed() || o.Final()) {
			return *o
		}
	}
	t.Fatal("the watch ended early")
	return httpapi.Operation{}
}

// A stop doesn't wait for those who watch, and what waited goes on at the next start.
func TestStopAndGoOn(t *testing.T) {
	t.Parallel()
	flags := onPort0(t.TempDir())
	flags["checks.poll.short"] = "50ms"
	a, log := started(t, "", flags)
	c := &httpapi.Client{BaseURL: a.URL()}
	p, op := waitingMerge(t, c)

	watching, ended := make(chan struct{}), make(chan struct{})
	watch, endWatch := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		first := true
		for range c.Watch(watch, op, "") {
			if first {
				close(watching)
				first = false
			}
		}
	}()
	<-watching
	began := time.Now()
	stop(t, a)
	if took := time.Since(began); took > limit/3 {
		t.Errorf("the stop took %s; log:\n%s", took, log)
	}
	endWatch()
	<-ended
	if strings.Contains(log.String(), "cut off") {
		t.Errorf("something was cut off:\n%s", log)
	}

	b, _ := started(t, "", flags)
	defer stop(t, b)
	c = &httpapi.Client{BaseURL: b.URL()}
	if _, err := c.SetStatus(t.Context(), "app", p.HeadSHA, httpapi.NewStatus{Context: "ci", State: "success"}); err != nil {
		t.Fatal(err)
	}
	if o := await(t, c, op); o.State != "MERGED" {
		t.Errorf("it ended in %s: %s", o.State, o.Explain.Summary)
	}
}

// Two processes on one PostgreSQL share the repositories and finish each other's work.
func TestTwoOnOnePostgres(t *testing.T) {
	t.Parallel()
	flags := onPort0(t.TempDir())
	flags["database"], flags["checks.poll.short"] = pg.Database(t), "50ms"
	a, _ := started(t, "", flags)
	b, _ := started(t, "", flags)
	defer stop(t, b)
	p, op := waitingMerge(t, &httpapi.Client{BaseURL: a.URL()})
	stop(t, a)

	c := &httpapi.Client{BaseURL: b.URL()}
	if _, err := c.SetStatus(t.Context(), "app", p.HeadSHA, httpapi.NewStatus{Context: "ci", State: "success"}); err != nil {
		t.Fatal(err)
	}
	if o := await(t, c, op); o.State != "MERGED" {
		t.Fatalf("it ended in %s: %s", o.State, o.Explain.Summary)
	}
	hits, err := c.Search(t.Context(), "app", "text")
	if err != nil || len(hits) != 1 {
		t.Errorf("search: %v, %v", hits, err)
	}
}

// A start that fails says which key is to blame and leaves nothing open.
func TestStartFails(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for key, flags := range map[string]map[string]any{
		"listen":     {"listen": taken.Addr().String()},
		"data_dir":   {"data_dir": filepath.Join(file, "below")},
		"database":   {"database": "sqlite:" + filepath.Join(file, "below", "x.db")},
		"database: ": {"database": "postgres://mergeflow:geheim@127.0.0.1:1/none?connect_timeout=2"},
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			all := onPort0(t.TempDir())
			all["listen"] = "127.0.0.77:0" // nobody else's: a port that is given back stays free
			for k, v := range flags {
				all[k] = v
			}
			a, _ := newApp(t, "", all)
			err := a.Start(t.Context())
			if err == nil {
				t.Fatal("it started")
			}
			if !strings.HasPrefix(err.Error(), strings.TrimRight(key, ": ")+": ") || strings.Contains(err.Error(), "geheim") {
				t.Errorf("it says %q", err)
			}
			if addr := a.Addr(); addr != "" {
				again, err := net.Listen("tcp", addr)
				if err != nil {
					t.Fatalf("the port is still taken: %v", err)
				}
				_ = again.Close()
			}
		})
	}
}

// What is live follows the file; a file with an error changes nothing.
func TestConfigurationIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "mergeflow.yaml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("log: {level: error}\n")
	a, log := started(t, file, onPort0(dir))
	defer stop(t, a)
	if strings.Contains(log.String(), "msg=started") {
		t.Errorf("level error lets information through:\n%s", log)
	}
	says := func(want string) {
		t.Helper()
		for end := time.Now().Add(limit); !strings.Contains(log.String(), want); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the log doesn't say %q:\n%s", want, log)
			}
		}
	}
	write("log: {level: loud}\n")
	says("the running values stay")
	write("log: {level: info}\n")
	says("configuration changed")
}
