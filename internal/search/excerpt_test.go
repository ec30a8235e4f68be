package search_test

import (
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/search"
)

func TestExcerpt(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 1000) + "X" + strings.Repeat("b", 1000)
	for _, tc := range []struct {
		line   string
		before int
		want   string
	}{
		{"", 0, ""},
		{"\tkept as it is  ", 3, "\tkept as it is  "},
		{"\x1b[31mred\x07\r", 0, "[31mred"},
		{long, 1000, "…" + strings.Repeat("a", 100) + "X" + strings.Repeat("b", 399) + "…"},
		{long, 0, strings.Repeat("a", 500) + "…"},
		{long, 2000, "…" + strings.Repeat("b", 500)},
		{long, 9999, "…" + strings.Repeat("b", 500)},
		{strings.Repeat("é", 400), 0, strings.Repeat("é", 400)},
	} {
		if got := search.Excerpt(tc.line, tc.before); got != tc.want {
			t.Errorf("%.20q at %d: %q", tc.line, tc.before, got)
		}
	}
}
