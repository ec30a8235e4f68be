package git

import (
	"errors"
	"strings"
	"testing"
)

func TestPatchID(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRepo(t)
	id := func(from, to string) string {
		t.Helper()
		id, err := r.PatchID(ctx, from, to)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	base := commit(t, r, "main", "", map[string]string{"f": lines(100, nil), "bin": "a\x00b", "long": strings.Repeat("y", 200_000) + "\nend\n"})
	change := commit(t, r, "one", base, map[string]string{"f": lines(100, map[int]string{50: "fifty"})})
	// The same change on a base that has other files, and other lines far away.
	moved := commit(t, r, "moved", base, map[string]string{"other": "x\n", "f": "in front\n" + lines(100, map[int]string{90: "ninety"})})
	rebased := commit(t, r, "two", moved, map[string]string{"f": "in front\n" + lines(100, map[int]string{50: "fifty", 90: "ninety"})})
	want := id(base, change)
	if got := id(moved, rebased); got != want {
		t.Errorf("the same change on another base: %s, %s", got, want)
	}
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	if got := id(base, base); got != empty {
		t.Errorf("an empty change: %s", got)
	}
	ids := map[string]string{want: "the change", empty: "nothing"}
	for name, files := range map[string]map[string]string{
		"other text":           {"f": lines(100, map[int]string{50: "fifty!"})},
		"indented":             {"f": lines(100, map[int]string{50: "  fifty"})},
		"elsewhere":            {"f": lines(100, map[int]string{51: "fifty"})},
		"one more file":        {"f": lines(100, map[int]string{50: "fifty"}), "g": "1"},
		"an empty file's name": {"f": lines(100, map[int]string{50: "fifty"}), "h": "\n"},
		"a looks-like-header":  {"f": lines(100, map[int]string{50: "@@ -1,1 +1,1 @@"})},
		"a looks-like-index":   {"f": lines(100, map[int]string{50: "index 1..2"})},
		"binary":               {"bin": "a\x00c"},
		"another binary":       {"bin": "a\x00d"},
		"a long line":          {"long": strings.Repeat("y", 199_999) + "z\nend\n"},
		"a long line's middle": {"long": strings.Repeat("y", 100_000) + "z" + strings.Repeat("y", 99_999) + "\nend\n"},
		"without a line's end": {"long": strings.Repeat("y", 200_000) + "\nend"},
	} {
		got := id(base, commit(t, r, "x", base, files))
		if same, there := ids[got]; there {
			t.Errorf("%s has the id of %s", name, same)
		}
		ids[got] = name
	}
	plain := raw(t, r, "plain", map[string]string{"s": "100644 x", "e": "100644 "})
	exec := raw(t, r, "exec", map[string]string{"s": "100755 x", "e": "100644 "})
	none := raw(t, r, "none", map[string]string{"s": "100644 x"})
	if id(plain, exec) == empty || id(none, plain) == empty || id(none, plain) == id(plain, none) {
		t.Error("a mode or an empty file does not count")
	}
	if _, err := r.PatchID(ctx, base, strings.Repeat("1", 40)); !errors.Is(err, ErrNotFound) {
		t.Errorf("a missing commit: %v", err)
	}
}
