package git

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// newRepo is an empty repository whose default branch is main.
func newRepo(t *testing.T) Repo {
	t.Helper()
	r, err := Init(t.Context(), filepath.Join(t.TempDir(), "r.git"), "main")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// commit writes a commit onto branch: parent's files with these changed (an
// empty content removes).
func commit(t *testing.T, r Repo, branch, parent string, files map[string]string) string {
	t.Helper()
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit refs/heads/%s\ncommitter Test <test@example.com> 1700000000 +0000\ndata 5\nwrite\n", branch)
	if parent != "" {
		fmt.Fprintf(&in, "from %s\n", parent)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if files[path] == "" {
			fmt.Fprintf(&in, "D %s\n", path)
			continue
		}
		fmt.Fprintf(&in, "M 100644 inline %s\ndata %d\n%s\n", path, len(files[path]), files[path])
	}
	in.WriteString("\n")
	_, err := call{op: "fast-import", dir: r.Dir, args: []string{"--quiet", "--force", "--date-format=raw"}, stdin: &in}.output(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sha, err := r.Resolve(t.Context(), "refs/heads/"+branch)
	if err != nil {
		t.Fatal(err)
	}
	return sha
}

func lines(n int, changed map[int]string) string {
	var b strings.Builder
	for i := range n {
		if s, ok := changed[i]; ok {
			b.WriteString(s + "\n")
			continue
		}
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never came: %s", what)
		case <-tick.C:
		}
	}
}
