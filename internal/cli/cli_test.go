package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// run runs a command line against an API that answers one thing.
func run(t *testing.T, answer http.HandlerFunc, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	api := httptest.NewServer(answer)
	defer api.Close()
	var out, errs bytes.Buffer
	env := []string{"MERGEFLOW_SERVER=" + api.URL}
	exit = Run(t.Context(), args, env, strings.NewReader(""), &out, &errs)
	return exit, out.String(), errs.String()
}

func problem(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Every command that does something says what, and shows how.
func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	var walk func(c *cobra.Command)
	n := 0
	walk = func(c *cobra.Command) {
		n++
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s: has no help text or no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: the example %q is not indented", c.CommandPath(), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	s := &session{stdout: io.Discard, stderr: io.Discard}
	walk(s.root())
	if n < 30 {
		t.Errorf("only %d commands were looked at", n)
	}
}

// A limit that the server has is told before it is met.
func TestHelpTellsTheLimitOfADescription(t *testing.T) {
	t.Parallel()
	s := &session{stdout: io.Discard, stderr: io.Discard}
	if u := s.prCreateCmd().Flags().Lookup("description").Usage; !strings.Contains(u, strconv.Itoa(forge.MaxDescription)+" bytes") {
		t.Errorf("--description: %s", u)
	}
}

// The examples are command lines that the parser takes.
func TestExamplesParse(t *testing.T) {
	t.Parallel()
	quoted := regexp.MustCompile(`'[^']*'|"[^"]*"|[^ ]+`)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for line := range strings.SplitSeq(strings.ReplaceAll(c.Example, "\\\n", ""), "\n") {
			line, _, _ = strings.Cut(line, " #")
			line, _, _ = strings.Cut(line, " >")
			words := quoted.FindAllString(line, -1)
			for i := range words {
				words[i] = strings.Trim(words[i], `'"`)
			}
			if len(words) == 0 || words[0] != "mergeflow" {
				continue // git, or a variable before the command
			}
			s := &session{stdout: io.Discard, stderr: io.Discard}
			found, rest, err := s.root().Find(words[1:])
			if err != nil {
				t.Errorf("%q: %v", line, err)
				continue
			}
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("%q: %v", line, err)
				continue
			}
			if err := found.ValidateArgs(found.Flags().Args()); err != nil {
				t.Errorf("%q: %v", line, err)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	s := &session{stdout: io.Discard, stderr: io.Discard}
	walk(s.root())
}

func TestExitStatusOfRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		code   string
		exit   int
	}{
		{404, "not-found", 3}, {409, "retry-instead", 4}, {401, "unauthorized", 4}, {403, "forbidden", 4},
		{422, "invalid", 2}, {400, "bad-request", 2}, {413, "body-too-large", 2}, {422, "no-change", 4},
		{500, "internal", 1}, {503, "unavailable", 1}, {502, "search-failed", 1},
	} {
		t.Run(fmt.Sprint(c.status, c.code), func(t *testing.T) {
			t.Parallel()
			exit, stdout, stderr := run(t, problem(c.status, fmt.Sprintf(`{"status":%d,"code":%q,"title":"T","detail":"why not"}`, c.status, c.code)), "get", "x")
			if exit != c.exit || stdout != "" || !strings.HasPrefix(stderr, "error: "+c.code+": why not") || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit %d, stdout %q, stderr %q", exit, stdout, stderr)
			}
		})
	}
}

func TestErrorsNameFieldsAndWhatToDo(t *testing.T) {
	t.Parallel()
	body := `{"status":409,"code":"retry-instead","detail":"git has merged","operationId":"op1",` +
		`"errors":[{"location":"title","message":"is required"},{"location":"","message":"no\u001b[2J good"}]}`
	exit, _, stderr := run(t, problem(409, body), "merge", "x")
	want := "error: retry-instead: git has merged; title: is required; no [2J good; hint: mergeflow retry op1 --reason R\n"
	if exit != 4 || stderr != want {
		t.Errorf("exit %d, says %q, want %q", exit, stderr, want)
	}
	exit, stdout, stderr := run(t, problem(409, body), "merge", "x", "-o", "json")
	if exit != 4 || stdout != "" || stderr != body+"\n" {
		t.Errorf("JSON: exit %d, stdout %q, stderr %q", exit, stdout, stderr)
	}
	exit, _, stderr = run(t, problem(502, "<html>a proxy</html>"), "get", "x", "-o", "json")
	if exit != 1 || !strings.HasPrefix(stderr, "error: http-502: ") {
		t.Errorf("a foreign answer: exit %d, says %q", exit, stderr)
	}
	exit, _, stderr = run(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, "get", "x")
	if exit != 1 || !strings.HasPrefix(stderr, "error: bad-answer: ") {
		t.Errorf("an answer that is no JSON: exit %d, says %q", exit, stderr)
	}
}

func TestTokenGoesToTheServerAlone(t *testing.T) {
	t.Parallel()
	elsewhere := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { elsewhere <- r.URL.Path }))
	defer other.Close()
	var got string
	exit, _, stderr := run(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		http.Redirect(w, r, other.URL+"/steal", http.StatusTemporaryRedirect)
	}, "get", "x", "--token", "hush")
	if got != "Bearer hush" || exit != 1 || strings.Contains(stderr, "hush") {
		t.Errorf("the server got %q; exit %d, says %q", got, exit, stderr)
	}
	select {
	case path := <-elsewhere:
		t.Errorf("the call was carried on to %s", path)
	default:
	}
}

