package webhook_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/approval/webhook"
	"github.com/mergeflow/mergeflow/internal/outbound"
)

// approver is a system outside that answers as it is told.
type approver struct {
	mu     sync.Mutex
	status int
	answer string
	seen   []string // method and path
	last   approval.Request
	bad    error
}

func (a *approver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, r.Method+" "+r.URL.Path+" "+r.Header.Get("Idempotency-Key"))
	if err := outbound.VerifyBearer(r.Header, "s3cret"); err != nil {
		a.bad = err
	}
	if err := outbound.VerifySignature(r.Header, "s3cret", body); err != nil {
		a.bad = err
	}
	if r.Method == http.MethodPost {
		a.bad = errors.Join(a.bad, json.Unmarshal(body, &a.last))
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.answer)
}

func rig(t *testing.T) (*approver, *webhook.Approver) {
	t.Helper()
	a := &approver{status: 200}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	w, err := webhook.New(webhook.Options{URL: srv.URL + "/approvals/", Secret: func() string { return "s3cret" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return a, w
}

func TestSendIsSignedAndKeyedByRound(t *testing.T) {
	t.Parallel()
	a, w := rig(t)
	r := approval.Request{ApprovalID: "a-1", OperationID: "o", Round: 1, Title: "t", Files: []approval.File{{Path: "x", Action: "upsert", Content: "1"}}, Ext: map[string]any{"ticket": "OPS-1"}}
	if err := w.Send(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if a.bad != nil || len(a.seen) != 1 || a.seen[0] != "POST /approvals a-1" {
		t.Errorf("%v %v", a.seen, a.bad)
	}
	if a.last.ApprovalID != "a-1" || len(a.last.Files) != 1 || a.last.Files[0].Path != "x" || a.last.Ext["ticket"] != "OPS-1" {
		t.Errorf("%+v", a.last)
	}
}

func TestStatusesAreSorted(t *testing.T) {
	t.Parallel()
	a, w := rig(t)
	for status, transient := range map[int]bool{400: false, 403: false, 404: false, 408: true, 425: true, 429: true, 500: true, 503: true} {
		a.status = status
		err := w.Send(t.Context(), approval.Request{ApprovalID: "a"})
		var e *approval.Error
		if !errors.As(err, &e) || e.Status != status || e.Transient != transient {
			t.Errorf("%d: %v", status, err)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the secret stands in %q", err)
		}
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	a, w := rig(t)
	for _, c := range []struct {
		status   int
		answer   string
		ok       bool
		decision approval.Decision
		fails    bool
	}{
		{200, `{"decision":"approved","by":"ann"}`, true, approval.Approved, false},
		{200, `{"decision":"rejected","by":"ann","reason":"no"}`, true, approval.Rejected, false},
		{200, `{"decision":""}`, true, approval.None, false},
		{200, `{"decision":"maybe"}`, false, approval.None, true},
		{200, `<html>`, false, approval.None, true},
		{404, ``, false, approval.None, false},
		{405, ``, false, approval.None, false},
		{500, ``, false, approval.None, true},
	} {
		a.status, a.answer = c.status, c.answer
		got, ok, err := w.Look(t.Context(), "a/1")
		if ok != c.ok || got.Decision != c.decision || (err != nil) != c.fails {
			t.Errorf("%d %s: %+v %v %v", c.status, c.answer, got, ok, err)
		}
	}
}

func TestWithdraw(t *testing.T) {
	t.Parallel()
	a, w := rig(t)
	for status, fails := range map[int]bool{204: false, 404: false, 501: false, 500: true} {
		a.status = status
		if err := w.Withdraw(t.Context(), "a-1"); (err != nil) != fails {
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestAnUnusableURLNamesItsKey(t *testing.T) {
	t.Parallel()
	if _, err := webhook.New(webhook.Options{URL: "ftp://x"}); err == nil || !strings.HasPrefix(err.Error(), "approval.url") {
		t.Errorf("%v", err)
	}
}
