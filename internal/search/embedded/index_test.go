package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/search/embedded"
)

func TestIndexIsIncremental(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{"a.go": "alpha\n", "b.go": "beta\n", "copy.go": "alpha\n"})
	r.commit("c2", "c1", map[string]string{"a.go": "gamma\n", "b.go": "-"})
	x := open(t, embedded.Options{Source: r})

	index(t, x, "app", "c1")
	if len(r.read) != 2 {
		t.Errorf("read %d contents, want the two that differ", len(r.read))
	}
	r.read = nil
	index(t, x, "app", "c2")
	if len(r.read) != 1 {
		t.Errorf("read %d contents, want the one that is new", len(r.read))
	}
	if diff := cmp.Diff([]string{"..c1", "c1..c2"}, r.diffs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"app@c2 copy.go:1 alpha"}, find(t, x, search.Query{Text: "alpha"})); diff != "" {
		t.Error(diff)
	}
	if got := find(t, x, search.Query{Text: "beta"}); got != nil {
		t.Errorf("a deleted file is found: %v", got)
	}
	if diff := cmp.Diff([]string{"app@c2 a.go:1 gamma"}, find(t, x, search.Query{Text: "gamma"})); diff != "" {
		t.Error(diff)
	}
}

func TestIndexNeverGoesBack(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{"a": "first"})
	r.commit("c2", "c1", map[string]string{"a": "second"})
	r.commit("side", "c1", map[string]string{"a": "sideways"})
	x := open(t, embedded.Options{Source: r})
	for _, c := range []string{"c2", "c1", "c2"} {
		index(t, x, "app", c)
	}
	if len(r.diffs) != 1 {
		t.Errorf("indexed %v, want c2 only", r.diffs)
	}
	if diff := cmp.Diff([]string{"app@c2 a:1 second"}, find(t, x, search.Query{Text: "second"})); diff != "" {
		t.Error(diff)
	}
	for commit, want := range map[string]bool{"c1": true, "c2": true, "side": false} {
		if got, err := x.Covers(t.Context(), target("app", commit)); err != nil || got != want {
			t.Errorf("covers %s: %v, %v", commit, got, err)
		}
	}
	if got, err := x.Covers(t.Context(), target("other", "c1")); err != nil || got {
		t.Errorf("covers a repository it never saw: %v, %v", got, err)
	}
	// A commit that is not in the covered one's history is taken as it is.
	index(t, x, "app", "side")
	if diff := cmp.Diff([]string{"app@side a:1 sideways"}, find(t, x, search.Query{Text: "sideways"})); diff != "" {
		t.Error(diff)
	}
}

func TestIndexStartsAgainWhenTheCoveredCommitIsGone(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{"a": "alpha", "old": "relic", "same": "stays"})
	r.commit("new", "", map[string]string{"a": "omega", "same": "stays"})
	x := open(t, embedded.Options{Source: r})
	index(t, x, "app", "c1")
	r.forget("c1")
	index(t, x, "app", "new")
	for text, want := range map[string][]string{
		"omega": {"app@new a:1 omega"},
		"stays": {"app@new same:1 stays"},
		"alpha": nil, "relic": nil,
	} {
		if diff := cmp.Diff(want, find(t, x, search.Query{Text: text})); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

func TestAHiccupDoesNotStartAgain(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{"a": "alpha"})
	r.commit("c2", "c1", map[string]string{"a": "omega"})
	x := open(t, embedded.Options{Source: r})
	index(t, x, "app", "c2")
	hiccup := errors.New("cannot fork")
	r.broken = func(call string) error {
		if call == "contains" {
			return hiccup
		}
		return nil
	}
	if err := x.Index(t.Context(), target("app", "c1")); !errors.Is(err, hiccup) {
		t.Fatalf("got %v, want the source's error", err)
	}
	r.broken = nil
	if diff := cmp.Diff([]string{"app@c2 a:1 omega"}, find(t, x, search.Query{Text: "omega"})); diff != "" {
		t.Error(diff)
	}
}

func TestAFailureLeavesTheOldState(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{"a": "alpha"})
	next := map[string]string{"a": "omega"}
	for i := range 10 {
		next[fmt.Sprintf("f%d", i)] = fmt.Sprintf("omega %d", i)
	}
	r.commit("c2", "c1", next)
	x := open(t, embedded.Options{Source: r, BatchSize: 20})
	index(t, x, "app", "c1")

	reads, lost := 0, errors.New("lost the disk")
	r.broken = func(call string) error {
		if call == "read" {
			if reads++; reads == 3 {
				return lost
			}
		}
		return nil
	}
	if err := x.Index(t.Context(), target("app", "c2")); !errors.Is(err, lost) {
		t.Fatalf("got %v, want the source's error", err)
	}
	if got := find(t, x, search.Query{Text: "omega"}); got != nil {
		t.Errorf("half an index is visible: %v", got)
	}
	if diff := cmp.Diff([]string{"app@c1 a:1 alpha"}, find(t, x, search.Query{Text: "alpha"})); diff != "" {
		t.Error(diff)
	}
	r.broken = nil
	index(t, x, "app", "c2")
	if got := find(t, x, search.Query{Text: "omega"}); len(got) != 11 {
		t.Errorf("after the retry: %v", got)
	}
}

