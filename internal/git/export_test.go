package git

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestExport(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	tree := map[string]string{
		"a": "100644 a", "run.sh": "100755 #!/bin/sh", "deep/er/file": "100644 deep", "empty": "100644 ",
		"link": "120000 deep/er", "deep/up": "120000 ../a", "deep/er/top": "120000 ../..", "dangling": "120000 ./nowhere",
		"sub": ModeSubmodule + " " + someSubmodule, ".gitattributes": "100644 a export-ignore\n* text eol=crlf\n", "lines": "100644 1\n2\n",
	}
	commit := raw(t, r, "main", tree)
	dir := t.TempDir()
	if err := r.Export(t.Context(), commit, dir); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			if info.Mode().Perm() != 0o755 {
				t.Errorf("%s: %v", name, info.Mode())
			}
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			got[name] = "120000 " + target
			return err
		default:
			content, err := os.ReadFile(path)
			mode := map[fs.FileMode]string{0o644: ModeFile, 0o755: ModeExecutable}[info.Mode()]
			got[name] = mode + " " + string(content)
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	delete(tree, "sub")
	if diff := cmp.Diff(tree, got); diff != "" {
		t.Error(diff)
	}
	if err := r.Export(t.Context(), commit, dir); err == nil || strings.Contains(err.Error(), dir) {
		t.Errorf("an export over another one: %v", err)
	}
}

func TestExportRefusesLinksThatLeadOutside(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	for _, target := range []string{"/etc/passwd", "../..", "../../x", "../x/../../../y", "../here/../../..", "x/../y", strings.Repeat("a", 5000)} {
		commit := raw(t, r, "main", map[string]string{"here": "120000 .", "d/link": "120000 " + target})
		out := t.TempDir()
		dir := filepath.Join(out, "in")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := r.Export(t.Context(), commit, dir); err == nil || !strings.Contains(err.Error(), "d/link") {
			t.Errorf("%.30q: %v", target, err)
		}
		if left, err := os.ReadDir(out); err != nil || len(left) != 1 {
			t.Errorf("%.30q: something lies outside: %v, %v", target, left, err)
		}
	}
}

// A tree that no git would make: names that lead out, or into .git.
func TestExportRefusesForgedTrees(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	blob, err := r.StoreBlob(ctx, "evil")
	if err != nil {
		t.Fatal(err)
	}
	link, err := r.StoreBlob(ctx, "../victim")
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string][]Entry{
		"..":    {{Path: "..", Mode: ModeDir}},
		".git":  {{Path: ".git", Mode: ModeDir}},
		"twice": {{Path: "x", Mode: ModeSymlink, Blob: link}, {Path: "x", Mode: ModeDir}},
	} {
		inner := newFolder("", nil)
		inner.entries["f"] = Entry{Path: "f", Mode: ModeFile, Blob: blob}
		var objects []object
		keep := func(o object) string { objects = append(objects, o); return o.id() }
		sub := inner.write(keep)
		var content []byte
		for _, e := range list {
			if e.Mode == ModeDir {
				e.Blob = sub
			}
			one := newFolder("", nil)
			one.entries[e.Path] = e
			one.write(func(o object) string { content = append(content, o.content...); return "" })
		}
		root := keep(object{kindTree, content})
		if err := r.store(ctx, objects, ""); err != nil {
			t.Fatal(err)
		}
		sha, err := r.CommitTree(ctx, NewCommit{Tree: root, Message: "forged", When: time.Unix(1, 0)})
		if err != nil {
			t.Fatal(err)
		}
		out := t.TempDir()
		for _, d := range []string{"in", "victim"} {
			if err := os.Mkdir(filepath.Join(out, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Export(ctx, sha, filepath.Join(out, "in")); err == nil {
			t.Errorf("%s was exported", name)
		}
		if left, err := os.ReadDir(filepath.Join(out, "victim")); err != nil || len(left) != 0 {
			t.Errorf("%s: written outside: %v, %v", name, left, err)
		}
		if left, err := os.ReadDir(out); err != nil || len(left) != 2 {
			t.Errorf("%s: written outside: %v, %v", name, left, err)
		}
	}
}

func TestExportOfNothing(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	if err := r.Export(t.Context(), strings.Repeat("1", 40), t.TempDir()); !errors.Is(err, ErrNotFound) {
		t.Errorf("a missing commit: %v", err)
	}
	gone := filepath.Join(t.TempDir(), "gone")
	if err := r.Export(t.Context(), strings.Repeat("1", 40), gone); err == nil || strings.Contains(err.Error(), gone) {
		t.Errorf("a missing folder: %v", err)
	}
	commit := commit(t, r, "main", "", map[string]string{"a": "1"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Export(ctx, commit, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
