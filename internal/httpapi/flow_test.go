package httpapi_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/search"
)

// The whole story through the client: a merge, a failed index, one retry.
func TestPullThroughTheClient(t *testing.T) {
	t.Parallel()
	f := start(t)
	ctx, c := t.Context(), f.client
	repo := f.repo("shop/app", "warmer")
	if repo.DefaultBranch != "main" || repo.MergeStyle != "merge" || repo.CloneURL != f.url+"/git/shop/app.git" || repo.CreatedAt.IsZero() {
		t.Errorf("repository %+v", repo)
	}
	if got, err := c.Repo(ctx, "shop/app"); err != nil || got.Name != "shop/app" {
		t.Errorf("repository by its encoded name: %+v, %v", got, err)
	}
	p := f.pull("shop/app", "warmer")
	head := f.git("shop/app", "", "rev-parse", "warmer")
	if p.Status != "open" || p.IID != 1 || p.HeadSHA != head || p.OperationID != "" {
		t.Errorf("pull request %+v", p)
	}
	if _, err := c.SetStatus(ctx, "shop/app", head, httpapi.NewStatus{Context: "unit", State: "success", TargetURL: "https://ci.example/1"}); err != nil {
		t.Fatal(err)
	}
	if p, err := c.AddWatchers(ctx, p.ID, "ana", "bo"); err != nil || strings.Join(p.Watchers, " ") != "ana bo" || len(p.Checks) != 1 || p.Checks[0].State != "success" {
		t.Errorf("watchers and checks: %+v, %v", p, err)
	}

	f.index.set(&search.Error{Op: "index", Status: 503, Detail: "closed for lunch", Transient: true})
	began, err := c.MergePull(ctx, p.ID, head)
	if err != nil || began.State != "VALIDATING" || began.Status != "merging" {
		t.Fatalf("merge: %+v, %v", began, err)
	}
	failed := f.until(began.OperationID, httpapi.Operation.Failed)
	if failed.State != "MERGE_FAILED" || failed.Code != 20901 || failed.Phase != "ended" || failed.Status != "merge-failed" ||
		failed.Failure == nil || failed.Failure.Step != "INDEXING" || failed.Failure.Kind != "transient" || failed.Failure.Hint == "" ||
		!strings.Contains(failed.Failure.Error, "closed for lunch") {
		t.Errorf("failed operation %+v, failure %+v", failed, failed.Failure)
	}
	mr := failed.MergeRequest
	if mr == nil || mr.IID != 1 || mr.Branch != "warmer" || mr.HeadSHA != head || mr.MergeCommit != f.git("shop/app", "", "rev-parse", "main") {
		t.Errorf("merge request %+v", mr)
	}
	if failed.Links.Self != f.url+"/v1/operations/"+failed.ID || failed.Links.Page != f.url+"/operations/"+failed.ID {
		t.Errorf("links %+v", failed.Links)
	}
	if _, err := c.MergePull(ctx, p.ID, ""); refusal(t, err).Code != pull.CodeRetryInstead || refusal(t, err).OperationID != failed.ID {
		t.Errorf("merge of a merged one: %v", err)
	}
	if _, err := c.Close(ctx, failed.ID, "no"); refusal(t, err).Code != pull.CodeRetryInstead {
		t.Errorf("close of a merged one: %v", err)
	}

	f.index.block()
	f.index.set(nil)
	if a, err := c.Retry(ctx, failed.ID, "index is back"); err != nil || a.State != "INDEXING" {
		t.Fatalf("retry: %+v, %v", a, err)
	}
	if a, err := c.Retry(ctx, failed.ID, "again"); err != nil || a.State != "INDEXING" {
		t.Errorf("a repeat while its effect is under way: %+v, %v", a, err)
	}
	running, err := c.Operation(ctx, failed.ID)
	x := running.Explain
	if err != nil || x.Summary == "" || x.WaitingFor != "index" || x.Who == "" || x.Since.IsZero() || !x.Deadline.After(x.Since) || x.OnDeadline != "MERGE_FAILED" ||
		x.Attempt != "1 of 1" || x.Since.Location() != time.UTC || running.Failure == nil || running.Failed() || running.Final() {
		t.Errorf("running operation %+v, %v", running, err)
	}
	f.index.release()
	done := f.until(failed.ID, httpapi.Operation.Final)
	if done.State != "MERGED" || done.Failure != nil || len(done.Actions) != 0 || done.Actions == nil {
		t.Errorf("merged operation %+v", done)
	}
	if n := f.git("shop/app", "", "rev-list", "--count", "--merges", "main"); n != "1" {
		t.Errorf("%s merges", n)
	}
	if p, err := c.Pull(ctx, p.ID); err != nil || p.Status != "merged" || p.MergeCommit != mr.MergeCommit || p.OperationID != done.ID {
		t.Errorf("pull request in the end %+v, %v", p, err)
	}

	var path []string
	for e, err := range c.History(ctx, done.ID) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == "transition" {
			path = append(path, e.Event+">"+e.To)
		}
		if e.Event == "retry" && (e.Actor != "local" || e.Detail != "index is back") {
			t.Errorf("the retry's entry %+v", e)
		}
	}
	want := "created>VALIDATING ok>MERGING ok>NOTIFYING ok>INDEXING fail>MERGE_FAILED retry>INDEXING ok>MERGED"
	if got := strings.Join(path, " "); got != want {
		t.Errorf("history\n%s\nwant\n%s", got, want)
	}
	if _, err := c.Retry(ctx, done.ID, ""); refusal(t, err).Code != "not-allowed-now" {
		t.Errorf("retry of a final one: %v", err)
	}
}

