package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/outbound"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// onBoth runs a test on both databases, each with a server of its own that asks
// an approver outside and is told by a pipeline outside.
func onBoth(t *testing.T, extra string, test func(t *testing.T, w *world)) {
	t.Parallel()
	for name, database := range map[string]func(testing.TB) map[string]any{
		"sqlite":   func(testing.TB) map[string]any { return nil },
		"postgres": func(tb testing.TB) map[string]any { return map[string]any{"database": pg.Database(tb)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, database(t), extra))
		})
	}
}

// world is a server with one repository, and the systems around it.
type world struct {
	t      *testing.T
	s      *server
	api    *httpapi.Client
	config string

	mu    sync.Mutex
	asked []approval.Request
	onAsk func(approval.Request) // called before the approver answers
}

func newWorld(t *testing.T, flags map[string]any, extra string) *world {
	t.Helper()
	w := &world{t: t}
	approver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			rw.WriteHeader(http.StatusNotFound)
			return
		}
		var req approval.Request
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		w.mu.Lock()
		w.asked = append(w.asked, req)
		f := w.onAsk
		w.mu.Unlock()
		if f != nil {
			f(req)
		}
	}))
	t.Cleanup(approver.Close)
	dir := t.TempDir()
	w.config = filepath.Join(dir, "server.yaml")
	if !strings.Contains(extra, "deploy:") {
		extra += "\ndeploy: {kind: callback}"
	}
	text := fmt.Sprintf("approval: {kind: webhook, url: %q}\nengine: {poll: 100ms}\n%s\n", approver.URL, extra)
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.s = start(t, dir, flags)
	w.api = &httpapi.Client{BaseURL: w.s.app.URL()}
	if _, err := w.api.CreateRepo(t.Context(), httpapi.NewRepository{Name: "config"}); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"commit", "-q", "--allow-empty", "-m", "first"}, {"push", "-q", w.s.app.URL() + "/git/config.git", "main"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@e", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@e")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return w
}

func (w *world) submit(target, content, order string) string {
	w.t.Helper()
	a, err := w.api.Submit(w.t.Context(), httpapi.NewChange{Subject: "team", Target: target, Project: "config", Title: "Change " + target, Order: order,
		Files: []httpapi.ChangeFile{{Path: target + ".yaml", Action: "upsert", Content: content}}}, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return a.OperationID
}

func (w *world) await(op, state string) httpapi.Operation {
	w.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		o, err := w.api.Operation(w.t.Context(), op)
		if err == nil && o.State == state {
			return o
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			w.t.Fatalf("not %s: %+v %v", state, o, err)
		}
	}
}

// request is what the approver was last asked about an operation.
func (w *world) request(op string) approval.Request {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.asked) - 1; i >= 0; i-- {
		if w.asked[i].OperationID == op {
			return w.asked[i]
		}
	}
	w.t.Fatalf("nobody was asked about %s", op)
	return approval.Request{}
}

func (w *world) decide(id, op, approvalID, decision string, ext map[string]any) httpapi.Verdict {
	w.t.Helper()
	v, err := w.api.ApprovalCallback(context.Background(), httpapi.ApprovalCallback{RequestID: id, OperationID: op, ApprovalID: approvalID, Decision: decision, By: "ann", Ext: ext})
	if err != nil {
		w.t.Error(err)
	}
	return v
}

func (w *world) deployed(id, op, result string) httpapi.Verdict {
	w.t.Helper()
	v, err := w.api.DeployCallback(context.Background(), httpapi.DeployCallback{RequestID: id, OperationID: op, Result: result, Detail: "pipeline 7"})
	if err != nil {
		w.t.Error(err)
	}
	return v
}

func (w *world) want(v httpapi.Verdict, verdict string) {
	w.t.Helper()
	if v.Verdict != verdict {
		w.t.Errorf("verdict %s (%s), want %s", v.Verdict, v.Rule, verdict)
	}
}

func (w *world) states(op string) []string {
	w.t.Helper()
	var out []string
	for e, err := range w.api.History(w.t.Context(), op) {
		if err != nil {
			w.t.Fatal(err)
		}
		if e.Kind == "transition" {
			out = append(out, e.To)
		}
	}
	return out
}

