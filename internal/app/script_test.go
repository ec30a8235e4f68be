package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/mergeflow/mergeflow/internal/app"
	"github.com/mergeflow/mergeflow/internal/cli"
	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/testkit/breakable"
	"github.com/mergeflow/mergeflow/internal/testkit/indexer"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
	"github.com/mergeflow/mergeflow/internal/testkit/proxy"
	"github.com/mergeflow/mergeflow/internal/testkit/receiver"
)

// root is the module's folder.
var root = func() string {
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		panic(err)
	}
	return dir
}()

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"mergeflow": func() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

func TestScriptsOnSQLite(t *testing.T) {
	t.Parallel()
	scripts(t, func(testing.TB) map[string]any { return nil })
}

func TestScriptsOnPostgres(t *testing.T) {
	t.Parallel()
	scripts(t, func(t testing.TB) map[string]any { return map[string]any{"database": pg.Database(t)} })
}

// server is what one script talks to, with what stands around it.
type server struct {
	app      *app.App
	data     string
	database string // as the configuration names it
	indexer  *indexer.Indexer
	proxy    *proxy.Proxy // in front of the indexer, for scripts that name it
	receiver *receiver.Receiver
}

type serverKey struct{}

// scripts runs testdata/script, each script against a server of its own. A
// script that brings server.yaml has it as the server's configuration, with
// $INDEXER, $PROXY (a TCP proxy in front of the indexer) and $RECEIVER for the
// services that the harness starts.
func scripts(t *testing.T, database func(testing.TB) map[string]any) {
	testscript.Run(t, testscript.Params{
		Dir:                filepath.Join(root, "testdata", "script"),
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			tb, ok := env.T().(testing.TB)
			if !ok {
				return fmt.Errorf("the script runs on a %T", env.T())
			}
			s := start(tb, env.WorkDir, database(tb))
			env.Values[serverKey{}] = s
			env.Setenv("MERGEFLOW_SERVER", s.app.URL())
			env.Setenv("BARE", filepath.Join(s.data, "repos"))
			env.Setenv("DATA", s.data)
			env.Setenv("DATABASE", s.database)
			for k, v := range map[string]string{
				"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.DevNull, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C",
				"GIT_AUTHOR_NAME": "Tess Test", "GIT_AUTHOR_EMAIL": "tess@example.com",
				"GIT_COMMITTER_NAME": "Tess Test", "GIT_COMMITTER_EMAIL": "tess@example.com",
			} {
				env.Setenv(k, v)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": status, "api": call, "filler": filler, "snapshot": snapshot, "index": index, "told": told, "field": field,
			"quickstart": quickstart, "wire": wire, "clock": clock,
			"await": awaitState, "head": head,
		},
	})
}

func start(tb testing.TB, work string, flags map[string]any) *server {
	s := &server{data: filepath.Join(tb.TempDir(), "data")}
	var err error
	if s.indexer, err = indexer.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.indexer.Close() })
	s.proxy = proxy.New(tb, strings.TrimPrefix(s.indexer.URL(), "http://"))
	if s.receiver, err = receiver.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.receiver.Close() })

	given := map[string]any{"listen": "127.0.0.1:0", "data_dir": s.data}
	s.database = "sqlite:" + filepath.Join(s.data, "mergeflow.db")
	for k, v := range flags {
		given[k] = v
	}
	if dsn, ok := given["database"].(string); ok {
		s.database = dsn
	}
	file := filepath.Join(work, "server.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		file = ""
	} else if err := os.WriteFile(file, []byte(os.Expand(string(text), func(name string) string {
		return map[string]string{"INDEXER": s.indexer.URL(), "PROXY": "http://" + s.proxy.Addr(), "RECEIVER": s.receiver.URL()}[name]
	})), 0o600); err != nil {
		tb.Fatal(err)
	}
	live, err := config.NewLive(app.ConfigOptions(file, nil, given))
	if err != nil {
		tb.Fatal(err)
	}
	var log bytes.Buffer
	s.app, err = app.New(app.Options{Config: live, Version: "test", Log: &log})
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.app.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.app.Stop(ctx); err != nil {
			tb.Errorf("stop: %v", err)
		}
		if tb.Failed() {
			tb.Logf("the server's log:\n%s", log.String())
		}
	})
	return s
}

func of(ts *testscript.TestScript) *server { return ts.Value(serverKey{}).(*server) }

func need(ts *testscript.TestScript, neg bool, args []string, n int, use string) {
	if neg || len(args) < n {
		ts.Fatalf("usage: %s", use)
	}
}

// status runs a command line and wants its exit status: testscript's own "!"
// knows failures, but not which.
func status(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "status N COMMAND...")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		e, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%s: %v", args[1], err)
		}
		got = e.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// call makes one call of the API and wants a status and a problem's code ("-": none).
func call(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 4, "api STATUS CODE METHOD PATH [BODYFILE]")
	var body io.Reader
	if len(args) > 4 {
		body = strings.NewReader(ts.ReadFile(args[4]))
	}
	req, err := http.NewRequest(args[2], of(ts).app.URL()+args[3], body)
	ts.Check(err)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%s\n", bytes.TrimSpace(b))
	var problem struct{ Code string }
	_ = json.Unmarshal(b, &problem)
	if got := fmt.Sprint(resp.StatusCode); got != args[0] || args[1] != "-" && problem.Code != args[1] {
		ts.Fatalf("answered %s %s, want %s %s: %s", got, problem.Code, args[0], args[1], b)
	}
	if args[1] != "-" && resp.Header.Get("Content-Type") != "application/problem+json" {
		ts.Fatalf("content type %q", resp.Header.Get("Content-Type"))
	}
}

