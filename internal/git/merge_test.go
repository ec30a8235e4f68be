package git

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMergeTree(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	base := commit(t, r, "main", "", map[string]string{"f.txt": lines(20, nil), "g.txt": "g\n"})
	ours := commit(t, r, "main", base, map[string]string{"f.txt": lines(20, map[int]string{2: "ours"})})
	clean := commit(t, r, "clean", base, map[string]string{"f.txt": lines(20, map[int]string{17: "theirs"})})
	clash := commit(t, r, "clash", base, map[string]string{"f.txt": lines(20, map[int]string{2: "theirs"}), "g.txt": "other\n"})
	alone := commit(t, r, "alone", "", map[string]string{"d.txt": "d"})

	m, err := r.MergeTree(ctx, ours, clean)
	if err != nil || len(m.Conflicts) != 0 {
		t.Fatalf("MergeTree = %+v, %v", m, err)
	}
	c := NewCommit{Tree: m.Tree, Parents: []string{ours, clean}, Name: "Ada <evil>\n", Email: "ada@example.com", When: time.Unix(1800000000, 5), Message: "Title\n\nBody\n\n\n"}
	sha, err := r.CommitTree(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Commit(ctx, sha)
	want := Commit{SHA: sha, Tree: m.Tree, Parents: []string{ours, clean}, AuthorName: "Ada evil", Author: "ada@example.com", When: time.Unix(1800000000, 0).UTC(), Message: "Title\n\nBody\n"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("commit: %v\n%s", err, diff)
	}
	if again, err := r.CommitTree(ctx, c); err != nil || again != sha {
		t.Errorf("the same value made another commit: %s, %v", again, err)
	}
	var merged string
	if err := r.Tree(ctx, sha, func(e Entry) error {
		if e.Path == "f.txt" {
			return r.Blobs(ctx, []string{e.Blob}, func(_ int, content []byte) error { merged = string(content); return nil })
		}
		return nil
	}); err != nil || merged != lines(20, map[int]string{2: "ours", 17: "theirs"}) {
		t.Errorf("merged content %q, %v", merged, err)
	}
	if m, err := r.MergeTree(ctx, ours, clash); err != nil || !cmp.Equal(m.Conflicts, []string{"f.txt"}) {
		t.Errorf("conflicts = %+v, %v", m, err)
	}
	if _, err := r.MergeTree(ctx, ours, alone); !errors.Is(err, ErrUnrelated) {
		t.Errorf("merge of strangers: %v", err)
	}
	if _, err := r.MergeTree(ctx, ours, strings.Repeat("1", 40)); !errors.Is(err, ErrNotFound) {
		t.Errorf("merge of nothing: %v", err)
	}
	if _, err := r.MergeTree(ctx, ours, "--help"); err == nil {
		t.Error("an option was taken for a commit")
	}
}

func TestCommitTreeTakesAnybody(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	tree, err := r.TreeOf(ctx, commit(t, r, "main", "", map[string]string{"a": "a"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"", "...", "<>", "\"'", "\xff\xfe", strings.Repeat("ä", 300), "a\x00b"} {
		sha, err := r.CommitTree(ctx, NewCommit{Tree: tree, Name: who, Email: who, When: time.Unix(0, 0), Message: "bad \xff\x00 text"})
		if err != nil {
			t.Errorf("%q: %v", who, err)
			continue
		}
		if c, err := r.Commit(ctx, sha); err != nil || c.AuthorName == "" || c.Message != "bad \uFFFD\uFFFD text\n" {
			t.Errorf("%q made %+v, %v", who, c, err)
		}
	}
	if _, err := r.CommitTree(ctx, NewCommit{Tree: tree, Message: "x"}); err == nil {
		t.Error("a commit of the year 1 was made")
	}
}

func TestTreeAndDiff(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	a := commit(t, r, "main", "", map[string]string{"keep": "k", "gone": "g", "mod": "1", "dir/ä b\tc": "x"})
	b := commit(t, r, "main", a, map[string]string{"gone": "", "mod": "22", "new": "n"})
	var paths []string
	sizes := map[string]int64{}
	if err := r.Tree(ctx, b, func(e Entry) error {
		paths, sizes[e.Path] = append(paths, e.Path), e.Size
		if e.Mode != ModeFile || !IsSHA(e.Blob) {
			t.Errorf("entry %+v", e)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"dir/ä b\tc", "keep", "mod", "new"}; !cmp.Equal(want, paths) || sizes["mod"] != 2 {
		t.Errorf("tree %q, sizes %v", paths, sizes)
	}
	changes := map[string]byte{}
	var blobs []string
	if err := r.Diff(ctx, a, b, func(c FileChange) error {
		changes[c.Path] = c.Status
		if c.NewBlob != Zero {
			blobs = append(blobs, c.NewBlob)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := map[string]byte{"gone": 'D', "mod": 'M', "new": 'A'}; !cmp.Equal(want, changes) {
		t.Errorf("changes %v", changes)
	}
	var contents []string
	if err := r.Blobs(ctx, blobs, func(_ int, c []byte) error { contents = append(contents, string(c)); return nil }); err != nil || !cmp.Equal(contents, []string{"22", "n"}) {
		t.Errorf("contents %q, %v", contents, err)
	}
	if err := r.Sizes(ctx, blobs, func(i int, n int64) error {
		if int(n) != len(contents[i]) {
			t.Errorf("size %d of %q", n, contents[i])
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	stop := errors.New("enough")
	if err := r.Tree(ctx, b, func(Entry) error { return stop }); err != stop {
		t.Errorf("the callback's error came back as %v", err)
	}
	missing := strings.Repeat("1", 40)
	if err := r.Blobs(ctx, []string{missing}, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("missing blob: %v", err)
	}
	if err := r.Diff(ctx, missing, b, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("diff from nothing: %v", err)
	}
	if err := r.Blobs(ctx, []string{a}, nil); err == nil {
		t.Error("a commit was read as a blob")
	}
}
