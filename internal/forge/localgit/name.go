package localgit

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxName   = 100 // bytes of a repository's name
	maxTitle  = 500
	maxPerson = 200
)

// CheckName refuses what can't be a repository's name. A name is one or more
// segments of letters, digits, ".", "_" and "-", joined by "/". No segment
// begins with a dot or a dash, or ends in .git or .lock: so no repository lies
// inside another one's directory, and a name is never an option or a way out.
func CheckName(name string) error {
	if name == "" {
		return fmt.Errorf("a repository needs a name")
	}
	if len(name) > maxName {
		return fmt.Errorf("a repository's name has at most %d characters", maxName)
	}
	for part := range strings.SplitSeq(name, "/") {
		lower := strings.ToLower(part)
		switch {
		case part == "":
			return fmt.Errorf("%q has an empty part", name)
		case part[0] == '.' || part[0] == '-':
			return fmt.Errorf("a part of %q begins with %q", name, part[:1])
		case strings.Contains(part, ".."):
			return fmt.Errorf(`%q holds ".."`, name)
		case strings.HasSuffix(lower, ".git"), strings.HasSuffix(lower, ".lock"), part[len(part)-1] == '.':
			return fmt.Errorf("a part of %q ends in .git, .lock or a dot", name)
		}
		for i := range len(part) {
			c := part[i]
			if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
				return fmt.Errorf("%q may hold letters, digits, . _ - and / only", name)
			}
		}
	}
	return nil
}

// checkLine refuses a text that is no single line of at most limit bytes.
func checkLine(s string, limit int) error {
	if strings.ContainsFunc(s, unicode.IsControl) {
		return fmt.Errorf("must be one line without control characters")
	}
	return checkText(s, limit)
}

// checkText refuses what neither the database nor a commit can hold.
func checkText(s string, limit int) error {
	switch {
	case len(s) > limit:
		return fmt.Errorf("is longer than %d bytes", limit)
	case !utf8.ValidString(s), strings.ContainsRune(s, 0):
		return fmt.Errorf("must be valid UTF-8 without NUL")
	}
	return nil
}

// checkEach refuses lists with empty, repeated or unprintable entries.
func checkEach(list []string, what string) error {
	seen := map[string]bool{}
	for _, s := range list {
		switch err := checkLine(s, maxPerson); {
		case err != nil:
			return fmt.Errorf("%s %q %w", what, s, err)
		case strings.TrimSpace(s) == "" || strings.TrimSpace(s) != s:
			return fmt.Errorf("a %s must have a name without space around it", what)
		case seen[s]:
			return fmt.Errorf("%s %q is named twice", what, s)
		}
		seen[s] = true
	}
	return nil
}
