package git

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	if v, err := Check(t.Context()); err != nil || v == "" {
		t.Fatalf("Check = %q, %v", v, err)
	}
	for version, ok := range map[string]bool{
		"2.38.0": true, "2.39.5": true, "3.0.0": true, "2.45.2 (Apple Git-154)": true,
		"2.37.9": false, "1.99.0": false, "none": false,
	} {
		err := checkVersion(version)
		if (err == nil) != ok {
			t.Errorf("checkVersion(%q) = %v", version, err)
		}
		if err != nil && !strings.Contains(err.Error(), "2.38") {
			t.Errorf("the error does not name the needed version: %v", err)
		}
	}
}

func TestCheckBranch(t *testing.T) {
	t.Parallel()
	good := []string{"main", "feature/x", "v1.0", "a-b", "ä", "a@b", "@", "x/@/y", "head", strings.Repeat("a", 200)}
	bad := []string{"", "-x", "--upload-pack=x", "HEAD", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", `a\b`, "a\x00", "a\nb", "a\x7f",
		"/a", "a/", "a//b", ".a", "a/.b", "a.", "a.lock", "a.lock/b", "a@{1}", strings.Repeat("a", 201), strings.Repeat("a/", 130) + "a"}
	for _, name := range good {
		if err := CheckBranch(name); err != nil {
			t.Errorf("CheckBranch(%q) = %v", name, err)
		}
		if _, err := (call{op: "check-ref-format", args: []string{"refs/heads/" + name}}).output(t.Context()); err != nil {
			t.Errorf("git refuses %q", name)
		}
	}
	for _, name := range bad {
		if CheckBranch(name) == nil {
			t.Errorf("CheckBranch(%q) lets it through", name)
		}
	}
}

func TestRepo(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	if refs, err := r.Refs(ctx); err != nil || len(refs) != 0 {
		t.Fatalf("an empty repository has references: %v, %v", refs, err)
	}
	if _, err := r.Resolve(ctx, "refs/heads/main"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("Resolve of nothing: %v", err)
	}
	a := commit(t, r, "main", "", map[string]string{"a.txt": "a"})
	b := commit(t, r, "main", a, map[string]string{"b.txt": "b"})
	side := commit(t, r, "side", a, map[string]string{"c.txt": "c"})
	alone := commit(t, r, "alone", "", map[string]string{"d.txt": "d"})

	values, err := r.Values(ctx, "refs/heads/main", "refs/heads/mai", "refs/heads/side")
	if want := map[string]string{"refs/heads/main": b, "refs/heads/side": side}; err != nil || !cmp.Equal(want, values) {
		t.Errorf("Values = %v, %v", values, err)
	}
	for _, name := range []string{"--upload-pack=x", "HEAD~1", "main", a[:10], "refs/heads/../x"} {
		if sha, err := r.Resolve(ctx, name); err == nil {
			t.Errorf("Resolve(%q) = %s", name, sha)
		}
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{{a, b, true}, {b, a, false}, {a, a, true}, {b, side, false}, {a, alone, false}} {
		if got, err := r.IsAncestor(ctx, c.a, c.b); err != nil || got != c.want {
			t.Errorf("IsAncestor(%s, %s) = %v, %v", c.a, c.b, got, err)
		}
	}
	if base, err := r.MergeBase(ctx, b, side); err != nil || base != a {
		t.Errorf("MergeBase = %s, %v", base, err)
	}
	if _, err := r.MergeBase(ctx, b, alone); !errors.Is(err, ErrUnrelated) {
		t.Errorf("MergeBase of strangers: %v", err)
	}
	missing := strings.Repeat("1", 40)
	if _, err := r.IsAncestor(ctx, missing, b); !errors.Is(err, ErrNotFound) {
		t.Errorf("IsAncestor of a missing commit: %v", err)
	}
	if _, err := r.Commit(ctx, missing); !errors.Is(err, ErrNotFound) {
		t.Errorf("Commit of a missing commit: %v", err)
	}
	log, err := r.Log(ctx, b, "", 0)
	if err != nil || len(log) != 2 || log[0].SHA != b || log[1].SHA != a || !cmp.Equal(log[0].Parents, []string{a}) ||
		log[0].Message != "write" || log[0].Author != "test@example.com" || log[0].When.Unix() != 1700000000 {
		t.Errorf("Log = %+v, %v", log, err)
	}
	if log, err = r.Log(ctx, b, a, 5); err != nil || len(log) != 1 {
		t.Errorf("Log without a = %+v, %v", log, err)
	}
}

func TestInit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "r.git")
	r, err := Init(t.Context(), dir, "trunk")
	if err != nil {
		t.Fatal(err)
	}
	if head, err := os.ReadFile(filepath.Join(r.Dir, "HEAD")); err != nil || string(head) != "ref: refs/heads/trunk\n" {
		t.Errorf("HEAD = %q, %v", head, err)
	}
	if err := r.SetHead(t.Context(), "main"); err != nil {
		t.Error(err)
	}
	if head, _ := os.ReadFile(filepath.Join(r.Dir, "HEAD")); string(head) != "ref: refs/heads/main\n" {
		t.Errorf("HEAD after SetHead = %q", head)
	}
	if _, err := Init(t.Context(), dir, "main"); !errors.Is(err, os.ErrExist) {
		t.Errorf("Init over a repository: %v", err)
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) != 1 {
		t.Errorf("Init left something behind: %v, %v", left, err)
	}
}

