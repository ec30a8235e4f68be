package sqlite

import (
	"fmt"
	"testing"
)

// Places are dealt in rounds over the kinds, the longest-waiting heads first,
// and what one kind leaves goes to the others.
func TestShare(t *testing.T) {
	t.Parallel()
	kinds := func() [][]candidate {
		return [][]candidate{
			{{id: "a", due: 5}, {id: "b", due: 6}, {id: "c", due: 7}},
			{{id: "d", due: 1}},
			{{id: "e", due: 5}, {id: "f", due: 9}},
		}
	}
	for n, want := range []string{"[]", "[d]", "[d a]", "[d a e]", "[d a e b]", "[d a e b f]", "[d a e b f c]", "[d a e b f c]"} {
		var ids []string
		for _, c := range share(kinds(), n) {
			ids = append(ids, c.id)
		}
		if got := fmt.Sprint(ids); got != want {
			t.Errorf("%d places go to %s, want %s", n, got, want)
		}
	}
}
