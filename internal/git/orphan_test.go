package git

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const orphanEnv = "MERGEFLOW_TEST_ORPHAN"

// TestOrphanParent is the process that TestOrphanedGit kills; otherwise there
// is nothing to do.
func TestOrphanParent(t *testing.T) {
	f := strings.Fields(os.Getenv(orphanEnv))
	if len(f) != 3 {
		return
	}
	_ = Repo{Dir: f[0]}.UpdateRef(t.Context(), Swap{Ref: "refs/heads/main", Old: f[1], New: f[2]})
}

// git goes on when the process that started it is killed, and may move a
// reference afterwards. Whoever comes next waits for its end.
func TestOrphanedGit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	a := commit(t, r, "main", "", map[string]string{"a": "a"})
	b := commit(t, r, "other", a, map[string]string{"b": "b"})
	c := commit(t, r, "third", a, map[string]string{"c": "c"})

	// git stops in its transaction until somebody opens the gate's other end.
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	hook := filepath.Join(r.Dir, "hooks", "reference-transaction")
	if err := os.MkdirAll(filepath.Dir(hook), 0o700); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\n[ \"$1\" = prepared ] || exit 0\ntouch " + gate + ".reached\ncat " + gate + "\n"
	if err := os.WriteFile(hook, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	parent := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestOrphanParent$")
	parent.Env = append(os.Environ(), orphanEnv+"="+r.Dir+" "+a+" "+b)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "git holds the reference", func() bool { _, err := os.Stat(gate + ".reached"); return err == nil })
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}

	swap := Swap{Ref: "refs/heads/main", Old: a, New: c}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := r.UpdateRef(short, swap); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody waited for the orphan: %v", err)
	}
	if _, err := os.Stat(r.lockPath(swap.Ref)); err != nil {
		t.Errorf("the orphan's lock was taken away: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- r.UpdateRef(ctx, swap) }()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrMoved) {
		t.Errorf("after the orphan: %v", err)
	}
	if at, err := r.Resolve(ctx, swap.Ref); err != nil || at != b {
		t.Errorf("main is at %s, %v; the orphan moved it to %s", at, err, b)
	}
}
