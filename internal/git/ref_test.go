package git

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestUpdateRef(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	a := commit(t, r, "main", "", map[string]string{"a": "a"})
	b := commit(t, r, "other", a, map[string]string{"b": "b"})
	const main, mark = "refs/heads/main", "refs/mergeflow/merged/x"
	for _, c := range []struct {
		name   string
		swap   Swap
		guards []Guard
		want   error
	}{
		{"make what is there", Swap{main, Zero, b}, nil, ErrMoved},
		{"move from the wrong value", Swap{main, b, a}, nil, ErrMoved},
		{"move what is not there", Swap{mark, a, b}, nil, ErrMoved},
		{"guard has another value", Swap{mark, Zero, b}, []Guard{{main, b}}, ErrMoved},
		{"guard is missing", Swap{main, a, b}, []Guard{{mark, b}}, ErrMoved},
		{"guard should be missing", Swap{mark, Zero, b}, []Guard{{main, Zero}}, ErrMoved},
		{"make", Swap{mark, Zero, b}, []Guard{{main, a}}, nil},
		{"move", Swap{main, a, b}, []Guard{{mark, b}}, nil},
		{"move again", Swap{main, a, b}, []Guard{{mark, b}}, ErrMoved},
		{"remove", Swap{mark, b, Zero}, []Guard{{main, b}}, nil},
	} {
		if err := r.UpdateRef(ctx, c.swap, c.guards...); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	values, err := r.Values(ctx, main, mark)
	if err != nil || values[main] != b || values[mark] != "" {
		t.Errorf("in the end %v, %v", values, err)
	}
	for _, bad := range []Swap{{"main", a, b}, {"--stdin", a, b}, {main + "\x00delete " + main, a, b}, {main, "", b}, {main, a, "main"}} {
		if err := r.UpdateRef(ctx, bad); err == nil || errors.Is(err, ErrMoved) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// Many writers count a reference up; every success must have moved it.
func TestUpdateRefExclusive(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	chain := []string{commit(t, r, "main", "", map[string]string{"n": "0"})}
	for i := 1; i <= 6; i++ {
		chain = append(chain, commit(t, r, "chain", chain[i-1], map[string]string{"n": strconv.Itoa(i)}))
	}
	next := map[string]string{}
	for i, sha := range chain[1:] {
		next[chain[i]] = sha
	}
	var mu sync.Mutex
	won := map[string]int{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				at, err := r.Resolve(ctx, "refs/heads/main")
				if err != nil {
					t.Error(err)
					return
				}
				to := next[at]
				if to == "" {
					return
				}
				switch err := r.UpdateRef(ctx, Swap{"refs/heads/main", at, to}); {
				case err == nil:
					mu.Lock()
					won[to]++
					mu.Unlock()
				case !errors.Is(err, ErrMoved):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if len(won) != 6 {
		t.Errorf("moved %v", won)
	}
	for sha, n := range won {
		if n != 1 {
			t.Errorf("%s was set %d times", sha, n)
		}
	}
}

// A git that is killed while it holds a reference leaves a lock file behind.
// The hook makes that moment last until the test has killed it.
func TestKilledWriterLeavesNoLock(t *testing.T) {
	t.Parallel()
	t.Run("that moves", func(t *testing.T) {
		t.Parallel()
		killWriter(t, false, func(r Repo, ref string) []string { return []string{r.lockPath(ref)} })
	})
	t.Run("that removes", func(t *testing.T) {
		t.Parallel()
		killWriter(t, true, func(r Repo, ref string) []string {
			return []string{r.lockPath(ref), r.lockPath(packedRefs), filepath.Join(r.Dir, packedRefs+".new")}
		})
	})
}

func killWriter(t *testing.T, remove bool, left func(r Repo, ref string) []string) {
	ctx := t.Context()
	r := newRepo(t)
	a := commit(t, r, "main", "", map[string]string{"a": "a"})
	b := commit(t, r, "other", a, map[string]string{"b": "b"})
	swap := Swap{"refs/heads/main", a, b}
	if remove {
		swap = Swap{"refs/heads/other", b, Zero}
		if _, err := (call{op: "pack-refs", dir: r.Dir, args: []string{"--all"}}).output(ctx); err != nil {
			t.Fatal(err)
		}
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	hooks := filepath.Join(r.Dir, "hooks")
	if err := os.MkdirAll(hooks, 0o700); err != nil {
		t.Fatal(err)
	}
	hook := "#!/bin/sh\n[ \"$1\" = prepared ] || exit 0\necho $PPID > " + pidFile + ".new && mv " + pidFile + ".new " + pidFile + "\nexec sleep 60\n"
	if err := os.WriteFile(filepath.Join(hooks, "reference-transaction"), []byte(hook), 0o700); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- r.UpdateRef(ctx, swap) }()
	var pid int
	eventually(t, "git holds the lock", func() bool {
		s, err := os.ReadFile(pidFile)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(s)))
		}
		return err == nil
	})
	if err := os.Remove(filepath.Join(hooks, "reference-transaction")); err != nil {
		t.Fatal(err)
	}

	// While it lives, nobody gets through, and nobody takes its lock away.
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := r.UpdateRef(short, swap); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second writer got through: %v", err)
	}
	if _, err := os.Stat(r.lockPath(swap.Ref)); err != nil {
		t.Fatalf("the living writer's lock is gone: %v", err)
	}

	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Error("the killed swap succeeded")
	}
	for _, lock := range left(r, swap.Ref) {
		if _, err := os.Stat(lock); err != nil {
			t.Fatalf("git left no lock, the test proves nothing: %v", err)
		}
	}
	if err := r.UpdateRef(ctx, swap); err != nil {
		t.Errorf("the next writer: %v", err)
	}
	values, err := r.Values(ctx, swap.Ref)
	if err != nil || orZero(values[swap.Ref]) != swap.New {
		t.Errorf("it is at %q, %v", values[swap.Ref], err)
	}
}