func (w *world) verdicts(op string) map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for e, err := range w.api.Callbacks(w.t.Context(), op) {
		if err != nil {
			w.t.Fatal(err)
		}
		out[e.Verdict]++
	}
	return out
}

func TestApprovalThatComesBeforeSent(t *testing.T) {
	onBoth(t, "", func(t *testing.T, w *world) {
		w.mu.Lock()
		w.onAsk = func(r approval.Request) {
			if v := w.decide("early-bird", r.OperationID, r.ApprovalID, "approved", nil); v.Verdict != change.Applied {
				t.Errorf("an answer before our own write of sent: %+v", v)
			}
		}
		w.mu.Unlock()
		op := w.submit("a", "1", "")
		w.await(op, "HANDLE_MERGED")
		w.want(w.deployed("d1", op, "live"), change.Applied)
		w.await(op, "CALLED_BACK")
		for _, s := range w.states(op) {
			if s == "APPROVAL_SENT" {
				t.Errorf("the late result of sending moved it: %v", w.states(op))
			}
		}
	})
}

func TestTheSameCallbackFiftyTimes(t *testing.T) {
	onBoth(t, "", func(t *testing.T, w *world) {
		op := w.submit("a", "1", "")
		w.await(op, "APPROVAL_SENT")
		id := w.request(op).ApprovalID
		var mu sync.Mutex
		got := map[string]int{}
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				v := w.decide("one", op, id, "approved", nil)
				mu.Lock()
				defer mu.Unlock()
				got[v.Verdict]++
			})
		}
		wg.Wait()
		if got[change.Applied] != 1 || got[change.Duplicate] != 49 {
			t.Errorf("%v", got)
		}
		w.want(w.decide("one", op, id, "rejected", nil), change.Contradiction)
		w.await(op, "HANDLE_MERGED")
		if v := w.verdicts(op); v[change.Applied] != 1 || v[change.Duplicate] != 49 || v[change.Contradiction] != 1 {
			t.Errorf("the ledger has %v", v)
		}
	})
}

func TestCallbacksThatMoveNothing(t *testing.T) {
	onBoth(t, "", func(t *testing.T, w *world) {
		op := w.submit("a", "1", "")
		w.await(op, "APPROVAL_SENT")
		r := w.request(op)
		if r.Round != 1 || r.ApprovalID == "" || r.Ext["mrId"] != nil || len(r.Files) != 1 {
			t.Errorf("%+v", r)
		}
		w.want(w.decide("1", op, change.ApprovalID(op, 2), "approved", nil), change.Stale)
		w.want(w.decide("2", "01922d3c-7e1a-7cc3-98c4-dc0c0c07398f", "", "approved", nil), change.Unknown)
		w.want(w.decide("3", "no-id", "", "approved", nil), change.Unknown)
		w.want(w.decide("4", op, r.ApprovalID, "approved", map[string]any{"mrId": 7}), change.Contradiction)
		if s := w.states(op); s[len(s)-1] != "APPROVAL_SENT" {
			t.Fatalf("moved: %v", s)
		}
		// Rejected, asked for again: what still comes for the old one finds no owner.
		w.want(w.decide("5", op, r.ApprovalID, "rejected", nil), change.Applied)
		w.await(op, "APPROVAL_REJECTED")
		w.want(w.decide("6", op, r.ApprovalID, "approved", nil), change.Contradiction)
		again := w.submit("a", "1", "")
		w.want(w.decide("7", op, r.ApprovalID, "approved", nil), change.Stale)
		w.await(again, "APPROVAL_SENT")
		b, err := w.api.Binding(t.Context(), "team", "a")
		if err != nil || b.OperationID != again || len(b.Operations) != 2 || b.Status != "APPROVAL_SENT" {
			t.Errorf("%+v %v", b, err)
		}
	})
}