// One page is the API's own body; all pages are one list without next.
func TestLists(t *testing.T) {
	t.Parallel()
	pages := func(w http.ResponseWriter, r *http.Request) {
		next := `,"next":"two"`
		item := "a"
		if r.URL.Query().Get("cursor") == "two" {
			next, item = "", "b"
		}
		fmt.Fprintf(w, `{"items":[{"name":%q,"extra":1}]%s}`+"\n", item, next)
	}
	exit, stdout, _ := run(t, pages, "repo", "list", "--limit", "1", "-o", "json")
	if want := `{"items":[{"name":"a","extra":1}],"next":"two"}` + "\n"; exit != 0 || stdout != want {
		t.Errorf("one page: exit %d, %q", exit, stdout)
	}
	exit, stdout, _ = run(t, pages, "repo", "list", "--all", "-o", "json")
	if want := `{"items":[{"name":"a","extra":1},{"name":"b","extra":1}]}` + "\n"; exit != 0 || stdout != want {
		t.Errorf("all: exit %d, %q", exit, stdout)
	}
	exit, stdout, stderr := run(t, pages, "repo", "list", "--limit", "1")
	if exit != 0 || !strings.HasPrefix(stdout, "NAME") || !strings.Contains(stderr, "--all") {
		t.Errorf("text: exit %d, stdout %q, stderr %q", exit, stdout, stderr)
	}
	empty := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"items":[]}`) }
	if exit, stdout, _ = run(t, empty, "list", "--all", "-o", "json"); exit != 0 || stdout != `{"items":[]}`+"\n" {
		t.Errorf("none: exit %d, %q", exit, stdout)
	}
}

// A list hands every filter to the API.
func TestListFilters(t *testing.T) {
	t.Parallel()
	var query string
	exit, _, stderr := run(t, func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.Query().Encode()
		_, _ = io.WriteString(w, `{"items":[]}`)
	}, "list", "--flow", "f", "--status", "s", "--state", "S", "--subject", "u", "--target", "t", "--project", "p", "-q", "text", "--limit", "7")
	if want := "flow=f&limit=7&project=p&q=text&state=S&status=s&subject=u&target=t"; exit != 0 || query != want {
		t.Errorf("exit %d (%s), query %q, want %q", exit, stderr, query, want)
	}
}

func TestWaitKnowsItsEnds(t *testing.T) {
	t.Parallel()
	op := func(state, waiting string, actions ...string) httpapi.Operation {
		return httpapi.Operation{State: state, Actions: actions, Explain: httpapi.Explain{WaitingFor: waiting}}
	}
	for _, c := range []struct {
		o            httpapi.Operation
		good, closed bool
	}{
		{op("MERGED", ""), true, false},
		{op("CALLED_BACK", ""), true, false},
		{op("MERGE_FAILED", "", "retry", "close"), false, false},
		{op("PULL_CLOSED", ""), false, true},
		{op("SUPERSEDED", ""), false, true},
		{op("HANDLE_MERGED", "deploy"), false, false},
	} {
		if got := succeeded(c.o); got != c.good {
			t.Errorf("%s: a wait says %v", c.o.State, got)
		}
		if got := closed(c.o); got != c.closed {
			t.Errorf("%s: a close says %v", c.o.State, got)
		}
	}
}

func TestServeSaysWhereAndStopsInGoodOrder(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	var errs bytes.Buffer
	ended := make(chan int, 1)
	data := filepath.Join(t.TempDir(), "data")
	go func() {
		ended <- Run(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", data}, nil, nil, w, &errs)
		_ = w.Close()
	}()
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		t.Fatal("it says nothing")
	}
	m := regexp.MustCompile(`^serving on (http://127\.0\.0\.1:\d+)$`).FindStringSubmatch(lines.Text())
	if m == nil {
		t.Fatalf("it says %q", lines.Text())
	}
	c := &httpapi.Client{BaseURL: m[1]}
	if err := c.Ready(t.Context()); err != nil {
		t.Errorf("not ready: %v", err)
	}
	// The files of a second server would be the same ones.
	var second bytes.Buffer
	if exit := Run(t.Context(), []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", data}, nil, nil, io.Discard, &second); exit != 1 || !strings.HasPrefix(second.String(), "error: start: database: ") {
		t.Errorf("a second server: exit %d, says %q", exit, second.String())
	}
	stop()
	if lines.Scan() {
		t.Errorf("it also says %q", lines.Text())
	}
	select {
	case exit := <-ended:
		if exit != 0 {
			t.Errorf("exit %d, log:\n%s", exit, errs.String())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it does not stop")
	}
	if err := c.Ready(t.Context()); err == nil {
		t.Error("it still answers")
	}
}

func TestUnreadableArgument(t *testing.T) {
	t.Parallel()
	exit, _, stderr := run(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }, "search", "a\xffb")
	if exit != 2 || !strings.Contains(stderr, "argument 2 is not valid UTF-8") {
		t.Errorf("exit %d, says %q", exit, stderr)
	}
}

// A title must not be able to drive a terminal.
func TestTextIsPlain(t *testing.T) {
	t.Parallel()
	if got, want := plain("a\x1b[31mb\r\n\u202ec"), "a [31mb   c"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer api.Close()
	var errs bytes.Buffer
	exit := Run(ctx, []string{"get", "x", "--server", api.URL}, nil, nil, io.Discard, &errs)
	if exit != 1 || !strings.HasPrefix(errs.String(), "error: interrupted: ") {
		t.Errorf("exit %d, says %q", exit, errs.String())
	}
}

// A failure stays what it is, whoever wraps it up.
func TestFailureKeepsItsStatus(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("around: %w", &failure{exit: exitRefused, code: "c"})
	if f := failed("other", err); f.exit != exitRefused {
		t.Errorf("exit %d", f.exit)
	}
	if f := failed("other", errors.New("x")); f.exit != exitFailed || f.code != "other" {
		t.Errorf("%+v", f)
	}
}
