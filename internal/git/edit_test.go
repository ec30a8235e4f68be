package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// raw imports a tree with modes of every kind; the values are "mode content".
func raw(t *testing.T, r Repo, branch string, files map[string]string) string {
	t.Helper()
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit refs/heads/%s\ncommitter Test <test@example.com> 1700000000 +0000\ndata 5\nwrite\n", branch)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		mode, content, _ := strings.Cut(files[path], " ")
		if mode == ModeSubmodule {
			fmt.Fprintf(&in, "M %s %s %s\n", mode, content, path)
			continue
		}
		fmt.Fprintf(&in, "M %s inline %s\ndata %d\n%s\n", mode, path, len(content), content)
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

func listTree(t *testing.T, r Repo, commit string) map[string]string {
	t.Helper()
	files := map[string]string{}
	if err := r.Tree(t.Context(), commit, func(e Entry) error {
		files[e.Path] = e.Mode + " " + e.Blob
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

var someSubmodule = strings.Repeat("5", 40)

func mixed(t *testing.T, r Repo) string {
	return raw(t, r, "main", map[string]string{
		"a": "100644 a", "a.b": "100644 ab", "run.sh": "100755 #!/bin/sh", "link": "120000 a", "linked/dir": "120000 ../deep",
		"deep/er/file": "100644 deep", "deep/er/other": "100644 other", "sub": ModeSubmodule + " " + someSubmodule,
		"a-dir/x": "100644 x", "a0": "100644 a0", "single/only": "100644 only",
	})
}

func TestEdit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	base := mixed(t, r)
	before := listTree(t, r, base)

	big := strings.Repeat("x", 70_000)
	ed, err := r.Edit(ctx, base, []Edit{
		{Path: "a", Content: "new a"},
		{Path: "run.sh", Content: "#!/bin/sh\n:\n"},
		{Path: "single/only", Delete: true},
		{Path: "deep/er/file", Content: "deep"}, // as it is
		{Path: "deep/er/new/one", Content: ""},
		{Path: "a.c/d", Content: big},
		{Path: "zz", Content: big},
		{Path: "never/was", Delete: true},
		{Path: "ü/ä", Content: "ö"},
		// Git sorts a folder as if its name ended in a slash.
		{Path: "s/in", Content: "1"}, {Path: "s-", Content: "1"}, {Path: "s.txt", Content: "1"}, {Path: "s0", Content: "1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.TreeOf(ctx, ed.Tree); !errors.Is(err, ErrNotFound) {
		t.Errorf("the tree is there before it was stored: %v", err)
	}
	if err := ed.Store(ctx); err != nil {
		t.Fatal(err)
	}
	sha, err := r.CommitTree(ctx, NewCommit{Tree: ed.Tree, Parents: []string{base}, Message: "edit", When: time.Unix(1700000000, 0)})
	if err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(before)
	want["a"] = ModeFile + " " + BlobID("new a")
	want["run.sh"] = ModeExecutable + " " + BlobID("#!/bin/sh\n:\n")
	delete(want, "single/only")
	want["deep/er/new/one"] = ModeFile + " " + BlobID("")
	want["a.c/d"] = ModeFile + " " + BlobID(big)
	want["zz"] = want["a.c/d"]
	want["ü/ä"] = ModeFile + " " + BlobID("ö")
	for _, name := range []string{"s/in", "s-", "s.txt", "s0"} {
		want[name] = ModeFile + " " + BlobID("1")
	}
	if diff := cmp.Diff(want, listTree(t, r, sha)); diff != "" {
		t.Error(diff)
	}
	// Git agrees that every object is sound and every tree in order.
	if out, err := (call{op: "fsck", dir: r.Dir, args: []string{"--strict", "--no-dangling", sha}}).output(ctx); err != nil {
		t.Errorf("fsck: %s %v", out, err)
	}
	if err := r.Blobs(ctx, []string{BlobID(big)}, func(_ int, content []byte) error {
		if string(content) != big {
			t.Error("the content is another one")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestEditOfNothingAndOfAll(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	base := commit(t, r, "main", "", map[string]string{"x/y": "1"})
	same, err := r.Edit(ctx, base, []Edit{{Path: "x/y", Content: "1"}, {Path: "gone", Delete: true}, {Path: "x/gone", Delete: true}, {Path: "gone/x", Delete: true}})
	if err != nil || same.Tree != same.Base || len(same.objects) != 0 {
		t.Errorf("an edit of nothing: %+v, %v", same, err)
	}
	none, err := r.Edit(ctx, base, []Edit{{Path: "x/y", Delete: true}})
	if err != nil || none.Tree != "4b825dc642cb6eb9a060e54bf8d69288fbee4904" {
		t.Errorf("the empty tree: %+v, %v", none, err)
	}
	if err := none.Store(ctx); err != nil {
		t.Error(err)
	}
	if _, err := r.Edit(ctx, strings.Repeat("1", 40), nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("an edit of a missing commit: %v", err)
	}
	if _, err := r.Edit(ctx, "main", nil); err == nil {
		t.Error("an edit of a name")
	}
}

func TestEditManyFilesGoesIntoOnePack(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	base := commit(t, r, "main", "", map[string]string{"keep": "1"})
	var edits []Edit
	for i := range 300 {
		edits = append(edits, Edit{Path: fmt.Sprintf("d%d/f%d", i%7, i), Content: fmt.Sprint(i)})
	}
	ed, err := r.Edit(ctx, base, edits)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // again is harmless
		if err := ed.Store(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if packs, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.pack")); err != nil || len(packs) != 1 {
		t.Errorf("packs: %v, %v", packs, err)
	}
	sha, err := r.CommitTree(ctx, NewCommit{Tree: ed.Tree, Parents: []string{base}, Message: "many", When: time.Unix(1, 0)})
	if err != nil || len(listTree(t, r, sha)) != 301 {
		t.Errorf("the commit: %v", err)
	}
}

func TestEditRefusals(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	base := mixed(t, r)
	for _, c := range []struct {
		name  string
		edits []Edit
		index int
		why   string
	}{
		{"a folder", []Edit{{Path: "ok"}, {Path: "deep/er"}}, 1, "is a folder"},
		{"deleting a folder", []Edit{{Path: "deep", Delete: true}}, 0, "is a folder"},
		{"a link", []Edit{{Path: "link"}}, 0, "symbolic link"},
		{"deleting a link", []Edit{{Path: "link", Delete: true}}, 0, "symbolic link"},
		{"through a link", []Edit{{Path: "linked/dir/er/file"}}, 0, `"linked/dir", which is a symbolic link`},
		{"a submodule", []Edit{{Path: "sub"}}, 0, "submodule"},
		{"into a submodule", []Edit{{Path: "sub/x"}}, 0, "submodule"},
		{"below a file", []Edit{{Path: "a/b/c"}}, 0, `"a", which is a file`},
		{"below a file that goes", []Edit{{Path: "a", Delete: true}, {Path: "a/b"}}, 1, "file"},
		{"twice", []Edit{{Path: "n"}, {Path: "n", Delete: true}}, 1, "twice"},
		{"file, then folder", []Edit{{Path: "n"}, {Path: "n/m"}}, 1, "another place"},
		{"folder, then file", []Edit{{Path: "n/m"}, {Path: "n"}}, 1, "another place"},
		{"absolute", []Edit{{Path: "/etc/passwd"}}, 0, "empty part"},
		{"up", []Edit{{Path: "x/../../y"}}, 0, `".."`},
		{"dot", []Edit{{Path: "./x"}}, 0, `"."`},
		{"git", []Edit{{Path: "x/.GIT/config"}}, 0, ".git"},
		{"short git", []Edit{{Path: "GIT~1/config"}}, 0, ".git"},
		{"trailing", []Edit{{Path: ".git. /x"}}, 0, ".git"},
		{"newline", []Edit{{Path: "x\ny"}}, 0, "control"},
		{"NUL", []Edit{{Path: "x\x00y"}}, 0, "control"},
		{"bytes", []Edit{{Path: "\xff"}}, 0, "UTF-8"},
		{"empty", []Edit{{Path: ""}}, 0, "empty"},
		{"long", []Edit{{Path: strings.Repeat("a/", 2100) + "a"}}, 0, "longer"},
	} {
		_, err := r.Edit(t.Context(), base, c.edits)
		p, ok := errors.AsType[*PathError](err)
		if !ok || p.Index != c.index || p.Path != c.edits[c.index].Path || !strings.Contains(p.Why, c.why) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestLookup(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	base := mixed(t, r)
	paths := []string{"a", "run.sh", "none", "deep", "deep/er/file", "deep/none/x", "link", "link/x", "linked/dir/er", "sub", "sub/x", "a/x"}
	got, err := r.Lookup(t.Context(), base, paths)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, e := range got {
		shown = append(shown, e.Mode+" "+e.Path)
	}
	want := []string{"100644 a", "100755 run.sh", " ", "40000 deep", "100644 deep/er/file", " ", "120000 link", "120000 link", "120000 linked/dir",
		"160000 sub", "160000 sub", "100644 a"}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Error(diff)
	}
	if got[0].Blob != BlobID("a") {
		t.Errorf("BlobID = %s, git says %s", BlobID("a"), got[0].Blob)
	}
	if _, err := r.Lookup(t.Context(), base, []string{"ok", "../x"}); err == nil || !strings.Contains(err.Error(), `".."`) {
		t.Errorf("a path that leads out: %v", err)
	}
}

func TestEditEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	base := mixed(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Edit(ctx, base, []Edit{{Path: "x"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Edit = %v", err)
	}
	if _, err := (Repo{Dir: filepath.Join(t.TempDir(), "gone")}).Edit(t.Context(), base, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("Edit of no repository = %v", err)
	}
}

func TestPatch(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	base := commit(t, r, "main", "", map[string]string{"quotas/ü.yaml": "limit: 100\nname: x\n", "gone": "bye\n"})
	before := files(t, r.Dir)
	ed, err := r.Edit(ctx, base, []Edit{{Path: "quotas/ü.yaml", Content: "limit: 200\nname: x\n"}, {Path: "gone", Delete: true}, {Path: "n", Content: lines(50, nil)}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := ed.Patch(ctx, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"--- a/quotas/ü.yaml", "-limit: 100", "+limit: 200", " name: x", "deleted file mode 100644", "+line 49"} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("the diff lacks %q:\n%s", line, text)
		}
	}
	short, err := ed.Patch(ctx, 100)
	if err != nil || len(short) > 100 || short == "" || !strings.HasSuffix(short, "\n") || !strings.HasPrefix(text, short) {
		t.Errorf("cut at 100 bytes: %d bytes %q, %v", len(short), short, err)
	}
	if diff := cmp.Diff(before, files(t, r.Dir)); diff != "" {
		t.Errorf("something stayed in the repository: %s", diff)
	}
	same, err := r.Edit(ctx, base, []Edit{{Path: "gone", Content: "bye\n"}})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := same.Patch(ctx, 100); text != "" || err != nil {
		t.Errorf("the diff of nothing: %q, %v", text, err)
	}
}

// files lists all that lies below a folder.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return names
}