func TestErrorsShowNoPaths(t *testing.T) {
	t.Parallel()
	gone := Repo{Dir: filepath.Join(t.TempDir(), "gone.git")}
	empty := Repo{Dir: t.TempDir()}
	for _, r := range []Repo{gone, empty} {
		_, refsErr := r.Refs(t.Context())
		_, resolveErr := r.Resolve(t.Context(), "refs/heads/main")
		updateErr := r.UpdateRef(t.Context(), Swap{Ref: "refs/heads/main", Old: Zero, New: strings.Repeat("1", 40)})
		for _, err := range []error{refsErr, resolveErr, updateErr} {
			if err == nil || strings.Contains(err.Error(), filepath.Dir(r.Dir)) {
				t.Errorf("the error shows a path or is none: %v", err)
			}
		}
		if !errors.Is(refsErr, ErrNotFound) {
			t.Errorf("a missing repository is no ErrNotFound: %v", refsErr)
		}
	}
	r := newRepo(t)
	_, err := call{op: "cat-file", dir: r.Dir, args: []string{"-p", r.Dir + "/x"}}.output(t.Context())
	e, ok := errors.AsType[*Error](err)
	if !ok || e.ExitCode != 128 || e.Stderr == "" || strings.Contains(err.Error(), r.Dir) {
		t.Errorf("error = %#v", err)
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	ctx, cancel := context.WithCancel(t.Context())
	// git waits for its standard input, which never ends.
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer feed.Close()
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = call{op: "cat-file", dir: r.Dir, args: []string{"--batch"}, stdin: in}.output(ctx)
	if e, ok := errors.AsType[*Error](err); !ok || e.ExitCode != -1 || !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
}

func TestEnvironmentIsOurs(t *testing.T) {
	// Not parallel: it changes the process's environment.
	t.Setenv("GIT_DIR", "/nowhere")
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "user.name")
	t.Setenv("GIT_CONFIG_VALUE_0", "somebody")
	t.Setenv("SECRET", "s3cr3t")
	r := newRepo(t)
	if err := os.WriteFile(filepath.Join(r.Dir, "config"), []byte("[core]\nbare=true\nrepositoryformatversion=0\n[alias]\nenv=!env\n[transfer]\nhideRefs=!refs/mergeflow\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := call{op: "env", dir: r.Dir}.output(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, leaked := range []string{"/nowhere", "somebody", "s3cr3t"} {
		if strings.Contains(string(out), leaked) {
			t.Errorf("git sees %q", leaked)
		}
	}
	hidden, err := call{op: "config", dir: r.Dir, args: []string{"transfer.hideRefs"}}.output(t.Context())
	if err != nil || string(hidden) != "refs/mergeflow\n" {
		t.Errorf("the repository's own file decides what is hidden: %q, %v", hidden, err)
	}
}
