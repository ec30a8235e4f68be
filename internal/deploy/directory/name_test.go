package directory_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mergeflow/mergeflow/internal/deploy/directory"
)

func TestAPlainProjectKeepsItsName(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"app", "my-app_2.x", "a"} {
		if n := directory.Flat(p, ""); n != p {
			t.Errorf("%s is %s", p, n)
		}
	}
}

func TestNoTwoBranchesShareAName(t *testing.T) {
	t.Parallel()
	names := rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom([]rune("aAbB/.@%~2Ff-_")), 1, 6, -1),
		rapid.SampledFrom([]string{"app", "App", "app/sub", "app%2Fsub", "app@main", ".releases", "ä", "a\u0308", strings.Repeat("A/", 90) + "x", strings.Repeat("A/", 90) + "X"}),
		rapid.StringN(1, 200, -1))
	branches := rapid.OneOf(rapid.Just(""), names)
	rapid.Check(t, func(t *rapid.T) {
		p, b, p2, b2 := names.Draw(t, "project"), branches.Draw(t, "branch"), names.Draw(t, "other"), branches.Draw(t, "its branch")
		n, n2 := directory.Flat(p, b), directory.Flat(p2, b2)
		if strings.EqualFold(n, n2) != (p == p2 && b == b2) {
			t.Fatalf("%q %q is %s, %q %q is %s", p, b, n, p2, b2, n2)
		}
		if len(n) > 200 || strings.ContainsAny(n, "/\x00\\:") || strings.HasPrefix(n, ".") {
			t.Fatalf("%q %q is %q", p, b, n)
		}
	})
}