func TestOrderSwitchedWithApprovalsUnderWay(t *testing.T) {
	onBoth(t, "", func(t *testing.T, w *world) {
		first := w.submit("a", "1", "")
		w.await(first, "APPROVAL_SENT")
		text, err := os.ReadFile(w.config)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.config, append(text, "flow: {order: mr_first}\n"...), 0o600); err != nil {
			t.Fatal(err)
		}
		var second string
		for n := 0; ; n++ { // until the server has taken the change over
			second = w.submit(fmt.Sprintf("b%d", n), "1", "")
			o, err := w.api.Operation(t.Context(), second)
			if err != nil {
				t.Fatal(err)
			}
			if o.Order == string(change.MRFirst) {
				break
			}
			if n > 200 {
				t.Fatal("the order never changed")
			}
			time.Sleep(20 * time.Millisecond)
		}
		w.await(second, "APPROVAL_SENT")
		r := w.request(second)
		if r.Ext["mrId"] == nil {
			t.Errorf("asked with a merge request in existence, without its number: %+v", r.Ext)
		}
		w.want(w.decide("1", first, w.request(first).ApprovalID, "approved", nil), change.Applied)
		w.want(w.decide("2", second, r.ApprovalID, "approved", map[string]any{"mrId": r.Ext["mrId"]}), change.Applied)
		for i, op := range []string{first, second} {
			w.await(op, "HANDLE_MERGED")
			w.want(w.deployed(fmt.Sprint("d", i), op, "live"), change.Applied)
			w.await(op, "CALLED_BACK")
		}
	})
}

func TestDeployCallbacks(t *testing.T) {
	onBoth(t, "", func(t *testing.T, w *world) {
		// Before "merged" is ours: kept, and applied when it is.
		op := w.submit("a", "1", "")
		w.await(op, "APPROVAL_SENT")
		w.want(w.deployed("early", op, "live"), change.Early)
		w.want(w.deployed("early", op, "live"), change.Duplicate)
		w.want(w.decide("1", op, w.request(op).ApprovalID, "approved", nil), change.Applied)
		w.await(op, "CALLED_BACK")
		s := w.states(op)
		if n := len(s); n < 2 || s[n-2] != "HANDLE_MERGED" || s[n-1] != "CALLED_BACK" {
			t.Errorf("%v", s)
		}
		w.want(w.deployed("late", op, "failed"), change.Contradiction)
		if o := w.await(op, "CALLED_BACK"); o.Status != "VALIDATED" {
			t.Errorf("%+v", o)
		}

		// Failed, visibly; then live after all.
		op = w.submit("b", "1", "")
		w.await(op, "APPROVAL_SENT")
		w.want(w.decide("2", op, w.request(op).ApprovalID, "approved", nil), change.Applied)
		o := w.await(op, "HANDLE_MERGED")
		v, err := w.api.DeployCallback(t.Context(), httpapi.DeployCallback{RequestID: "f1", Project: "config", MRIID: o.MergeRequest.IID, Result: "failed", Detail: "no disk"})
		if err != nil || v.Verdict != change.Applied {
			t.Errorf("%+v %v", v, err)
		}
		if o = w.await(op, "DEPLOY_FAILED"); o.Failure == nil || o.Failure.Error != "no disk" {
			t.Errorf("%+v", o.Failure)
		}
		v, err = w.api.DeployCallback(t.Context(), httpapi.DeployCallback{RequestID: "l1", MergeCommit: o.MergeRequest.MergeCommit, Result: "live"})
		if err != nil || v.Verdict != change.Applied {
			t.Errorf("%+v %v", v, err)
		}
		w.await(op, "CALLED_BACK")
	})
}

