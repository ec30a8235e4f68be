package directory

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
)

// maxFlat bounds a name in bytes: file systems take 255, and links are made
// under a longer one.
const maxFlat = 200

// flat is the one name of a project's branch, without a slash, so that no
// project's folder lies in another's. No two pairs share one, and none differ
// in case alone, because some file systems don't tell those apart. A plain
// project on its default branch, which is the empty one, keeps its name.
func flat(project, branch string) string {
	name := escape(project)
	if branch != "" {
		name += "@" + escape(branch)
	}
	if len(name) > maxFlat {
		sum := sha256.Sum256([]byte(name))
		tail := "~" + hex.EncodeToString(sum[:])
		name = name[:maxFlat-len(tail)] + tail
	}
	return name
}

// escape leaves small letters, digits, "-", "_" and dots but a first one.
func escape(s string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' && i > 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}

// isNameOf says whether a flat name is the project's on its default branch, as
// a file system that ignores case would have it.
func isNameOf(name, project string) bool {
	if name == flat(project, "") {
		return true
	}
	plain, err := url.PathUnescape(name)
	return err == nil && strings.EqualFold(plain, project)
}