// filler writes a pull request's JSON with a description of so many bytes.
func filler(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "filler FILE BYTES")
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), fmt.Appendf(nil,
		`{"repo":"shop/app","source":"warmer","target":"main","title":"x","description":%q}`, strings.Repeat("x", n)), 0o600))
}

// snapshot writes down all that a refused request must leave alone: what the
// API lists, and every ref of every repository.
func snapshot(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "snapshot FILE")
	s := of(ts)
	var out bytes.Buffer
	for _, path := range []string{"/v1/repos", "/v1/pulls", "/v1/operations"} {
		resp, err := http.Get(s.app.URL() + path)
		ts.Check(err)
		_, err = io.Copy(&out, resp.Body)
		ts.Check(err)
		ts.Check(resp.Body.Close())
		out.WriteByte('\n')
	}
	ts.Check(filepath.WalkDir(filepath.Join(s.data, "repos"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasSuffix(path, ".git") {
			var refs []byte
			refs, err = exec.Command("git", "--git-dir="+path, "for-each-ref").Output()
			fmt.Fprintf(&out, "%s\n%s", filepath.Base(path), refs)
		}
		return err
	}))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), out.Bytes(), 0o600))
}

// index makes the HTTP index fail, or work again.
func index(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "index ok|500|hang|…")
	ts.Check(of(ts).indexer.Set(breakable.Mode(args[0])))
}

// wire makes the TCP proxy in front of the indexer pass, reset or hang.
func wire(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "wire pass|reset|hang|lose-answer")
	mode, ok := map[string]proxy.Mode{"pass": proxy.Pass, "reset": proxy.Reset, "hang": proxy.Hang, "lose-answer": proxy.CloseAfterRequest}[args[0]]
	if !ok {
		ts.Fatalf("no mode %q", args[0])
	}
	of(ts).proxy.Set(mode)
}

// clock measures a way: "clock start", then "clock under 60s", which prints it.
func clock(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "clock start|under DURATION")
	if args[0] == "start" {
		ts.Setenv("CLOCK", time.Now().Format(time.RFC3339Nano))
		return
	}
	need(ts, neg, args, 2, "clock under DURATION")
	limit, err := time.ParseDuration(args[1])
	ts.Check(err)
	began, err := time.Parse(time.RFC3339Nano, ts.Getenv("CLOCK"))
	ts.Check(err)
	took := time.Since(began)
	ts.Logf("took %s (limit %s)", took.Round(time.Millisecond), limit)
	if took >= limit {
		ts.Fatalf("took %s, the limit is %s", took, limit)
	}
}

// awaitState waits until an operation is in a state.
func awaitState(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "await OPERATION STATE")
	limit := time.After(30 * time.Second)
	api := httpapi.Client{BaseURL: of(ts).app.URL()}
	for {
		o, err := api.Operation(context.Background(), args[0])
		if err == nil && o.State == args[1] {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			ts.Fatalf("not %s within 30 s: %s %+v %+v %v", args[1], o.State, o.Explain, o.Failure, err)
		}
	}
}

// head puts the head of an operation's merge request into the environment.
func head(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "head VARIABLE OPERATION")
	o, err := (&httpapi.Client{BaseURL: of(ts).app.URL()}).Operation(context.Background(), args[1])
	ts.Check(err)
	if o.MergeRequest == nil || o.MergeRequest.HeadSHA == "" {
		ts.Fatalf("%s has no head", args[1])
	}
	ts.Setenv(args[0], o.MergeRequest.HeadSHA)
}

// told wants a watcher to have been told so often.
func told(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "told WATCHER TIMES")
	times := 0
	for _, d := range of(ts).receiver.Deliveries() {
		if d.Watcher == args[0] {
			times += d.Times
		}
	}
	if got := fmt.Sprint(times); got != args[1] {
		ts.Fatalf("%s was told %s times, want %s", args[0], got, args[1])
	}
}

// field puts a top-level field of a JSON file into the environment.
func field(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "field VARIABLE NAME FILE|stdout")
	var o map[string]any
	if err := json.Unmarshal([]byte(ts.ReadFile(args[2])), &o); err != nil {
		ts.Fatalf("%s: %v", args[2], err)
	}
	v, ok := o[args[1]]
	if !ok {
		ts.Fatalf("%s has no field %s", args[2], args[1])
	}
	ts.Setenv(args[0], fmt.Sprint(v))
}

// quickstart writes the commands of docs/quickstart.md as a shell script that
// talks to this script's server.
func quickstart(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "quickstart FILE")
	page, err := os.ReadFile(filepath.Join(root, "docs", "quickstart.md"))
	ts.Check(err)
	var steps strings.Builder
	for line := range strings.Lines(string(page)) {
		if step, ok := strings.CutPrefix(line, "$ "); ok {
			steps.WriteString(strings.ReplaceAll(step, "http://127.0.0.1:8080", of(ts).app.URL()))
		}
	}
	if steps.Len() == 0 {
		ts.Fatalf("the page has no steps")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(steps.String()), 0o600))
}
