package webui_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/webui"
)

// sagas is a store of rows, newest first.
type sagas struct {
	httpapi.Store
	rows  []saga.Row
	asked store.SagaFilter
	err   error
}

func (s *sagas) Saga(_ context.Context, id string) (saga.Row, error) {
	for _, r := range s.rows {
		if r.ID == id {
			return r, s.err
		}
	}
	return saga.Row{}, store.ErrNotFound
}

func (s *sagas) Sagas(_ context.Context, f store.SagaFilter) ([]saga.Row, error) {
	s.asked = f
	rows := s.rows
	for f.Before != nil && len(rows) > 0 && !rows[0].CreatedAt.Before(f.Before.At) {
		rows = rows[1:]
	}
	return rows[:min(len(rows), f.Limit)], s.err
}

type engine struct{ httpapi.Engine }

func (engine) Settings() saga.Settings { return saga.Settings{} }

func page(t *testing.T, s *sagas, path string) (int, http.Header, string) {
	t.Helper()
	ops := httpapi.Options{Store: s, Engine: engine{}, Flows: []*saga.Flow{pull.Table}}.Operations()
	w := httptest.NewRecorder()
	webui.New(ops, nil).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
	return w.Code, w.Header(), w.Body.String()
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func row(n int, state saga.State, title string) saga.Row {
	at := noon.Add(-time.Duration(n) * time.Minute)
	return saga.Row{
		ID: fmt.Sprintf("01890000-0000-7000-8000-%012d", n), Flow: "pull", FlowVersion: 1, State: state, Version: 1, CreatedAt: at, UpdatedAt: at, WaitingSince: at,
		About: saga.About{Project: "shop/app", Title: title},
		Data:  saga.Patch(pull.Data{IID: 7, Source: "warmer", HeadSHA: strings.Repeat("a", 40), MergeCommit: strings.Repeat("b", 40)}),
	}
}

func TestListShowsEachOperation(t *testing.T) {
	t.Parallel()
	running := row(1, pull.Indexing, "In the works")
	running.Command = &saga.CommandRow{Attempt: 2, DeadlineAt: noon.Add(time.Hour)}
	failed := row(2, pull.MergeFailed, `<script>alert("x")</script>`)
	failed.Failure = &saga.Failure{Step: pull.Indexing, Kind: saga.Transient, Error: "closed & gone", Hint: "retry it"}
	s := &sagas{rows: []saga.Row{running, failed, row(3, pull.Merged, "Done")}}
	code, h, body := page(t, s, "/")
	if code != 200 || h.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("%d %v", code, h)
	}
	at := 0
	for _, want := range []string{
		"In the works", "going", "Making bbbbbbbbbb searchable", "INDEXING", `href="/v1/operations/` + running.ID + `"`,
		"&lt;script&gt;", "failed", "INDEXING failed: closed &amp; gone", "retry it",
		"Done", "final", "2026-01-02 11:57:00 UTC",
	} {
		i := strings.Index(body[at:], want)
		if i < 0 {
			t.Fatalf("%q is missing after %d in\n%s", want, at, body)
		}
		at += i
	}
	if strings.Contains(body, "<script") || strings.Contains(body, "Older") {
		t.Error("a script, or a next page of nothing")
	}
}

// The policy allows exactly the style sheet that the page holds.
func TestPolicyMatchesTheStyle(t *testing.T) {
	t.Parallel()
	_, h, body := page(t, &sagas{}, "/")
	_, style, _ := strings.Cut(body, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	policy := h.Get("Content-Security-Policy")
	if want := "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, "style-src "+want+";") || !strings.HasPrefix(policy, "default-src 'none';") {
		t.Errorf("policy %s, the style is %s", policy, want)
	}
	if strings.Contains(body, "style=") || strings.Contains(policy, "unsafe") {
		t.Error("a style that the policy blocks, or a policy that blocks nothing")
	}
	if !strings.Contains(style, "prefers-color-scheme") || !strings.Contains(body, `name="viewport"`) || !strings.Contains(body, "No operations yet.") {
		t.Error("not made for phones, the dark, or the first day")
	}
}

