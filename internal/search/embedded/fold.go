package embedded

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// fold maps each character to the one that stands for it and all its case
// variants. The number of characters and the line breaks stay as they are, so
// that a place in the folded text is a place in the text.
func fold(s string) string { return strings.Map(foldRune, s) }

func foldRune(r rune) rune {
	if r < utf8.RuneSelf {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}
	smallest := r
	for n := unicode.SimpleFold(r); n != r; n = unicode.SimpleFold(n) {
		smallest = min(smallest, n)
	}
	if smallest < utf8.RuneSelf { // K, the kelvin sign, is a k
		return foldRune(smallest)
	}
	return smallest
}

// asText is the content as text, and false where it is none: a NUL is what
// Git too takes for the mark of a binary file.
func asText(content []byte) (string, bool) {
	if bytes.IndexByte(content, 0) >= 0 {
		return "", false
	}
	return strings.ToValidUTF8(string(content), "\uFFFD"), true
}

// maxTrigrams bounds the filter that a long query makes. Fewer trigrams let
// more candidates through, never a wrong one out.
const maxTrigrams = 64

// filter is the trigram index's expression for "holds every trigram of the
// folded text": quoted strings only, with quotes doubled, so that no text can
// be an operator. It is empty for a text under three characters.
func filter(folded string) string {
	runes := []rune(folded)
	var b strings.Builder
	seen := map[string]bool{}
	for i := 0; i+3 <= len(runes) && len(seen) < maxTrigrams; i++ {
		t := string(runes[i : i+3])
		if seen[t] {
			continue
		}
		seen[t] = true
		if b.Len() > 0 {
			b.WriteByte(' ') // a space is AND
		}
		b.WriteString(`"` + strings.ReplaceAll(t, `"`, `""`) + `"`)
	}
	return b.String()
}
