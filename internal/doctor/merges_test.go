package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/doctor"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/forge/localgit"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

// rig is a local forge with one repository and merges in it.
type rig struct {
	*testing.T
	db   *sqlite.DB
	host *localgit.Host
	dir  string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: sqlite.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	dir := t.TempDir()
	r := &rig{T: t, db: db, dir: dir, host: localgit.New(localgit.Options{Dir: dir, Store: db})}
	r.repository("app", forge.MergeCommit)
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) git(name string) git.Repo { return git.Repo{Dir: filepath.Join(r.dir, name+".git")} }

func (r *rig) repository(name string, style forge.MergeStyle) {
	r.Helper()
	_, err := r.host.CreateRepository(r.Context(), forge.Repository{Name: name, MergeStyle: style})
	r.must(err)
	sha, err := r.git(name).CommitTree(r.Context(), git.NewCommit{Tree: emptyTree, When: time.Unix(1_700_000_000, 0), Message: "first"})
	r.must(err)
	r.move(name, "main", sha)
}

func (r *rig) tip(name, branch string) string {
	r.Helper()
	refs, err := r.git(name).Values(r.Context(), "refs/heads/"+branch)
	r.must(err)
	return refs["refs/heads/"+branch]
}

// move sets a branch to a commit, whatever it was; git.Zero removes it.
func (r *rig) move(name, branch, sha string) {
	r.Helper()
	old := r.tip(name, branch)
	if old == "" {
		old = git.Zero
	}
	r.must(r.git(name).UpdateRef(r.Context(), git.Swap{Ref: "refs/heads/" + branch, Old: old, New: sha}))
}

// merged merges a change of one file, as flow change does, and answers the
// merge.
func (r *rig) merged(name, into, operation string) string {
	r.Helper()
	ctx, author, when := r.Context(), forge.Identity{Name: "Ann", Email: "ann@example.com"}, time.Unix(1_700_000_100, 0)
	head, err := r.host.CreateCommit(ctx, forge.NewChange{Project: name, Base: r.tip(name, into), Branch: "change/" + operation, Author: author, When: when,
		Message: "A change\n\nMergeflow-Operation: " + operation, Files: []forge.FileChange{{Path: operation, Content: operation}}})
	r.must(err)
	mr, err := r.host.CreateMergeRequest(ctx, forge.NewMergeRequest{Project: name, Source: "change/" + operation, Target: into, Title: "A change"})
	r.must(err)
	sha, err := r.host.Merge(ctx, forge.MergeInput{Ref: mr.Ref, HeadSHA: head, OperationID: operation, Title: "A change", Author: author, When: when})
	r.must(err)
	return sha
}

// again makes a second commit that says what this one says, on the branch.
func (r *rig) again(name, branch, sha string) string {
	r.Helper()
	c, err := r.git(name).Commit(r.Context(), sha)
	r.must(err)
	twin, err := r.git(name).CommitTree(r.Context(), git.NewCommit{
		Tree: c.Tree, Parents: []string{r.tip(name, branch)}, Name: c.AuthorName, Email: c.Author, When: c.When, Message: c.Message})
	r.must(err)
	r.move(name, branch, twin)
	return twin
}

// carry copies a commit onto the branch as a cherry-pick does: message and
// author stay.
func (r *rig) carry(name, branch, sha string) {
	r.Helper()
	c, err := r.git(name).Commit(r.Context(), sha)
	r.must(err)
	cmd := exec.Command("git", "commit-tree", "-p", r.tip(name, branch), "-F", "-", c.Tree)
	cmd.Stdin = strings.NewReader(c.Message)
	cmd.Env = append(os.Environ(), "GIT_DIR="+r.git(name).Dir, "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME="+c.AuthorName, "GIT_AUTHOR_EMAIL="+c.Author, "GIT_AUTHOR_DATE="+c.When.Format(time.RFC3339),
		"GIT_COMMITTER_NAME=Bob", "GIT_COMMITTER_EMAIL=bob@example.com")
	out, err := cmd.Output()
	r.must(err)
	r.move(name, branch, strings.TrimSpace(string(out)))
}

func (r *rig) compare(limit int) doctor.Compared {
	r.Helper()
	c, err := doctor.Merges(r.Context(), remembering{r.db}, "default", r.git, limit)
	r.must(err)
	return c
}

// remembering knows operations by their merge, as sagas do.
type remembering struct{ *sqlite.DB }

func (remembering) OperationOf(_ context.Context, project, commit string, _ int64) (string, error) {
	if project == "app" && commit != "" {
		return "remembered", nil
	}
	return "", store.ErrNotFound
}

