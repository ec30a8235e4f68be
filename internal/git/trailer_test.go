package git

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTrailers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	tip := commit(t, r, "main", "", map[string]string{"a.txt": "a"})
	tree, err := r.TreeOf(ctx, tip)
	if err != nil {
		t.Fatal(err)
	}
	add := func(message string, parents ...string) string {
		t.Helper()
		tip, err = r.CommitTree(ctx, NewCommit{Tree: tree, Parents: append([]string{tip}, parents...), Name: "Ann", When: time.Unix(1700000000, 0), Message: message})
		if err != nil {
			t.Fatal(err)
		}
		return tip
	}
	first := tip
	one := add("One\n\nIts body.\n\nOp: 1\nPull: a!1\n")
	add("Quoted\n\nOp: 2\n\nis in the middle, and Op: 3 on no line of its own")
	add("Of another kind\n\nOther: 1\n")
	two := add("Two\n\nop: 4\nOp: 5\n", first) // a second parent, a repeated trailer, another case
	add("Three\n\nOps: 6\n")
	copied := copyOf(t, r, one, tip)

	var got []string
	err = r.Trailers(ctx, copied, []string{"Op", "Pull"}, func(c Signed) error {
		line := c.SHA + " " + strings.Join(c.Values, ",")
		if c.Copied {
			line += " copied"
		}
		got = append(got, line)
		return nil
	})
	if want := []string{copied + " 1,a!1 copied", two + " 4,", one + " 1,a!1"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("found %q, %v; want %q", got, err, want)
	}

	enough := errors.New("enough")
	calls := 0
	if err := r.Trailers(ctx, copied, []string{"Op"}, func(Signed) error { calls++; return enough }); err != enough || calls != 1 {
		t.Errorf("%d calls, then %v", calls, err)
	}
	never := func(Signed) error { t.Error("called"); return nil }
	if err := r.Trailers(ctx, first, []string{"Op"}, never); err != nil {
		t.Errorf("a history without any: %v", err)
	}
	if err := r.Trailers(ctx, strings.Repeat("1", 40), []string{"Op"}, never); !errors.Is(err, ErrNotFound) {
		t.Errorf("of a missing commit: %v", err)
	}
	for _, keys := range [][]string{nil, {""}, {"a b"}, {"Op", "x,valueonly)"}, {"%H"}} {
		if err := r.Trailers(ctx, tip, keys, never); err == nil {
			t.Errorf("%q is taken as keys", keys)
		}
	}
	if err := r.Trailers(ctx, "main", []string{"Op"}, never); err == nil {
		t.Error("a name is taken as a commit")
	}
}

// copyOf writes a commit again on top of another, as a cherry-pick does.
func copyOf(t *testing.T, r Repo, sha, onto string) string {
	t.Helper()
	c, err := r.Commit(t.Context(), sha)
	if err != nil {
		t.Fatal(err)
	}
	out, err := call{op: "commit-tree", dir: r.Dir, args: []string{"-p", onto, "-F", "-", c.Tree}, stdin: strings.NewReader(c.Message), env: []string{
		"GIT_AUTHOR_NAME=" + c.AuthorName, "GIT_AUTHOR_EMAIL=" + c.Author, "GIT_AUTHOR_DATE=@1700000000 +0000",
		"GIT_COMMITTER_NAME=Bob", "GIT_COMMITTER_EMAIL=bob@example.com", "GIT_COMMITTER_DATE=@1700000001 +0000",
	}}.output(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
