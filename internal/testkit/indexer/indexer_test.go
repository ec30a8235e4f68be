package indexer_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/testkit/indexer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// index stands in for a real one behind the indexer.
type index struct{ err error }

func (x *index) Covers(context.Context, search.Target) (bool, error) { return false, x.err }

func (x *index) Index(context.Context, search.Target) error { return x.err }
func (x *index) Search(_ context.Context, q search.Query) ([]search.Hit, error) {
	return []search.Hit{{Repo: q.Repo, Text: q.Text}}, x.err
}

func call(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(b))
}

const task = `{"repo":"r","branch":"main","commit":"c","operationId":"op"}`

func start(t *testing.T, options ...indexer.Option) *indexer.Indexer {
	t.Helper()
	x, err := indexer.Start(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func TestControlByHTTP(t *testing.T) {
	t.Parallel()
	x := start(t)
	expect := func(method, path, body string, status int, part string) {
		t.Helper()
		if got, answer := call(t, method, x.URL()+path, body); got != status || !strings.Contains(answer, part) {
			t.Errorf("%s %s: %d %s, want %d %s", method, path, got, answer, status, part)
		}
	}
	expect("GET", "/control", "", 200, `{"mode":"ok"}`)
	expect("POST", "/control", `{"mode":"500","times":2}`, 200, `"times":2`)
	expect("POST", "/index", task, 500, "as told")
	expect("GET", "/search?q=x", "", 500, "as told")
	expect("POST", "/index", task, 200, `"covered":"c"`)
	expect("POST", "/control", `{"mode":"lost"}`, 200, "lost")
	expect("POST", "/index", task, 0, "EOF")
	expect("POST", "/control", `{"mode":"slow"}`, 200, "slow")
	expect("POST", "/index", task, 200, "covered")
	expect("POST", "/control", `{"mode":"200"}`, 400, "unknown mode")
	expect("POST", "/control", `{`, 400, "EOF")
	expect("POST", "/control", `{"mode":"ok"}`, 200, "ok")
	expect("POST", "/index", `{}`, 422, "needed")
	expect("POST", "/index", `nonsense`, 400, "invalid")
	expect("GET", "/search?q=x", "", 200, `{"items":[]}`)
	if x.Calls() != 6 || x.Searches() != 2 || len(x.Done()) != 3 {
		t.Errorf("%d calls, %d searches, %d done", x.Calls(), x.Searches(), len(x.Done()))
	}
}

func TestAnIndexBehindIt(t *testing.T) {
	t.Parallel()
	behind := &index{}
	x := start(t, indexer.WithIndex(behind))
	if status, body := call(t, "GET", x.URL()+"/search?repo=r&q=some+text", ""); status != 200 || !strings.Contains(body, `"text":"some text"`) {
		t.Errorf("%d %s", status, body)
	}
	for err, want := range map[error]int{
		errors.New("down"):                          503,
		&search.Error{Detail: "bad"}:                422,
		&search.Error{Detail: "x", Transient: true}: 503,
	} {
		behind.err = err
		if status, _ := call(t, "POST", x.URL()+"/index", task); status != want {
			t.Errorf("%v: %d", err, status)
		}
	}
	if x.Covered("r", "main") != "" {
		t.Error("covered what its index refused")
	}
}

func TestASecretIsAskedFor(t *testing.T) {
	t.Parallel()
	x := start(t, indexer.WithSecret("s"))
	if status, _ := call(t, "POST", x.URL()+"/index", task); status != 401 {
		t.Errorf("status %d", status)
	}
	if _, err := indexer.Start(indexer.WithAddr(strings.TrimPrefix(x.URL(), "http://"))); err == nil {
		t.Error("two on one port")
	}
}
