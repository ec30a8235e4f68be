package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// Git runs the stock git client in a folder with nobody's configuration.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Ann", "GIT_AUTHOR_EMAIL=ann@example.com", "GIT_COMMITTER_NAME=Ann", "GIT_COMMITTER_EMAIL=ann@example.com",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// Repository creates a repository with one commit on main and n branches
// feature-1 … feature-n, each with one file of its own, pushed over HTTP.
func (p *Process) Repository(name string, n int, reviewers ...string) {
	p.t.Helper()
	if _, err := p.Client.CreateRepo(context.Background(), httpapi.NewRepository{Name: name, Reviewers: reviewers}); err != nil {
		p.t.Fatal(err)
	}
	dir := p.t.TempDir()
	Git(p.t, dir, "init", "-q", "-b", "main")
	write(p.t, dir, "README.md", "hello\n")
	Git(p.t, dir, "add", ".")
	Git(p.t, dir, "commit", "-q", "-m", "first")
	refs := []string{"main"}
	for i := 1; i <= n; i++ {
		branch := fmt.Sprintf("feature-%d", i)
		Git(p.t, dir, "checkout", "-q", "-b", branch, "main")
		write(p.t, dir, fmt.Sprintf("file-%d.txt", i), fmt.Sprintf("content %d\n", i))
		Git(p.t, dir, "add", ".")
		Git(p.t, dir, "commit", "-q", "-m", "change "+branch)
		refs = append(refs, branch)
	}
	Git(p.t, dir, append([]string{"push", "-q", p.URL + "/git/" + name + ".git"}, refs...)...)
}

func write(t testing.TB, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Pull opens a pull request for feature-i with these watchers.
func (p *Process) Pull(repo string, i int, watchers ...string) httpapi.Pull {
	p.t.Helper()
	pull, err := p.Client.CreatePull(context.Background(), httpapi.NewPull{
		Repo: repo, Source: fmt.Sprintf("feature-%d", i), Target: "main", Title: fmt.Sprintf("Feature %d", i), Watchers: watchers,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return pull
}

// Merge asks for a merge and answers the operation's id.
func (p *Process) Merge(pull httpapi.Pull) string {
	p.t.Helper()
	a, err := p.Client.MergePull(context.Background(), pull.ID, "")
	if err != nil {
		p.t.Fatal(err)
	}
	return a.OperationID
}

// MergesInGit lists the operation ids of the merges on a branch's first-parent
// line, newest first, as git itself has them.
func (c *Cluster) MergesInGit(repo, branch string) []string {
	c.t.Helper()
	out := Git(c.t, filepath.Join(c.Dir, "repos", repo+".git"), "log", "--first-parent", "--format=%(trailers:key=Mergeflow-Operation,valueonly,separator=%x2C)", branch)
	var ids []string
	for line := range strings.SplitSeq(out, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			ids = append(ids, line)
		}
	}
	return ids
}
