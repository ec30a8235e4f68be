package httpapi_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
)

const (
	noID  = "01890000-0000-7000-8000-000000000000"
	noSHA = "0123456789012345678901234567890123456789"
)

// What is refused for its form, with the field that is wrong.
func TestBadInputNamesItsField(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.repo("shop/app", "x")
	if _, err := f.client.CreateRepo(t.Context(), httpapi.NewRepository{Name: "empty"}); err != nil {
		t.Fatal(err)
	}
	p := f.pull("shop/app", "x")
	before := f.do("GET", "/v1/pulls", "").body + f.do("GET", "/v1/repos", "").body
	newPull := func(changes string) string {
		return `{"repo":"shop/app","source":"x","target":"main","title":"T"` + changes + `}`
	}
	status := "/v1/repos/shop%2Fapp/statuses/" + p.HeadSHA
	for _, c := range []struct {
		method, path, body string
		fields             []string
	}{
		{"POST", "/v1/repos", ``, []string{"name"}},
		{"POST", "/v1/repos", `{"name":""}`, []string{"name"}},
		{"POST", "/v1/repos", `{"name":"../x"}`, []string{"name"}},
		{"POST", "/v1/repos", `{"name":"a","defaultBranch":"--upload-pack=x"}`, []string{"defaultBranch"}},
		{"POST", "/v1/repos", `{"name":"a","mergeStyle":"rebase"}`, []string{"mergeStyle"}},
		{"POST", "/v1/repos", `{"name":"a","requiredChecks":["ok",""]}`, []string{"requiredChecks[1]"}},
		{"POST", "/v1/repos", `{"name":"a","reviewers":["ana","ana"]}`, []string{"reviewers[1]"}},
		{"POST", "/v1/repos", `{"name":"a","owner":"me"}`, []string{"owner"}},
		{"POST", "/v1/repos", `{"Name":"a"}`, []string{"name", "Name"}},
		{"POST", "/v1/repos", `{"name":7}`, []string{"name"}},
		{"POST", "/v1/repos", `{"name":"a","name":"b"}`, []string{"name"}},
		{"POST", "/v1/repos", `["name"]`, []string{""}},
		{"POST", "/v1/repos", `null`, []string{""}},

		{"POST", "/v1/pulls", `{}`, []string{"repo", "source", "target", "title"}},
		{"POST", "/v1/pulls", `{"repo":"nowhere","source":"x","target":"main","title":"T"}`, []string{"repo"}},
		{"POST", "/v1/pulls", `{"repo":"empty","source":"x","target":"main","title":"T"}`, []string{"repo"}},
		{"POST", "/v1/pulls", `{"repo":"shop/app","source":"gone","target":"main","title":"T"}`, []string{"source"}},
		{"POST", "/v1/pulls", `{"repo":"shop/app","source":"--upload-pack=x","target":"main","title":"T"}`, []string{"source"}},
		{"POST", "/v1/pulls", `{"repo":"shop/app","source":"x","target":"refs/../x","title":"T"}`, []string{"target"}},
		{"POST", "/v1/pulls", `{"repo":"shop/app","source":"x","target":"main","title":"nul\u0000"}`, []string{"title"}},
		{"POST", "/v1/pulls", "{\"repo\":\"shop/app\",\"source\":\"x\",\"target\":\"main\",\"title\":\"\xff\"}", []string{"title"}},
		{"POST", "/v1/pulls", newPull(`,"title2":"x"`), []string{"title2"}},
		{"POST", "/v1/pulls", newPull(`,"watchers":["ana","b\u0000"]`), []string{"watchers[1]"}},
		{"POST", "/v1/pulls", newPull(`,"watchers":["ana",""]`), []string{"watchers[1]"}},
		{"POST", "/v1/pulls", newPull(`,"watchers":"ana"`), []string{"watchers"}},
		{"POST", "/v1/pulls", strings.Replace(newPull(""), `"T"`, `"`+strings.Repeat("t", 256)+`"`, 1), []string{"title"}},
		{"POST", "/v1/pulls/" + p.ID + "/merge", `{"sha":"abc"}`, []string{"sha"}},
		{"POST", "/v1/pulls/" + p.ID + "/merge", `{"head":"abc"}`, []string{"head"}},
		{"POST", "/v1/pulls/" + p.ID + "/watchers", ``, []string{"watchers"}},
		{"POST", "/v1/pulls/" + p.ID + "/watchers", `{"watchers":[""]}`, []string{"watchers[0]"}},
		{"POST", "/v1/pulls/" + p.ID + "/close", `{"reason":"` + strings.Repeat("x", 1001) + `"}`, []string{"reason"}},

		{"POST", status, `{}`, []string{"context", "state"}},
		{"POST", status, `{"context":"ci","state":"green"}`, []string{"state"}},
		{"POST", status, `{"context":"a\nb","state":"success"}`, []string{"context"}},
		{"POST", status, `{"context":"ci","state":"success","targetUrl":"javascript:alert(1)"}`, []string{"targetUrl"}},
		{"POST", "/v1/repos/shop%2Fapp/statuses/main", `{"context":"ci","state":"success"}`, []string{"sha"}},

		{"GET", "/v1/operations?limit=0", "", []string{"limit"}},
		{"GET", "/v1/operations?limit=501", "", []string{"limit"}},
		{"GET", "/v1/operations?limit=many", "", []string{"limit"}},
		{"GET", "/v1/operations?cursor=!", "", []string{"cursor"}},
		{"GET", "/v1/operations?cursor=" + httpapi.TimeCursor("p", p.CreatedAt, p.ID), "", []string{"cursor"}},
		{"GET", "/v1/operations?cursor=" + httpapi.TimeCursor("o", p.CreatedAt, "x"), "", []string{"cursor"}},
		{"GET", "/v1/operations?status=mergd", "", []string{"status"}},
		{"GET", "/v1/operations?stat=merged", "", []string{"stat"}},
		{"GET", "/v1/operations?q=%00", "", []string{"q"}},
		{"GET", "/v1/operations?q=%ff", "", []string{"q"}},
		{"GET", "/v1/pulls?status=done", "", []string{"status"}},
		{"GET", "/v1/pulls?cursor=AAAA", "", []string{"cursor"}},
		{"GET", "/v1/repos?cursor=AAAA", "", []string{"cursor"}},
		{"GET", "/v1/search", "", []string{"q"}},
		{"GET", "/v1/search?q=" + strings.Repeat("x", 251), "", []string{"q"}},
	} {
		a := f.do(c.method, c.path, c.body)
		a.refused(t, http.StatusUnprocessableEntity, "invalid", c.fields...)
		if t.Failed() {
			t.Fatalf("by %s %s %s", c.method, c.path, c.body)
		}
		for _, e := range a.error.Errors {
			if e.Message == "" {
				t.Errorf("%s %s says nothing about %s", c.method, c.path, e.Location)
			}
		}
	}
	if after := f.do("GET", "/v1/pulls", "").body + f.do("GET", "/v1/repos", "").body; after != before {
		t.Errorf("something was written:\n%s\n%s", before, after)
	}
}

