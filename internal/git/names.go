package git

import (
	"fmt"
	"strings"
)

// Zero is the id of nothing: as an expected value it says that the reference
// must not exist.
const Zero = "0000000000000000000000000000000000000000"

// maxRef bounds a reference's length in bytes; a component becomes a file name
// and ".lock" is put behind it.
const (
	maxRef       = 255
	maxComponent = 200
)

// IsSHA says whether s is a full object id: 40 lower-case hexadecimal digits.
func IsSHA(s string) bool {
	if len(s) != 40 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// CheckBranch refuses what can't be a branch's name (without refs/heads/): the
// rules of git check-ref-format, no leading dash, no "HEAD", and a bounded length.
func CheckBranch(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a branch needs a name")
	case name[0] == '-':
		return fmt.Errorf("a branch's name can't begin with a dash")
	case name == "HEAD":
		return fmt.Errorf("a branch can't be called HEAD")
	}
	return checkRef("refs/heads/" + name)
}

// checkRef refuses what git check-ref-format refuses, and anything outside refs/.
func checkRef(ref string) error {
	if !strings.HasPrefix(ref, "refs/") {
		return fmt.Errorf("a reference must begin with refs/")
	}
	if len(ref) > maxRef {
		return fmt.Errorf("the name is longer than %d bytes", maxRef)
	}
	for i := range len(ref) {
		if c := ref[i]; c < ' ' || c == 0x7f || strings.IndexByte(" ~^:?*[\\", c) >= 0 {
			return fmt.Errorf("the name holds the character %q", rune(c))
		}
	}
	switch {
	case strings.Contains(ref, ".."):
		return fmt.Errorf(`the name holds ".."`)
	case strings.Contains(ref, "@{"):
		return fmt.Errorf(`the name holds "@{"`)
	case strings.HasSuffix(ref, "."):
		return fmt.Errorf("the name ends with a dot")
	}
	for part := range strings.SplitSeq(ref, "/") {
		switch {
		case part == "":
			return fmt.Errorf("the name has an empty part")
		case part[0] == '.':
			return fmt.Errorf("a part of the name begins with a dot")
		case strings.HasSuffix(part, ".lock"):
			return fmt.Errorf("a part of the name ends with .lock")
		case len(part) > maxComponent:
			return fmt.Errorf("a part of the name is longer than %d bytes", maxComponent)
		}
	}
	return nil
}

func checkSHAs(ids ...string) error {
	for _, id := range ids {
		if !IsSHA(id) {
			return fmt.Errorf("%.60q is no full commit id (40 hexadecimal digits)", id)
		}
	}
	return nil
}