// refusal is the server's error, or the end of the test.
func refusal(t *testing.T, err error) *httpapi.Error {
	t.Helper()
	e, ok := errors.AsType[*httpapi.Error](err)
	if !ok {
		t.Fatalf("no refusal: %v", err)
	}
	return e
}

func TestListsAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	f := start(t)
	ctx, c := t.Context(), f.client
	f.repo("a", "x", "y", "z")
	f.repo("b/c", "x")
	var ids []string
	for _, in := range [][2]string{{"a", "x"}, {"a", "y"}, {"b/c", "x"}} {
		m, err := c.MergePull(ctx, f.pull(in[0], in[1]).ID, "")
		if err != nil {
			t.Fatal(err)
		}
		f.until(m.OperationID, inState(pull.Merged))
		ids = append(ids, m.OperationID)
	}
	newest := []string{ids[2], ids[1], ids[0]}
	for _, q := range []struct {
		query httpapi.OperationQuery
		want  []string
	}{
		{httpapi.OperationQuery{}, newest},
		{httpapi.OperationQuery{Limit: 1}, newest},
		{httpapi.OperationQuery{Flow: "pull", Status: "merged", Limit: 2}, newest},
		{httpapi.OperationQuery{State: "MERGED", Status: "merged"}, newest},
		{httpapi.OperationQuery{State: "MERGED", Status: "merging"}, nil},
		{httpapi.OperationQuery{State: "INDEXING"}, nil},
		{httpapi.OperationQuery{Status: "merging"}, nil},
		{httpapi.OperationQuery{Flow: "change"}, nil},
		{httpapi.OperationQuery{Project: "a"}, newest[1:]},
		{httpapi.OperationQuery{Query: "MERGE Y"}, ids[1:2]},
		{httpapi.OperationQuery{Subject: "s"}, nil},
		{httpapi.OperationQuery{Target: "t"}, nil},
	} {
		var got []string
		for o, err := range c.Operations(ctx, q.query) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, o.ID)
		}
		if strings.Join(got, " ") != strings.Join(q.want, " ") {
			t.Errorf("%+v: %v, want %v", q.query, got, q.want)
		}
	}

	f.pull("a", "z")
	for q, want := range map[httpapi.PullQuery]string{
		{}: "z x y x", {Limit: 1}: "z x y x", {Repo: "a"}: "z y x", {Status: "open"}: "z", {Status: "merged", Limit: 2}: "x y x", {Query: "merge y"}: "y",
	} {
		var got []string
		for p, err := range c.Pulls(ctx, q) {
			if err != nil {
				t.Fatal(err)
			}
			if p.HeadSHA == "" || p.Watchers == nil || p.Checks == nil {
				t.Errorf("incomplete in a list: %+v", p)
			}
			got = append(got, p.Source)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%+v: %v, want %s", q, got, want)
		}
	}
	for q, want := range map[httpapi.RepoQuery]string{{}: "a b/c", {Limit: 1}: "a b/c", {Query: "B/"}: "b/c", {Query: "nothing"}: ""} {
		var got []string
		for r, err := range c.Repos(ctx, q) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%+v: %v, want %s", q, got, want)
		}
	}
	// A list's iterator can be used again, and stops when its reader does.
	all := c.Operations(ctx, httpapi.OperationQuery{Limit: 1})
	for range 2 {
		for range all {
			break
		}
	}
	// An entry of the history at a time.
	var paged []string
	next := ""
	for {
		a := f.do("GET", "/v1/operations/"+ids[0]+"/history?limit=1&cursor="+next, "")
		var l httpapi.List[httpapi.HistoryEntry]
		decode(t, a.body, &l)
		for _, e := range l.Items {
			paged = append(paged, e.To)
		}
		if next = l.Next; next == "" {
			break
		}
	}
	if got := strings.Join(paged, " "); got != "VALIDATING MERGING NOTIFYING INDEXING MERGED" {
		t.Errorf("history in pages: %s", got)
	}
}

