package search

import (
	"strings"
	"unicode"
)

// How many characters of a long line a hit shows, and how many of those stand
// before the match.
const (
	shown       = 500
	shownBefore = 100
)

// Excerpt makes a line of somebody's file fit for a hit: without control
// characters but tabs (a terminal would obey them), and of a very long line
// only the part around the match, which begins after so many characters.
func Excerpt(line string, before int) string {
	cut, more := line, ""
	if len(line) > shown {
		if runes := []rune(line); len(runes) > shown {
			from := max(0, min(before-shownBefore, len(runes)-shown))
			cut = string(runes[from : from+shown])
			if from > 0 {
				cut = "…" + cut
			}
			if from+shown < len(runes) {
				more = "…"
			}
		}
	}
	return strings.Map(func(r rune) rune {
		if r != '\t' && unicode.IsControl(r) {
			return -1
		}
		return r
	}, cut) + more
}
