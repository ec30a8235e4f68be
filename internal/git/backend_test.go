package git

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// served answers the repository's smart HTTP at the URL, whoever asks.
func served(t *testing.T, r Repo, maxBody int64) (url string, failed <-chan error) {
	t.Helper()
	errs := make(chan error, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, what, _ := strings.Cut(req.URL.Path, "/r.git/")
		x := Exchange{Service: Service(what), MaxBody: maxBody}
		if what == "info/refs" {
			x.Service, x.Advertise = Service(req.URL.Query().Get("service")), true
		}
		if err := r.ServeHTTP(w, req, x); err != nil {
			errs <- err
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + "/r.git", errs
}

// client runs a stock git client in a folder.
func client(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustClient(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := client(t, dir, args...)
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return out
}

// cloneWith clones and commits one file of that many random bytes.
func cloneWith(t *testing.T, url string, size int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	mustClient(t, dir, "clone", "-q", url, "work")
	dir = filepath.Join(dir, "work")
	content := make([]byte, size)
	_, _ = rand.Read(content)
	if err := os.WriteFile(filepath.Join(dir, "big"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	mustClient(t, dir, "add", "big")
	mustClient(t, dir, "commit", "-q", "-m", "big")
	return dir
}

func TestServePushWithinBounds(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	base := commit(t, r, "main", "", map[string]string{"a": "a"})
	url, _ := served(t, r, 3<<20)
	// Over 1 MB git sends chunks and does not know the length.
	dir := cloneWith(t, url, 2<<20)
	mustClient(t, dir, "push", "-q", "origin", "HEAD:refs/heads/fits")
	if sha, err := r.Resolve(t.Context(), "refs/heads/fits"); err != nil || sha == base {
		t.Errorf("the push left %s, %v", sha, err)
	}
	dir = cloneWith(t, url, 4<<20)
	if out, err := client(t, dir, "push", "-q", "origin", "HEAD:refs/heads/over"); err == nil {
		t.Errorf("a push over the bound went through: %s", out)
	}
	if _, err := r.Resolve(t.Context(), "refs/heads/over"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the refused push left a branch: %v", err)
	}
}

// A client that has much to say compresses it.
func TestServeCompressedBody(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	sha := commit(t, r, "main", "", map[string]string{"a": "a"})
	if err := r.UpdateRef(t.Context(), Swap{Ref: "refs/mergeflow/merged/x", Old: Zero, New: sha}); err != nil {
		t.Fatal(err)
	}
	url, _ := served(t, r, 0)
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, _ = io.WriteString(z, "0014command=ls-refs\n0000")
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/git-upload-pack", &body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	req.Header.Set("Content-Encoding", "gzip")
	req.Header.Set("Git-Protocol", "version=2")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), sha+" refs/heads/main") {
		t.Errorf("status %s, %v: %q", resp.Status, err, answer)
	}
	if strings.Contains(string(answer), "mergeflow") {
		t.Errorf("hidden references are shown: %q", answer)
	}
}

// What a request carries must not reach the programs that git starts.
func TestServeKeepsCredentials(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	commit(t, r, "main", "", map[string]string{"a": "a"})
	seen := filepath.Join(t.TempDir(), "env")
	if err := os.MkdirAll(filepath.Join(r.Dir, "hooks"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Dir, "hooks", "pre-receive"), []byte("#!/bin/sh\nenv > "+seen+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	url, _ := served(t, r, 0)
	dir := cloneWith(t, url, 10)
	mustClient(t, dir, "-c", "http.extraHeader=Authorization: Bearer s3cr3t", "-c", "http.extraHeader=X-Other: s3cr3t", "push", "-q", "origin", "HEAD:refs/heads/next")
	env, err := os.ReadFile(seen)
	if err != nil || !strings.Contains(string(env), "GIT_DIR=") {
		t.Fatalf("the hook did not run: %v", err)
	}
	if strings.Contains(string(env), "s3cr3t") {
		t.Error("the hook sees the credentials")
	}
}

func TestServeFailures(t *testing.T) {
	t.Parallel()
	gone := Repo{Dir: filepath.Join(t.TempDir(), "r.git")}
	url, failed := served(t, gone, 0)
	for _, path := range []string{"/info/refs?service=git-upload-pack", "/info/refs?service=git-receive-pack"} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode < 400 || strings.Contains(string(body), gone.Dir) {
			t.Errorf("%s of nothing: %s %q", path, resp.Status, body)
		}
		if err := <-failed; err == nil || strings.Contains(err.Error(), gone.Dir) {
			t.Errorf("%s of nothing: %v", path, err)
		}
	}
}

// A push holds its lock as long as git works for it, so that nobody takes its
// references' lock files for stale.
func TestServeHoldsThePushLock(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	base := commit(t, r, "main", "", map[string]string{"a": "a"})
	next := commit(t, r, "other", base, map[string]string{"b": "b"})
	gate := filepath.Join(t.TempDir(), "gate")
	if err := os.MkdirAll(filepath.Join(r.Dir, "hooks"), 0o700); err != nil {
		t.Fatal(err)
	}
	// The hook waits for somebody to open the gate's other end.
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	hook := fmt.Sprintf("#!/bin/sh\ntouch %[1]s.reached\ncat %[1]s\n", gate)
	if err := os.WriteFile(filepath.Join(r.Dir, "hooks", "pre-receive"), []byte(hook), 0o700); err != nil {
		t.Fatal(err)
	}
	url, _ := served(t, r, 0)
	dir := cloneWith(t, url, 10)
	pushed := make(chan error, 1)
	go func() {
		out, err := client(t, dir, "push", "-q", "origin", "HEAD:refs/heads/next")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		pushed <- err
	}()
	eventually(t, "the push is under way", func() bool { _, err := os.Stat(gate + ".reached"); return err == nil })

	swap := Swap{Ref: "refs/heads/main", Old: base, New: next}
	lock := r.lockPath(swap.Ref)
	for path, content := range map[string]string{lock: "", filepath.Join(r.Dir, lockDir, writerFile): swap.Ref + "\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := errors.AsType[*LockError](r.UpdateRef(t.Context(), swap)); !ok {
		t.Error("the lock file of a push under way was taken for stale")
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-pushed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the push does not end")
	}
	eventually(t, "the lock is free again", func() bool { return r.UpdateRef(t.Context(), swap) == nil })
}