func TestEmptyListsAreNoNull(t *testing.T) {
	t.Parallel()
	f := start(t)
	for _, path := range []string{"/v1/operations", "/v1/pulls", "/v1/repos", "/v1/search?q=x", "/v1/operations?status=merged&state=MERGING"} {
		if a := f.do("GET", path, ""); a.status != 200 || strings.TrimSpace(a.body) != `{"items":[]}` {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := f.do("GET", "/v1/stats", ""); strings.Contains(a.body, "null") || strings.Contains(a.body, "$schema") {
		t.Errorf("stats: %s", a.body)
	}
}

func TestETag(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.repo("a", "x")
	m, err := f.client.MergePull(t.Context(), f.pull("a", "x").ID, "")
	if err != nil {
		t.Fatal(err)
	}
	f.until(m.OperationID, inState(pull.Merged))
	path := "/v1/operations/" + strings.ToUpper(m.OperationID) // an id has no case
	first := f.do("GET", path, "")
	tag := first.header.Get("ETag")
	if first.status != 200 || len(tag) < 10 || tag[0] != '"' {
		t.Fatalf("%d, ETag %s", first.status, tag)
	}
	if again := f.do("GET", path, "", "If-None-Match", `"other", W/`+tag); again.status != 304 || again.body != "" || again.header.Get("ETag") != tag {
		t.Errorf("unchanged: %d %q", again.status, again.body)
	}
	if other := f.do("GET", path, "", "If-None-Match", `"other"`); other.status != 200 {
		t.Errorf("changed: %d", other.status)
	}
}

func TestSearchAndStats(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.index.hits = []search.Hit{{Repo: "a", Commit: "c1", Path: "p", Line: 3, Text: "find me"}, {Repo: "b", Text: "find me too"}}
	hits, err := f.client.Search(t.Context(), "a", "find")
	if err != nil || len(hits) != 1 || hits[0] != (httpapi.Hit{Repo: "a", Commit: "c1", Path: "p", Line: 3, Text: "find me"}) {
		t.Errorf("hits %+v, %v", hits, err)
	}
	f.index.set(errors.New("dial tcp 10.0.0.7: refused"))
	_, err = f.client.Search(t.Context(), "", "find")
	if e := refusal(t, err); e.Status != 503 || e.Code != "unavailable" || e.RetryAfter() != 2*time.Second || strings.Contains(e.Detail, "10.0.0.7") {
		t.Errorf("unreachable index: %+v", e)
	}
	f.index.set(nil)

	f.repo("a", "x", "y")
	f.index.block()
	stuck, _ := f.client.MergePull(t.Context(), f.pull("a", "x").ID, "")
	f.until(stuck.OperationID, inState(pull.Indexing))
	s, err := f.client.Stats(t.Context())
	if err != nil || len(s.Flows) != 1 || s.Flows[0] != (httpapi.FlowCount{Flow: "pull", Open: 1, Count: 1}) ||
		len(s.Phases) != 1 || s.Phases[0] != (httpapi.PhaseCount{Flow: "pull", Phase: "index", Code: 204, Count: 1}) ||
		len(s.States) != 1 || s.States[0] != (httpapi.StateCount{Flow: "pull", State: "INDEXING", Code: 20401, Count: 1}) ||
		len(s.Statuses) != 1 || s.Statuses[0] != (httpapi.StatusCount{Flow: "pull", Status: "merging", Count: 1}) || s.Queue.Parked != 0 {
		t.Errorf("stats %+v, %v", s, err)
	}
}
