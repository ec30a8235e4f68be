package httpapi_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/webui"
)

func TestPagesAreServedAtTheirLinks(t *testing.T) {
	t.Parallel()
	f := start(t, func(o *httpapi.Options) { o.Page = webui.New(o.Operations(), o.Log) })
	f.repo("shop/app", "x")
	m, err := f.client.MergePull(t.Context(), f.pull("shop/app", "x").ID, "")
	if err != nil {
		t.Fatal(err)
	}
	op := f.until(m.OperationID, httpapi.Operation.Final)
	for _, path := range []string{"/", "/?flow=pull&status=merged", strings.TrimPrefix(op.Links.Page, f.url)} {
		a := f.do("GET", path, "")
		if a.status != 200 || !strings.Contains(a.body, "Merge x") || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	f.do("POST", "/", "").refused(t, http.StatusMethodNotAllowed, "method-not-allowed")
}

// The stock client pushes and clones through every guard of the API.
func TestGitPassesThrough(t *testing.T) {
	t.Parallel()
	f := start(t)
	r := f.repo("shop/app", "x")
	dir := filepath.Join(t.TempDir(), "clone")
	git := func(args ...string) string {
		c := exec.CommandContext(t.Context(), "git", args...)
		c.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1", "HOME="+t.TempDir())
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	git("clone", "-q", r.CloneURL, dir)
	large := strings.Repeat("0123456789abcdef", 200_000) // 3 MB: more than an API body may have
	if err := os.WriteFile(filepath.Join(dir, "large"), []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	git("-C", dir, "add", "large")
	git("-C", dir, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "large")
	git("-C", dir, "-c", "core.compression=0", "push", "-q", "origin", "HEAD:refs/heads/large")
	if size := f.git("shop/app", "", "cat-file", "-s", "large:large"); size != "3200000" {
		t.Errorf("%s bytes arrived", size)
	}
	if a := f.do("GET", "/v1/repos", ""); a.status != 200 {
		t.Errorf("the API after it: %d", a.status)
	}
}