// Twenty say "live" at once, each with an id of its own: one flips it.
// A change's merge request is merged and closed by its operation alone.
func TestAChangesMergeRequestIsItsOwn(t *testing.T) {
	onBoth(t, "", func(t *testing.T, w *world) {
		op := w.submit("a", "limit: 1\n", "mr_first")
		w.await(op, "APPROVAL_SENT")
		var mr httpapi.Pull
		for p, err := range w.api.Pulls(t.Context(), httpapi.PullQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			mr = p
		}
		_, merge := w.api.MergePull(t.Context(), mr.ID, "")
		_, closed := w.api.ClosePull(t.Context(), mr.ID, "no")
		for what, err := range map[string]error{"merge": merge, "close": closed} {
			e, ok := errors.AsType[*httpapi.Error](err)
			if !ok || e.Status != http.StatusConflict || e.Code != "merge-in-progress" || e.OperationID != op {
				t.Errorf("%s: %v", what, err)
			}
		}
		// Another pull request of its branch is no way around the approval; it can be closed.
		other, err := w.api.CreatePull(t.Context(), httpapi.NewPull{Repo: "config", Source: "mergeflow/" + op, Target: "main", Title: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.api.MergePull(t.Context(), other.ID, "")
		if e, ok := errors.AsType[*httpapi.Error](err); !ok || e.Code != "merge-in-progress" || e.OperationID != op {
			t.Errorf("another pull request: %v", err)
		}
		if _, err := w.api.ClosePull(t.Context(), other.ID, "no"); err != nil {
			t.Errorf("closing another pull request: %v", err)
		}
		if o := w.await(op, "APPROVAL_SENT"); len(w.states(op)) != 5 {
			t.Errorf("it moved: %+v", o)
		}
		w.decide("1", op, "", "rejected", nil)
		w.await(op, "APPROVAL_REJECTED")
	})
}

func TestLiveFlipsOnce(t *testing.T) {
	onBoth(t, "", func(t *testing.T, w *world) {
		op := w.submit("a", "1", "")
		w.await(op, "APPROVAL_SENT")
		w.want(w.decide("1", op, w.request(op).ApprovalID, "approved", nil), change.Applied)
		w.await(op, "HANDLE_MERGED")
		var mu sync.Mutex
		got := map[string]int{}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				v := w.deployed(fmt.Sprint("racer-", i), op, "live")
				mu.Lock()
				defer mu.Unlock()
				got[v.Verdict]++
			})
		}
		wg.Wait()
		if got[change.Applied] != 1 || got[change.Stale] != 19 {
			t.Errorf("%v", got)
		}
		resp, err := http.Get(w.s.app.URL() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if n := metric(string(text), `to="CALLED_BACK"`); n != "1" {
			t.Errorf("counted %s flips", n)
		}
	})
}

// metric is the value of the one line that has the label.
func metric(text, label string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, label) && !strings.HasPrefix(line, "#") {
			return strings.TrimSpace(line[strings.LastIndex(strings.TrimSpace(line), " "):])
		}
	}
	return "none"
}

// Two secrets are valid at once, by signature or as a bearer; nothing else is.
func TestCallbacksAreSigned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, "deploy: {kind: callback, secret: [new-secret, old-secret]}")
	body := []byte(`{"requestId":"1","operationId":"01922d3c-7e1a-7cc3-98c4-dc0c0c07398f","result":"live"}`)
	signed := func(secret string, at time.Time, over []byte) http.Header {
		h := http.Header{}
		if err := outbound.Sign(h, secret, "msg-1", at, over); err != nil {
			t.Fatal(err)
		}
		return h
	}
	bearer := func(secret string) http.Header { return http.Header{"Authorization": {"Bearer " + secret}} }
	for name, c := range map[string]struct {
		header http.Header
		want   int
	}{
		"new secret":   {signed("new-secret", time.Now(), body), 200},
		"old secret":   {signed("old-secret", time.Now(), body), 200},
		"bearer":       {bearer("old-secret"), 200},
		"nothing":      {http.Header{}, 401},
		"other secret": {signed("guess", time.Now(), body), 401},
		"other bearer": {bearer("guess"), 401},
		"other body":   {signed("new-secret", time.Now(), []byte(`{}`)), 401},
		"an old one":   {signed("new-secret", time.Now().Add(-time.Hour), body), 401},
		"a broken one": {http.Header{"Webhook-Id": {"1"}, "Webhook-Timestamp": {"1"}, "Webhook-Signature": {"v1,x"}, "Authorization": {"Bearer old-secret"}}, 401},
	} {
		req, err := http.NewRequest(http.MethodPost, w.s.app.URL()+"/v1/callbacks/deploy", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = c.header
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.want || bytes.Contains(text, []byte("secret ")) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
}