func TestUnknownThingsAreNotFound(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.repo("a", "x")
	for _, c := range []string{
		"GET /v1/operations/" + noID, "GET /v1/operations/7", "GET /v1/operations/" + noID + "/history", "GET /v1/operations/" + noID + "/watch",
		"GET /v1/operations/x/watch", "POST /v1/operations/" + noID + "/retry", "POST /v1/operations/x/close",
		"GET /v1/pulls/" + noID, "GET /v1/pulls/x", "POST /v1/pulls/" + noID + "/merge", "POST /v1/pulls/x/merge",
		"POST /v1/pulls/" + noID + "/close", "POST /v1/pulls/x/close", "GET /v1/repos/nowhere", "GET /v1/repos/a%2Fb%00",
		"GET /v1/nothing", "GET /nothing", "GET /v1/", "GET /v1/operations/", "GET /v1/operations/{" + noID + "}",
	} {
		method, path, _ := strings.Cut(c, " ")
		f.do(method, path, "").refused(t, http.StatusNotFound, "not-found")
	}
	f.do("POST", "/v1/pulls/"+noID+"/watchers", `{"watchers":["a"]}`).refused(t, http.StatusNotFound, "not-found")
	f.do("POST", "/v1/repos/a/statuses/"+noSHA, `{"context":"c","state":"success"}`).refused(t, http.StatusNotFound, "not-found")
	f.do("POST", "/v1/repos/nowhere/statuses/"+noSHA, `{"context":"c","state":"success"}`).refused(t, http.StatusNotFound, "not-found")
	wrong := f.do("DELETE", "/v1/pulls", "")
	wrong.refused(t, http.StatusMethodNotAllowed, "method-not-allowed")
	if wrong.header.Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("Allow: %s", wrong.header.Get("Allow"))
	}
}

