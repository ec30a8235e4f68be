package directory_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/deploy/directory"
)

// line is a history c1 ← c2 ← …; a commit's tree is one file with its name.
type line struct{ fail error }

func (l line) Export(_ context.Context, _, commit, dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "version"), []byte(commit), 0o600); err != nil {
		return err
	}
	return l.fail
}

// A commit of another letter is on another line of history.
func (line) Contains(_ context.Context, _, commit, ancestor string) (bool, error) {
	return ancestor[0] == commit[0] && ancestor <= commit, nil
}

func onMain(context.Context, string) (string, error) { return "main", nil }

type calls struct {
	mu  sync.Mutex
	ids []string
}

func rig(t *testing.T, src directory.Source) (*directory.Deployer, string, *calls) {
	t.Helper()
	c := &calls{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ RequestID, OperationID, Result string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Result != "live" || r.Header.Get("Authorization") != "Bearer s3cret" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ids = append(c.ids, body.RequestID)
	}))
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	d := directory.New(directory.Options{Path: dir, Source: src, DefaultBranch: onMain, Callback: func() string { return srv.URL }, Secret: func() string { return "s3cret" }})
	t.Cleanup(d.Close)
	return d, dir, c
}

func release(commit string) deploy.Release {
	return deploy.Release{Project: "platform/config", Branch: "main", MRIID: 1, OperationID: "op-" + commit, MergeCommit: commit}
}

func version(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "platform", "config", "version"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDeploysForwardOnlyAndTellsEachOperation(t *testing.T) {
	t.Parallel()
	d, dir, c := rig(t, line{})
	if s, err := d.Look(t.Context(), release("c1")); err != nil || s != deploy.Absent {
		t.Fatal(s, err)
	}
	for _, commit := range []string{"c1", "c3", "c2", "c3"} {
		if err := d.Deploy(t.Context(), release(commit)); err != nil {
			t.Fatal(err)
		}
	}
	if v := version(t, dir); v != "c3" {
		t.Errorf("%s is live: an older release replaced a newer one", v)
	}
	for _, commit := range []string{"c1", "c2", "c3"} {
		if s, err := d.Look(t.Context(), release(commit)); err != nil || s != deploy.Live {
			t.Errorf("%s: %s %v", commit, s, err)
		}
	}
	if s, _ := d.Look(t.Context(), release("c4")); s != deploy.Absent {
		t.Errorf("c4: %s", s)
	}
	want := "directory-op-c1-c1 directory-op-c3-c3 directory-op-c2-c2 directory-op-c3-c3"
	if got := strings.Join(c.ids, " "); got != want {
		t.Errorf("called back with %s", got)
	}
}

func TestAFailedExportLeavesTheOldRelease(t *testing.T) {
	t.Parallel()
	src := line{}
	d, dir, _ := rig(t, src)
	if err := d.Deploy(t.Context(), release("c1")); err != nil {
		t.Fatal(err)
	}
	broken := directory.New(directory.Options{Path: dir, Source: line{fail: errors.New("disk full")}, DefaultBranch: onMain, Callback: func() string { return "http://127.0.0.1:1" }})
	if err := broken.Deploy(t.Context(), release("c2")); err == nil || strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
	if v := version(t, dir); v != "c1" {
		t.Errorf("%s is live", v)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".releases", "*", ".new-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestConcurrentDeploysEndWithTheNewest(t *testing.T) {
	t.Parallel()
	d, dir, _ := rig(t, line{})
	var wg sync.WaitGroup
	for _, commit := range []string{"c1", "c2", "c3", "c4", "c5", "c6"} {
		wg.Go(func() {
			if err := d.Deploy(t.Context(), release(commit)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if v := version(t, dir); v != "c6" {
		t.Errorf("%s is live", v)
	}
}

func TestWhatIsInTheWayIsNotReplaced(t *testing.T) {
	t.Parallel()
	d, dir, _ := rig(t, line{})
	if err := os.MkdirAll(filepath.Join(dir, "platform", "config", "mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "platform", "config", "mine", "notes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Deploy(t.Context(), release("c1")); err == nil || !strings.Contains(err.Error(), "in the way") {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"../x", "/etc", ".releases", ""} {
		r := release("c1")
		r.Project = bad
		if err := d.Deploy(t.Context(), r); err == nil {
			t.Errorf("%q was deployed", bad)
		}
	}
}