func TestListIsFilteredAndPaged(t *testing.T) {
	t.Parallel()
	s := &sagas{}
	for n := range 51 {
		s.rows = append(s.rows, row(n, pull.Merged, fmt.Sprintf("Number %d.", n)))
	}
	_, _, body := page(t, s, "/?flow=pull&status=merged&q=a%26b")
	if s.asked.Flow != "pull" || s.asked.Query != "a&b" || len(s.asked.States) != 1 || s.asked.States[0] != pull.Merged {
		t.Errorf("asked for %+v", s.asked)
	}
	if strings.Contains(body, "Number 50.") || !strings.Contains(body, "Number 49.") || !strings.Contains(body, `<option selected>merged</option>`) || !strings.Contains(body, `value="a&amp;b"`) {
		t.Errorf("the first page:\n%s", body)
	}
	_, next, _ := strings.Cut(body, `href="/?cursor=`)
	next, _, _ = strings.Cut(next, `"`)
	_, _, body = page(t, s, "/?cursor="+strings.ReplaceAll(next, "&amp;", "&"))
	if s.asked.Query != "a&b" || s.asked.Before == nil || !strings.Contains(body, "Number 50.") || strings.Contains(body, "Number 49.") || strings.Contains(body, "Older") || !strings.Contains(body, "Newest") {
		t.Errorf("the second page, asked for %+v:\n%s", s.asked, body)
	}
}

func TestOneOperation(t *testing.T) {
	t.Parallel()
	failed := row(1, pull.MergeFailed, "A warmer greeting")
	failed.Failure = &saga.Failure{Step: pull.Indexing, Kind: saga.Transient, Error: "closed", Hint: "retry it"}
	code, _, body := page(t, &sagas{rows: []saga.Row{failed}}, "/operations/"+failed.ID)
	for _, want := range []string{"<title>A warmer greeting", "!7 from <code>warmer</code>", "merged as <code>bbbbbbbbbb</code>", "(transient): closed", "retry it", "Possible now</dt><dd><code>retry</code></dd>"} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d, %q is missing in\n%s", code, want, body)
		}
	}
	unmerged := row(3, pull.MergeFailed, "Conflict")
	unmerged.Data = saga.Patch(pull.Data{IID: 8, Source: "colder"})
	if _, _, body = page(t, &sagas{rows: []saga.Row{unmerged}}, "/operations/"+unmerged.ID); !strings.Contains(body, "<code>retry</code>, <code>close</code>") {
		t.Errorf("what git has not merged can be closed:\n%s", body)
	}
	running := row(2, pull.Indexing, "Going on")
	running.Command = &saga.CommandRow{Attempt: 2, Evidence: "503", DeadlineAt: noon, AvailableAt: noon}
	_, _, body = page(t, &sagas{rows: []saga.Row{running}}, "/operations/"+running.ID)
	for _, want := range []string{"search index", "2026-01-02 12:00:00 UTC, then <code>MERGE_FAILED</code>", "503", "2 of 10"} {
		if !strings.Contains(body, want) {
			t.Errorf("%q is missing in\n%s", want, body)
		}
	}
}

func TestErrorsAreSentences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path string
		err  error
		code int
		want string
	}{
		{"/operations/7", nil, 404, "there is no operation 7"},
		{"/operations/01890000-0000-7000-8000-000000000009", nil, 404, "there is no operation 01890000-0000-7000-8000-000000000009"},
		{"/?status=mergd", nil, 422, "status is none of merging, merged"},
		{"/?cursor=!", nil, 422, "cursor is none that this list gave out"},
		{"/", errors.New("password=hunter2"), 500, "The operations can&#39;t be read now"},
	} {
		code, h, body := page(t, &sagas{err: c.err}, c.path)
		if code != c.code || !strings.Contains(body, c.want) || strings.Contains(body, "hunter2") || h.Get("Content-Security-Policy") == "" {
			t.Errorf("%s: %d\n%s", c.path, code, body)
		}
	}
}
