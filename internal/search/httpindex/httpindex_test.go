package httpindex_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/search/httpindex"
	"github.com/mergeflow/mergeflow/internal/testkit/breakable"
	"github.com/mergeflow/mergeflow/internal/testkit/indexer"
	"github.com/mergeflow/mergeflow/internal/testkit/proxy"
)

const secret = "index secret"

var target = search.Target{Repo: "platform/config", Branch: "main", Commit: "c1", OperationID: "op"}

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

func driver(t *testing.T, url, secret string) *httpindex.Index {
	t.Helper()
	d, err := httpindex.New(httpindex.Options{URL: url, Secret: func() string { return secret }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func TestIndexAndSearch(t *testing.T) {
	t.Parallel()
	x := start(t, indexer.WithSecret(secret))
	d := driver(t, x.URL(), secret)
	for range 2 { // again is harmless
		if err := d.Index(t.Context(), target); err != nil {
			t.Fatal(err)
		}
	}
	want := []indexer.Call{{Target: target, Key: "op:c1"}, {Target: target, Key: "op:c1"}}
	if diff := cmp.Diff(want, x.Done()); diff != "" {
		t.Error(diff)
	}
	if got := x.Covered("platform/config", "main"); got != "c1" {
		t.Errorf("covered %q", got)
	}
	if covers, err := d.Covers(t.Context(), target); covers || err != nil {
		t.Errorf("covers: %v, %v", covers, err)
	}

	h := search.Hit{Repo: "b", Commit: "c", Path: "p", Line: 2, Text: "limit: 200 & \"more\""}
	h1, h2, h3 := h, h, h
	h1.Line, h2.Repo, h3.Path = 1, "a", "o"
	x.Put(h, h1, h2, h3)
	hits, err := d.Search(t.Context(), search.Query{Text: `200 & "more`})
	if diff := cmp.Diff([]search.Hit{h2, h3, h1, h}, hits); err != nil || diff != "" {
		t.Error(err, diff)
	}
	hits, err = d.Search(t.Context(), search.Query{Text: "limit", Repo: "b", Limit: 2})
	if diff := cmp.Diff([]search.Hit{h3, h1}, hits); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if hits, err = d.Search(t.Context(), search.Query{Text: "nothing"}); err != nil || len(hits) != 0 {
		t.Error(err, hits)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	x := start(t, indexer.WithSecret(secret))
	d := driver(t, x.URL(), secret)
	for mode, transient := range map[breakable.Mode]bool{
		breakable.Status(400): false, breakable.Status(404): false, breakable.Status(422): false,
		breakable.Status(408): true, breakable.Status(425): true, breakable.Status(429): true, breakable.Status(500): true, breakable.Status(503): true,
	} {
		if err := x.Set(mode); err != nil {
			t.Fatal(err)
		}
		_, searching := d.Search(t.Context(), search.Query{Text: "x"})
		for _, err := range []error{d.Index(t.Context(), target), searching} {
			e, ok := errors.AsType[*search.Error](err)
			if !ok || e.Transient != transient || fmt.Sprint(e.Status) != string(mode) || !strings.Contains(e.Detail, "as told") {
				t.Errorf("%s: %#v", mode, err)
			}
		}
	}
	if x.Covered(target.Repo, target.Branch) != "" {
		t.Error("a refused call was performed")
	}
	if err := x.Set(breakable.OK); err != nil {
		t.Fatal(err)
	}
	err := driver(t, x.URL(), "wrong").Index(t.Context(), target)
	if e, ok := errors.AsType[*search.Error](err); !ok || e.Status != 401 || e.Transient || strings.Contains(err.Error(), "wrong") {
		t.Errorf("wrong secret: %v", err)
	}
}

func TestLostAnswersLeaveItOpen(t *testing.T) {
	t.Parallel()
	x := start(t)
	p := proxy.New(t, strings.TrimPrefix(x.URL(), "http://"))
	d := driver(t, "http://"+p.Addr(), "")
	answered := func(err error) bool { _, ok := errors.AsType[*search.Error](err); return ok }

	p.Set(proxy.Reset) // failed, not applied
	if err := d.Index(t.Context(), target); err == nil || answered(err) || x.Calls() != 0 {
		t.Errorf("reset: %v after %d calls", err, x.Calls())
	}
	p.Set(proxy.CloseAfterRequest) // failed, but applied
	if err := d.Index(t.Context(), target); err == nil || answered(err) || x.Calls() != 1 || x.Covered(target.Repo, target.Branch) != "c1" {
		t.Errorf("lost answer: %v after %d calls", err, x.Calls())
	}
	p.Set(proxy.Pass)
	if err := d.Index(t.Context(), target); err != nil || x.Calls() != 2 {
		t.Errorf("again: %v after %d calls", err, x.Calls())
	}
}

func TestAHangingIndexEndsWithTheContext(t *testing.T) {
	t.Parallel()
	x := start(t)
	if err := x.Set(breakable.Hang); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- driver(t, x.URL(), "").Index(ctx, target) }()
	if err := x.AwaitCalls(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAnswersAreNotTrusted(t *testing.T) {
	t.Parallel()
	answer := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/base/search" || r.URL.Query().Get("tenant") != "7" {
			t.Errorf("asked for %s", r.URL)
		}
		fmt.Fprint(w, <-answer)
	}))
	t.Cleanup(s.Close)
	d := driver(t, s.URL+"/base?tenant=7", "")
	for _, bad := range []string{"", "<html>", `{"items":{}}`, strings.Repeat(" ", 9<<20)} {
		answer <- bad
		if hits, err := d.Search(t.Context(), search.Query{Text: "x"}); err == nil {
			t.Errorf("took %.20q: %v", bad, hits)
		}
	}
	answer <- `{"items":[{"repo":"other","text":"x"},{"repo":"r","line":1,"text":"\u001b[31m` + strings.Repeat("é", 9000) + `x"}]}`
	hits, err := d.Search(t.Context(), search.Query{Text: "x", Repo: "r"})
	if err != nil || len(hits) != 1 || len([]rune(hits[0].Text)) > 510 || strings.Contains(hits[0].Text, "\x1b") || !strings.HasSuffix(hits[0].Text, "éx") {
		t.Errorf("%v %v", hits, err)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "index.example.com", "http://user:hidden@host"} {
		if _, err := httpindex.New(httpindex.Options{URL: bad}); err == nil || !strings.Contains(err.Error(), "search.url") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
