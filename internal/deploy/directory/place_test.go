package directory_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/deploy/directory"
)

func of(project, branch, commit string) deploy.Release {
	r := release(commit)
	r.Project, r.Branch = project, branch
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// at is the version in a folder; empty where there is none.
func at(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name), "version"))
	if err != nil && !errors.Is(err, os.ErrNotExist) && !strings.Contains(err.Error(), "not a directory") {
		t.Fatal(err)
	}
	return string(b)
}

func want(t *testing.T, dir string, versions map[string]string) {
	t.Helper()
	for name, v := range versions {
		if have := at(t, dir, name); have != v {
			t.Errorf("%s holds %q, not %q", name, have, v)
		}
	}
}

func TestAProjectInAnothersFolderHasOneOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, order := range []string{
		"app app/sub app/sub/deep", "app app/sub/deep app/sub", "app/sub app app/sub/deep",
		"app/sub app/sub/deep app", "app/sub/deep app app/sub", "app/sub/deep app/sub app",
	} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			d, dir, _ := rig(t, line{})
			live := map[string]string{}
			for _, commit := range []string{"a1", "a2"} {
				for project := range strings.FieldsSeq(order) {
					must(t, d.Deploy(t.Context(), of(project, "main", commit)))
					live[project] = commit
					for p, v := range live {
						want(t, dir, map[string]string{directory.Flat(p, ""): v})
						if s, err := d.Look(t.Context(), of(p, "main", v)); err != nil || s != deploy.Live {
							t.Errorf("%s: %s %v", p, s, err)
						}
					}
					// Its own path leads to a project unless it lies in another's.
					if live["app"] == "" {
						want(t, dir, map[string]string{"app/sub": live["app/sub"]})
						if live["app/sub"] == "" {
							want(t, dir, map[string]string{"app/sub/deep": live["app/sub/deep"]})
						}
					}
				}
			}
		})
	}
}

func TestBranchesAreKeptApart(t *testing.T) {
	t.Parallel()
	d, dir, _ := rig(t, line{})
	must(t, d.Deploy(t.Context(), of("app", "main", "m1")))
	must(t, d.Deploy(t.Context(), of("app", "release/1", "r1")))
	must(t, d.Deploy(t.Context(), of("platform/config", "release/1", "p1")))
	want(t, dir, map[string]string{"app": "m1", "app@release%2F1": "r1", "platform%2Fconfig@release%2F1": "p1", "platform/config": ""})
	if s, err := d.Look(t.Context(), of("app", "main", "r1")); err != nil || s != deploy.Absent {
		t.Errorf("another branch's release counts as live: %s %v", s, err)
	}
}

func TestWhatIsLiveIsReplacedOnlyByWhatContainsIt(t *testing.T) {
	t.Parallel()
	d, dir, c := rig(t, line{})
	must(t, d.Deploy(t.Context(), of("app", "main", "m2")))
	err := d.Deploy(t.Context(), of("app", "main", "x9"))
	if err == nil || !strings.Contains(err.Error(), "m2 is live and not in the history of x9") || strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
	must(t, d.Deploy(t.Context(), of("app", "main", "m1"))) // contained
	want(t, dir, map[string]string{"app": "m2"})
	if n := len(c.ids); n != 2 {
		t.Errorf("%d callbacks", n)
	}
	if s, err := d.Look(t.Context(), of("app", "main", "x9")); err != nil || s != deploy.Absent {
		t.Errorf("%s %v", s, err)
	}
	// The way out that the message names.
	must(t, os.Remove(filepath.Join(dir, "app")))
	must(t, d.Deploy(t.Context(), of("app", "main", "x9")))
	want(t, dir, map[string]string{"app": "x9"})
}

// gone is a line whose first commit the repository has no more.
type gone struct{ line }

func (g gone) Contains(ctx context.Context, project, commit, ancestor string) (bool, error) {
	if commit == "m1" {
		return false, errors.New("no such commit")
	}
	return ancestor != "m1" && ancestor <= commit, nil
}

func TestALiveCommitThatIsGoneIsNotReplaced(t *testing.T) {
	t.Parallel()
	d, dir, _ := rig(t, gone{})
	must(t, d.Deploy(t.Context(), of("app", "main", "m1")))
	if err := d.Deploy(t.Context(), of("app", "main", "m2")); err == nil || !strings.Contains(err.Error(), "remove the link app") {
		t.Errorf("%v", err)
	}
	want(t, dir, map[string]string{"app": "m1"})
}

// Folders of a version whose link was the nested path itself.
func TestAnEarlierVersionsFolderGoesOn(t *testing.T) {
	t.Parallel()
	for _, project := range []string{"platform/config", "Shop", "app"} {
		t.Run(project, func(t *testing.T) {
			t.Parallel()
			d, dir, _ := rig(t, line{})
			old := strings.ReplaceAll(project, "/", "%2F")
			must(t, os.MkdirAll(filepath.Join(dir, ".releases", old, "c2"), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, ".releases", old, "c2", "version"), []byte("c2"), 0o600))
			link := filepath.Join(dir, filepath.FromSlash(project))
			must(t, os.MkdirAll(filepath.Dir(link), 0o755))
			must(t, os.Symlink(strings.Repeat("../", strings.Count(project, "/"))+".releases/"+old+"/c2", link))
			for commit, state := range map[string]deploy.State{"c1": deploy.Live, "c2": deploy.Live, "c3": deploy.Absent} {
				if s, err := d.Look(t.Context(), of(project, "main", commit)); err != nil || s != state {
					t.Errorf("%s: %s %v", commit, s, err)
				}
			}
			must(t, d.Deploy(t.Context(), of(project, "main", "c1")))
			want(t, dir, map[string]string{project: "c2"})
			must(t, d.Deploy(t.Context(), of(project, "main", "c3")))
			want(t, dir, map[string]string{project: "c3", directory.Flat(project, ""): "c3"})
		})
	}
}

func TestALookWritesNothing(t *testing.T) {
	t.Parallel()
	d, dir, _ := rig(t, line{})
	if s, err := d.Look(t.Context(), of("platform/config", "main", "c1")); err != nil || s != deploy.Absent {
		t.Fatal(s, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}

func TestAReleaseIsOnTheDiskBeforeItIsLive(t *testing.T) {
	t.Parallel()
	d, dir, _ := rig(t, line{})
	d.BeforeName(func(release string) error {
		if b, err := os.ReadFile(filepath.Join(release, "version")); err != nil || string(b) != "c1" {
			t.Errorf("synced before it is written: %q %v", b, err)
		}
		if have := at(t, dir, "app"); have != "" {
			t.Errorf("%s is live before it is synced", have)
		}
		return errors.New("no disk")
	})
	if err := d.Deploy(t.Context(), of("app", "main", "c1")); err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("%v", err)
	}
	want(t, dir, map[string]string{"app": ""})
}

func TestAProcessThatDiedLeavesNothing(t *testing.T) {
	t.Parallel()
	d, dir, _ := rig(t, line{})
	must(t, os.MkdirAll(filepath.Join(dir, ".releases", "app", ".new-1", "half"), 0o755))
	must(t, d.Deploy(t.Context(), of("app", "main", "c1")))
	if left, err := filepath.Glob(filepath.Join(dir, ".releases", "app", ".new-*")); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}
