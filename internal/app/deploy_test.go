package app

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/forge/localgit"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// A tree that no folder can hold is told apart from a disk that is busy: what
// no repeat can change becomes a failed deploy.
func TestATreeThatNoFolderHolds(t *testing.T) {
	t.Parallel()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: ":memory:"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	repos, work := t.TempDir(), t.TempDir()
	host := localgit.New(localgit.Options{Dir: repos, Store: db})
	if _, err := host.CreateRepository(t.Context(), forge.Repository{Name: "app", DefaultBranch: "main", MergeStyle: forge.MergeCommit}); err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@b")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	if err := os.WriteFile(filepath.Join(work, "a"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	blob := git("hash-object", "-w", "a")
	for name, index := range map[string]string{
		"a name that is too long":   "100644," + blob + "," + strings.Repeat("x", 300),
		"a link that leads outside": "120000," + blob + ",link",
	} {
		if strings.HasPrefix(index, "120000") {
			if err := os.WriteFile(filepath.Join(work, "a"), []byte("/etc/passwd"), 0o600); err != nil {
				t.Fatal(err)
			}
			index = "120000," + git("hash-object", "-w", "a") + ",link"
		}
		git("read-tree", "--empty")
		git("update-index", "--add", "--cacheinfo", index)
		commit := git("commit-tree", "-m", name, git("write-tree"))
		git("push", "-q", "-f", filepath.Join(repos, "app.git"), commit+":refs/heads/main")
		err := source{host}.Export(t.Context(), "app", commit, t.TempDir())
		if r, ok := errors.AsType[*deploy.Refused](err); !ok || r.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	missing := strings.Repeat("1", 40)
	if _, refused := errors.AsType[*deploy.Refused](source{host}.Export(t.Context(), "app", missing, t.TempDir())); refused {
		t.Error("a commit that is not there was called a tree that no folder holds")
	}
}