func TestConflictsSayWhatStandsInTheWay(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.repo("a", "x", "y", "z", "same")
	f.git("a", "", "update-ref", "refs/heads/same", "main")
	f.do("POST", "/v1/repos", `{"name":"a"}`).refused(t, http.StatusConflict, "exists")
	f.do("POST", "/v1/repos", `{"name":"A"}`).refused(t, http.StatusConflict, "exists")
	f.do("POST", "/v1/pulls", `{"repo":"a","source":"same","target":"main","title":"T"}`).refused(t, http.StatusConflict, "nothing-to-merge")

	p := f.pull("a", "x")
	f.do("POST", "/v1/pulls/"+p.ID+"/merge", `{"sha":"`+noSHA+`"}`).refused(t, http.StatusConflict, "head-moved")
	f.index.block()
	m, err := f.client.MergePull(t.Context(), p.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	f.until(m.OperationID, inState(pull.Indexing))
	again := f.do("POST", "/v1/pulls/"+p.ID+"/merge", "")
	again.refused(t, http.StatusConflict, "merge-in-progress")
	if again.error.OperationID != m.OperationID {
		t.Errorf("in the way: %s", again.error.OperationID)
	}
	// The table has no close after the merge, no retry while running, no fail of a running step.
	for _, action := range []string{"retry", "resume", "fail", "close"} {
		f.do("POST", "/v1/operations/"+m.OperationID+"/"+action, `{"reason":"r"}`).refused(t, http.StatusConflict, "not-allowed-now")
	}
	f.index.release()
	f.until(m.OperationID, inState(pull.Merged))
	f.do("POST", "/v1/pulls/"+p.ID+"/merge", "").refused(t, http.StatusConflict, "already-merged")
	f.do("POST", "/v1/pulls/"+p.ID+"/close", "").refused(t, http.StatusConflict, "already-merged")

	q := f.pull("a", "y")
	if closed := f.do("POST", "/v1/pulls/"+q.ID+"/close", `{"reason":"not needed"}`); closed.status != 200 || !strings.Contains(closed.body, `"status":"closed"`) {
		t.Errorf("close: %d %s", closed.status, closed.body)
	}
	f.do("POST", "/v1/pulls/"+q.ID+"/merge", "").refused(t, http.StatusConflict, "pull-closed")
}

// A merge that fails before git merged can be closed, and says so.
func TestActionsOfAFailedOperation(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.repo("a", "x")
	p := f.pull("a", "x")
	f.git("a", "commit refs/heads/main\ncommitter t <t@t> 1700000001 +0000\ndata 1\ny\nfrom refs/heads/main^0\nM 100644 inline x.txt\ndata 4\nelse\n", "fast-import", "--quiet")
	m, err := f.client.MergePull(t.Context(), p.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	failed := f.until(m.OperationID, httpapi.Operation.Failed)
	if strings.Join(failed.Actions, " ") != "retry close" || failed.MergeRequest.MergeCommit != "" {
		t.Errorf("failed operation %+v", failed)
	}
	no := f.do("POST", "/v1/operations/"+m.OperationID+"/resume", "")
	no.refused(t, http.StatusConflict, "not-allowed-now")
	if strings.Join(no.error.Allowed, " ") != "retry close" {
		t.Errorf("allowed %v", no.error.Allowed)
	}
	yes := f.do("POST", "/v1/operations/"+m.OperationID+"/close", `{"reason":"conflict"}`)
	if yes.status != http.StatusAccepted || yes.header.Get("Location") != "/v1/operations/"+m.OperationID || !strings.Contains(yes.body, `"state":"PULL_CLOSED"`) {
		t.Errorf("close: %d %s", yes.status, yes.body)
	}
	f.do("POST", "/v1/operations/"+m.OperationID+"/close", "").refused(t, http.StatusConflict, "not-allowed-now")
}

// What the parts behind the API can say, and what becomes of it.
func TestErrorsBecomeAnswers(t *testing.T) {
	t.Parallel()
	secret := errors.New("dial tcp 10.0.0.7: password=hunter2")
	forgeError := func(k forge.Kind) error { return &forge.Error{Op: "merge", Kind: k, Detail: "the detail"} }
	var broken broken
	f := start(t, func(o *httpapi.Options) {
		broken.Store = o.Store
		o.Store = &broken
	})
	for _, c := range []struct {
		err    error
		status int
		code   string
		again  bool
	}{
		{forgeError(forge.KindNotFound), 404, "not-found", false},
		{forgeError(forge.KindInvalid), 422, "invalid", false},
		{forgeError(forge.KindExists), 409, "exists", false},
		{forgeError(forge.KindHeadMoved), 409, "head-moved", false},
		{forgeError(forge.KindConflict), 409, "conflict", false},
		{forgeError(forge.KindBehind), 409, "behind", false},
		{forgeError(forge.KindClosed), 409, "pull-closed", false},
		{forgeError(forge.KindNothingToMerge), 409, "nothing-to-merge", false},
		{forgeError(forge.KindTransient), 503, "unavailable", true},
		{forgeError(forge.KindUnclear), 503, "outcome-unknown", false},
		{&pull.Refusal{Code: "retry-instead", OperationID: noID}, 409, "retry-instead", false},
		{&pull.Invalid{Field: "title", Detail: "is bad"}, 422, "invalid", false},
		{&saga.Refusal{Event: "close", State: "X", Err: saga.ErrIllegalTransition}, 409, "not-allowed-now", false},
		{&search.Error{Op: "search", Status: 503, Transient: true}, 503, "unavailable", true},
		{&search.Error{Op: "search", Status: 400}, 502, "search-failed", false},
		{store.ErrNotFound, 404, "not-found", false},
		{store.ErrExists, 409, "exists", false},
		{store.ErrBusy, 503, "unavailable", true},
		{store.ErrUnknown, 503, "outcome-unknown", false},
		{context.DeadlineExceeded, 503, "outcome-unknown", false},
		{store.ErrConflict, 500, "internal", false},
		{secret, 500, "internal", false},
	} {
		broken.err = errors.Join(c.err)
		a := f.do("GET", "/v1/repos", "", "X-Request-Id", "ask-7")
		if a.status != c.status || a.error.Code != c.code || (a.header.Get("Retry-After") == "2") != c.again {
			t.Errorf("%v: %d %s, Retry-After %q; want %d %s", c.err, a.status, a.error.Code, a.header.Get("Retry-After"), c.status, c.code)
		}
		if strings.Contains(a.body, "hunter2") || strings.Contains(a.body, "10.0.0.7") {
			t.Errorf("the inside is told: %s", a.body)
		}
		if c.status == 500 && a.error.RequestID != "ask-7" {
			t.Errorf("request id %q", a.error.RequestID)
		}
	}
	if l := f.log.String(); !strings.Contains(l, "hunter2") || !strings.Contains(l, `"request":"ask-7"`) {
		t.Errorf("the log misses the cause or the request: %s", l)
	}
	broken.panics = true
	a := f.do("GET", "/v1/repos", "", "X-Request-Id", "bad id\t")
	a.refused(t, http.StatusInternalServerError, "internal")
	if id := a.error.RequestID; id == "" || id == "bad id" || id != a.header.Get("X-Request-Id") || strings.Contains(a.body, "goroutine") {
		t.Errorf("panic: %s", a.body)
	}
	if !strings.Contains(f.log.String(), "refusal_test.go") {
		t.Error("the log has no stack")
	}
}

// broken answers an error to a list of repositories.
type broken struct {
	httpapi.Store
	err    error
	panics bool
	ping   error
}

func (b *broken) Repos(context.Context, store.RepoFilter) ([]store.Repo, error) {
	if b.panics {
		panic("out of cheese")
	}
	return nil, b.err
}

func (b *broken) Ping(context.Context) error { return b.ping }

func TestHealth(t *testing.T) {
	t.Parallel()
	var store broken
	var stalled stalled
	f := start(t, func(o *httpapi.Options) {
		store.Store, stalled.Engine = o.Store, o.Engine
		o.Store, o.Engine = &store, &stalled
	})
	if err := f.client.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := f.do("GET", "/metrics", ""); a.status != 200 || a.body != "up 1\n" {
		t.Errorf("metrics: %d %s", a.status, a.body)
	}
	store.ping = errors.New("password=hunter2")
	a := f.do("GET", "/readyz", "")
	a.refused(t, http.StatusServiceUnavailable, "not-ready")
	if strings.Contains(a.body, "hunter2") || !strings.Contains(a.error.Detail, "database") {
		t.Errorf("readiness says %s", a.body)
	}
	store.ping, stalled.err = nil, errors.New("stuck")
	if a := f.do("GET", "/readyz", ""); a.status != 503 || !strings.Contains(a.error.Detail, "worker loop") {
		t.Errorf("readiness says %d %s", a.status, a.body)
	}
	if a := f.do("GET", "/livez", ""); a.status != 200 {
		t.Errorf("liveness says %d", a.status)
	}
}

type stalled struct {
	httpapi.Engine
	err error
}

func (s *stalled) Healthy() error { return s.err }

var _ httpapi.Engine = (*engine.Engine)(nil)
