package localgit

import (
	"crypto/rand"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/forge"
)

// Whoever wires the forge and says nothing of pushes gets a bound all the same.
func TestPushesAreBoundedByDefault(t *testing.T) {
	t.Parallel()
	if limit := New(Options{}).MaxPush; limit != 1<<30 {
		t.Errorf("the default is %d bytes", limit)
	}
	if limit := New(Options{MaxPush: 5}).MaxPush; limit != 5 {
		t.Errorf("asked for 5 bytes, got %d", limit)
	}
}

// A push over the limit is told so, whether its length is known beforehand or
// it comes in chunks, and leaves nothing.
func TestAPushOverTheLimitIsRefused(t *testing.T) {
	t.Parallel()
	for name, buffer := range map[string]string{"in chunks": "65536", "length known": "100000000"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.host.MaxPush = 256 << 10
			if _, err := r.host.CreateRepository(t.Context(), forge.Repository{Name: "app"}); err != nil {
				t.Fatal(err)
			}
			push := func(size int, branch string) error {
				dir := t.TempDir()
				content := make([]byte, size)
				_, _ = rand.Read(content)
				if err := os.WriteFile(filepath.Join(dir, "blob"), content, 0o600); err != nil {
					t.Fatal(err)
				}
				for _, args := range [][]string{{"init", "-q"}, {"config", "core.compression", "0"}, {"add", "."}, {"commit", "-q", "-m", "blob"}} {
					if _, err := r.git(t.Context(), dir, args...); err != nil {
						t.Fatal(err)
					}
				}
				_, err := r.git(t.Context(), dir, "-c", "http.postBuffer="+buffer, "push", "-q", r.url+"/git/app.git", "HEAD:refs/heads/"+branch)
				return err
			}
			if err := push(100<<10, "fits"); err != nil {
				t.Fatal(err)
			}
			before := r.stored("app")
			err := push(2<<20, "over")
			if err == nil || !strings.Contains(err.Error(), "pack exceeds maximum allowed size") {
				t.Errorf("the client was told: %v", err)
			}
			if after := r.stored("app"); strings.Join(after, "\n") != strings.Join(before, "\n") {
				t.Errorf("before:\n%s\nafter:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
			}
		})
	}
}

// stored lists a repository's objects and branches.
func (r *rig) stored(project string) []string {
	r.Helper()
	var files []string
	top := r.host.repo(project).Dir
	for _, below := range []string{"objects", "refs"} {
		err := filepath.WalkDir(filepath.Join(top, below), func(file string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				files = append(files, file)
			}
			return err
		})
		if err != nil {
			r.Fatal(err)
		}
	}
	return files
}