// want compares what was found with these, each "operation: part of the detail".
func (r *rig) want(c doctor.Compared, want ...string) {
	r.Helper()
	if len(c.Findings) != len(want) {
		r.Fatalf("found %+v, want %q", c.Findings, want)
	}
	for i, w := range want {
		operation, part, _ := strings.Cut(w, ": ")
		if f := c.Findings[i]; f.Invariant != "I13" || f.SagaID != operation || !strings.Contains(f.Detail, part) {
			r.Errorf("found %+v, want %q", f, w)
		}
	}
}

func TestSoundMergesAreNoFinding(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.want(r.compare(9)) // nothing to compare
	r.repository("squashed/lib", forge.SquashCommit)
	first := r.merged("app", "main", "op-1")
	r.merged("app", "main", "op-2")
	r.merged("squashed/lib", "main", "op-3")
	r.merged("squashed/lib", "main", "op-4")
	// Somebody carries a merge to another branch, and back.
	r.carry("app", "main", first)
	// A merge request that is not merged, and one of another forge.
	_, err := r.db.CreatePull(t.Context(), store.Pull{Forge: "default", Repo: "app", Source: "a", Target: "main", ForgeState: "open"}, nil)
	r.must(err)
	other, err := r.db.CreatePull(t.Context(), store.Pull{Forge: "other", Repo: "app", Source: "a", Target: "main", ForgeState: "open"}, nil)
	r.must(err)
	r.must(r.db.SetForgeState(t.Context(), other.ID, "merged", strings.Repeat("1", 40)))
	c := r.compare(9)
	r.want(c)
	if c.Merges != 4 || c.Gone != 0 {
		t.Errorf("compared %+v", c)
	}
}

func TestMergeThatIsMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.tip("app", "main")
	first := r.merged("app", "main", "op-1")
	second := r.merged("app", "main", "op-2")
	r.move("app", "main", first)
	r.want(r.compare(9), "remembered: merged app!2 into main as "+second+", which the branch does not have")
	r.move("app", "main", before)
	r.want(r.compare(9), "remembered: app!2", "remembered: app!1")
	r.want(r.compare(1), "remembered: app!2")
}

func TestMergeTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.merged("app", "main", "op-1")
	r.merged("app", "main", "op-2")
	twin := r.again("app", "main", first)
	r.want(r.compare(9), "op-1: merged app!1 into main 2 times: "+twin+", "+first)
}

func TestAnotherCommitThanRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.tip("app", "main")
	first := r.merged("app", "main", "op-1")
	r.move("app", "main", before)
	onto, err := r.git("app").CommitTree(t.Context(), git.NewCommit{Tree: emptyTree, Parents: []string{before}, When: time.Unix(1_700_000_200, 0), Message: "between"})
	r.must(err)
	r.move("app", "main", onto)
	twin := r.again("app", "main", first)
	r.want(r.compare(9), fmt.Sprintf("op-1: as %s; the branch has it as %s", first, twin))
}

func TestBranchAndRepositoryThatAreGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.move("app", "release", r.tip("app", "main"))
	r.merged("app", "release", "op-1")
	r.move("app", "release", git.Zero) // branches may be deleted
	c := r.compare(9)
	r.want(c)
	if c.Merges != 1 || c.Gone != 1 {
		t.Errorf("compared %+v", c)
	}
	r.must(os.RemoveAll(r.git("app").Dir))
	r.want(r.compare(9), ": repository app is in the database and not in the data folder")
}

func TestMergedWithoutACommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, err := r.db.CreatePull(t.Context(), store.Pull{Forge: "default", Repo: "app", Source: "a", Target: "main", ForgeState: "open"}, nil)
	r.must(err)
	r.must(r.db.SetForgeState(t.Context(), p.ID, "merged", ""))
	r.want(r.compare(9), ": says that app!1 is merged and names no commit")
}

// Many repositories and merge requests are read page by page.
func TestPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const pulls = 501
	for range pulls {
		p, err := r.db.CreatePull(t.Context(), store.Pull{Forge: "default", Repo: "app", Source: "a", Target: "gone", ForgeState: "open"}, nil)
		r.must(err)
		r.must(r.db.SetForgeState(t.Context(), p.ID, "merged", strings.Repeat("1", 40)))
	}
	for i := range pulls {
		_, err := r.db.CreateRepo(t.Context(), store.Repo{Name: fmt.Sprintf("b%03d", i), DefaultBranch: "main", MergeStyle: "merge"})
		r.must(err)
	}
	if c := r.compare(9); c.Merges != pulls || c.Gone != pulls || len(c.Findings) != 0 {
		t.Errorf("compared %+v", c)
	}
	const last = "b500"
	p, err := r.db.CreatePull(t.Context(), store.Pull{Forge: "default", Repo: last, Source: "a", Target: "main", ForgeState: "open"}, nil)
	r.must(err)
	r.must(r.db.SetForgeState(t.Context(), p.ID, "merged", strings.Repeat("1", 40)))
	r.want(r.compare(9), ": repository "+last)
}

func TestDatabaseThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := doctor.Merges(ctx, r.db, "default", r.git, 9); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