func orZero(sha string) string {
	if sha == "" {
		return Zero
	}
	return sha
}

func TestForeignLockStays(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	a := commit(t, r, "main", "", map[string]string{"a": "a"})
	b := commit(t, r, "other", a, map[string]string{"b": "b"})
	swap := Swap{"refs/heads/main", a, b}
	lock := r.lockPath(swap.Ref)
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(lock, old, old); err != nil {
		t.Fatal(err)
	}
	stays := func(why string) {
		t.Helper()
		err := r.UpdateRef(ctx, swap)
		e, ok := errors.AsType[*LockError](err)
		if !ok || e.Ref != swap.Ref || e.Age < 59*time.Minute || !strings.Contains(err.Error(), "refs/heads/main.lock") || strings.Contains(err.Error(), r.Dir) {
			t.Errorf("%s: %v", why, err)
		}
		if _, err := os.Stat(lock); err != nil {
			t.Errorf("%s: the lock was removed", why)
		}
	}
	stays("nobody noted it")

	if err := os.WriteFile(filepath.Join(r.Dir, lockDir, writerFile), []byte(swap.Ref+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	push, err := r.acquire(ctx, pushFile, syscall.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	stays("a push may own it")
	push.Close()
	if err := r.UpdateRef(ctx, swap); err != nil {
		t.Errorf("a dead writer's lock is in the way: %v", err)
	}
}

// A child that is being started has a copy of the lock for a moment, after its
// holder has given it back: that is no push.
func TestALockThatAForkHoldsForAMoment(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	a := commit(t, r, "main", "", map[string]string{"a": "a"})
	b := commit(t, r, "other", a, map[string]string{"b": "b"})
	swap := Swap{"refs/heads/main", a, b}
	for _, ref := range []string{swap.Ref, head} { // both, as git leaves them
		if err := os.WriteFile(r.lockPath(ref), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copied, err := r.acquire(t.Context(), pushFile, syscall.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Dir, lockDir, writerFile), []byte(swap.Ref+"\n"+head+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.UpdateRef(t.Context(), swap) }()
	eventually(t, "it has begun", func() bool {
		f, err := r.openLock(writerFile)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
	})
	copied.Close()
	if err := <-done; err != nil {
		t.Errorf("taken for a push: %v", err)
	}
}

func TestNestedNames(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	a := commit(t, r, "a/b", "", map[string]string{"a": "a"})
	for _, packed := range []bool{false, true} {
		if packed {
			if _, err := (call{op: "pack-refs", dir: r.Dir, args: []string{"--all"}}).output(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"a", "a/b/c"} {
			err := r.UpdateRef(t.Context(), Swap{"refs/heads/" + name, Zero, a})
			if !errors.Is(err, ErrNested) || errors.Is(err, ErrMoved) {
				t.Errorf("%s beside a/b (packed %v): %v", name, packed, err)
			}
		}
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	unlock, err := r.Lock(t.Context(), "open")
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.Lock(short, "open"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second holder: %v", err)
	}
	other, err := r.Lock(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	other()
	unlock()
	again, err := r.Lock(t.Context(), "open")
	if err != nil {
		t.Fatal(err)
	}
	again()
	for _, name := range []string{"", "writer", "push", "../x", "a/b", "a b"} {
		if unlock, err := r.Lock(t.Context(), name); err == nil {
			unlock()
			t.Errorf("Lock(%q) was given", name)
		}
	}
}