func TestACancelledIndexEndsAndLeavesTheOldState(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{"a": "alpha", "b": "beta"})
	r.reading = make(chan struct{})
	x := open(t, embedded.Options{Source: r})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- x.Index(ctx, target("app", "c1")) }()
	<-r.reading // the transaction is open
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	r.reading = nil
	if got, err := x.Covers(t.Context(), target("app", "c1")); err != nil || got {
		t.Errorf("covers: %v, %v", got, err)
	}
	index(t, x, "app", "c1")
}

func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	r := newRepos()
	files := map[string]string{}
	for i := range 1300 {
		files[fmt.Sprintf("f%04d", i)] = fmt.Sprintf("number %d", i)
	}
	r.commit("c1", "", files)
	x := open(t, embedded.Options{Source: r})
	index(t, x, "app", "c1")
	if r.largest > 512 || len(r.read) != 1300 {
		t.Errorf("the largest batch has %d contents of %d", r.largest, len(r.read))
	}
	if diff := cmp.Diff([]string{"app@c1 f1299:1 number 1299"}, find(t, x, search.Query{Text: "number 1299"})); diff != "" {
		t.Error(diff)
	}
}

func TestBinaryAndLargeFilesAreLeftOut(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{
		"text":   "needle",
		"late":   "needle",
		"large":  "needle " + strings.Repeat("x", 2000),
		"binary": "needle\x00",
		"latin":  "needle caf\xe9",
	})
	r.commit("c2", "c1", map[string]string{"late": "needle\x00"}) // was text, is none now
	x := open(t, embedded.Options{Source: r, MaxFileSize: 1000})
	index(t, x, "app", "c1")
	index(t, x, "app", "c2")
	want := []string{"app@c2 latin:1 needle caf\uFFFD", "app@c2 text:1 needle"}
	if diff := cmp.Diff(want, find(t, x, search.Query{Text: "needle"})); diff != "" {
		t.Error(diff)
	}
}

func TestTwoBranchesOfOneRepository(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("m", "", map[string]string{"a": "same line\nmain only", "b": "same line"})
	r.commit("rel", "", map[string]string{"a": "same line\nrelease only", "b": "same line"})
	x := open(t, embedded.Options{Source: r})
	index(t, x, "app", "m")
	err := x.Index(t.Context(), search.Target{Repo: "app", Branch: "release", Commit: "rel"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"app@rel a:1 same line", "app@rel b:1 same line"}
	if diff := cmp.Diff(want, find(t, x, search.Query{Text: "same line"})); diff != "" {
		t.Error(diff)
	}
	want = []string{"app@m a:2 main only", "app@rel a:2 release only"}
	if diff := cmp.Diff(want, find(t, x, search.Query{Text: " only"})); diff != "" {
		t.Error(diff)
	}
	// A content that one branch gives up is still the other's.
	r.commit("m2", "m", map[string]string{"a": "-", "b": "-"})
	index(t, x, "app", "m2")
	if diff := cmp.Diff([]string{"app@rel b:1 same line"}, find(t, x, search.Query{Text: "same line"})[1:]); diff != "" {
		t.Error(diff)
	}
}

// Two handles on one file are what two processes are to each other.
func TestTwoProcessesShareTheFile(t *testing.T) {
	t.Parallel()
	r := newRepos()
	parent := ""
	const commits = 12
	for i := range commits {
		id := fmt.Sprintf("c%02d", i)
		r.commit(id, parent, map[string]string{fmt.Sprintf("f%02d", i): "shared " + id})
		parent = id
	}
	path := filepath.Join(t.TempDir(), "search.db")
	handles := make([]*embedded.Index, 3)
	var wg sync.WaitGroup
	for i := range handles {
		wg.Go(func() {
			x, err := embedded.Open(t.Context(), embedded.Options{Path: path, Source: r})
			if err != nil {
				t.Error(err)
				return
			}
			handles[i] = x
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for n := range commits {
		for i, x := range handles {
			c := fmt.Sprintf("c%02d", (n+i*5)%commits)
			wg.Go(func() {
				if err := x.Index(t.Context(), target("app", c)); err != nil {
					t.Error(err)
				}
				if _, err := x.Search(t.Context(), search.Query{Text: "shared"}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	for _, x := range handles {
		if got := find(t, x, search.Query{Text: "shared"}); len(got) != commits || !strings.HasPrefix(got[0], "app@c11 ") {
			t.Errorf("got %v", got)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{"a": "persistent"})
	path := filepath.Join(t.TempDir(), "new folder", "what? 100%#1.db")
	x := open(t, embedded.Options{Path: path, Source: r})
	index(t, x, "app", "c1")

	again := open(t, embedded.Options{Path: path, Source: r})
	if diff := cmp.Diff([]string{"app@c1 a:1 persistent"}, find(t, again, search.Query{Text: "persistent"})); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v: others may read the code", info.Mode(), err)
	}

	garbage := filepath.Join(t.TempDir(), "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("this is no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Open(t.Context(), embedded.Options{Path: garbage, Source: r}); err == nil {
		t.Error("opened a file that is no database")
	}
	if _, err := embedded.Open(t.Context(), embedded.Options{Path: garbage}); err == nil {
		t.Error("opened without a source")
	}
}

func TestBadTargetsAreDeterministic(t *testing.T) {
	t.Parallel()
	x := open(t, embedded.Options{Source: newRepos()})
	err := x.Index(t.Context(), search.Target{Repo: "app", Branch: "main"})
	if e, ok := errors.AsType[*search.Error](err); !ok || e.Transient {
		t.Errorf("got %v", err)
	}
	if err := x.Index(t.Context(), target("app", "unknown")); err == nil {
		t.Error("indexed a commit that is not there")
	}
}
