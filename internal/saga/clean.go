package saga

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes remote text (error bodies, titles) safe to store and to show:
// valid UTF-8, no NUL and no other control character but space, line breaks
// folded to spaces, at most limit bytes with an ellipsis where it was cut.
func Clean(s string, limit int) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	const dots = "…"
	cut := max(0, limit-len(dots))
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + dots
}
