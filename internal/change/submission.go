package change

import (
	"fmt"
	"path"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Submission is a change as it is asked for: change.yaml, or the API's body.
type Submission struct {
	Subject     string
	Target      string
	Project     string
	Base        string // empty: the repository's default branch
	Title       string
	Description string
	Files       []store.Input
	Labels      []string
	Ext         map[string]any
	Order       saga.Order // empty: as configured
}

// The limits of a submission.
const (
	MaxFiles      = 500
	MaxFileBytes  = 1 << 20
	MaxTotalBytes = 4 << 20
	maxPath       = 1024
	maxSegment    = 255
	maxName       = 200
	maxTitle      = 255
	// MaxDescription is in bytes, like the forge's limit, and leaves room for what
	// is written below a description, the operation's trailer.
	MaxDescription = forge.MaxDescription - 1<<10
	maxLabels      = 50
	maxExt         = 16 << 10
)

// Invalid is bad input: every field that is wrong, and why.
type Invalid struct {
	Fields []FieldError
}

// FieldError is one bad field, by its path in the body.
type FieldError struct {
	Field  string
	Detail string
}

func (i *Invalid) Error() string {
	var out []string
	for _, f := range i.Fields {
		out = append(out, f.Field+": "+f.Detail)
	}
	return strings.Join(out, "; ")
}

// check collects all that is wrong with a submission by itself; what depends on
// the repository is looked at later.
func (s *Submission) check() *Invalid {
	var bad Invalid
	add := func(field, format string, a ...any) {
		bad.Fields = append(bad.Fields, FieldError{field, fmt.Sprintf(format, a...)})
	}
	text := func(field, v string, required bool, limit int) {
		switch {
		case required && strings.TrimSpace(v) == "":
			add(field, "is required")
		case !utf8.ValidString(v):
			add(field, "is not valid UTF-8")
		case strings.ContainsRune(v, 0):
			add(field, "must not hold a NUL character")
		case utf8.RuneCountInString(v) > limit:
			add(field, "has more than %d characters", limit)
		}
	}
	line := func(field, v string, required bool, limit int) {
		text(field, v, required, limit)
		switch {
		case strings.ContainsAny(v, "\r\n"):
			add(field, "must be one line")
		case strings.ContainsFunc(strings.ReplaceAll(v, "\x00", ""), unicode.IsControl):
			add(field, "must not hold control characters")
		}
	}
	for _, f := range []struct{ name, v string }{{"subject", s.Subject}, {"target", s.Target}} {
		line(f.name, f.v, true, maxName)
		if f.v == "." || f.v == ".." {
			add(f.name, "must not be %q", f.v)
		}
	}
	line("project", s.Project, true, maxName)
	line("base", s.Base, false, maxName)
	line("title", s.Title, true, maxTitle)
	text("description", s.Description, false, len(s.Description))
	if len(s.Description) > MaxDescription {
		add("description", "has more than %d bytes", MaxDescription)
	}
	if len(s.Labels) > maxLabels {
		add("labels", "more than %d", maxLabels)
	}
	for i, l := range s.Labels {
		line(fmt.Sprintf("labels[%d]", i), l, true, 100)
		if strings.Contains(l, ",") {
			add(fmt.Sprintf("labels[%d]", i), "must not hold a comma")
		}
	}
	if _, reserved := s.Ext["mrId"]; reserved {
		add("ext.mrId", "is reserved: mergeflow sets it")
	}
	if s.Ext != nil {
		raw := saga.Patch(s.Ext)
		switch {
		case len(raw) > maxExt:
			add("ext", "has more than %d bytes", maxExt)
		case strings.Contains(string(raw), `\u0000`):
			add("ext", "must not hold a NUL character")
		}
	}
	if s.Order != "" && s.Order != ApprovalFirst && s.Order != MRFirst {
		add("order", "must be %s or %s", ApprovalFirst, MRFirst)
	}
	s.checkFiles(add)
	if len(bad.Fields) == 0 {
		return nil
	}
	return &bad
}

func (s *Submission) checkFiles(add func(field, format string, a ...any)) {
	if len(s.Files) == 0 {
		add("files", "is required: at least one file")
	}
	if len(s.Files) > MaxFiles {
		add("files", "more than %d files", MaxFiles)
		return
	}
	total := 0
	seen := map[string]int{}
	for i, f := range s.Files {
		field := fmt.Sprintf("files[%d]", i)
		why := badPath(f.Path)
		if why == "" && f.Action != "delete" {
			why = longName(f.Path)
		}
		if why != "" {
			add(field+".path", "%s", why)
		} else if j, dup := seen[f.Path]; dup {
			add(field+".path", "is the same as files[%d].path", j)
		}
		seen[f.Path] = i
		switch f.Action {
		case "create", "update", "upsert":
		case "delete":
			if f.Content != "" {
				add(field+".content", "a deleted file has no content")
			}
		case "":
			add(field+".action", "is required: create, update, upsert or delete")
		default:
			add(field+".action", "must be create, update, upsert or delete, not %q", f.Action)
		}
		if !utf8.ValidString(f.Content) {
			add(field+".content", "is not valid UTF-8")
		} else if strings.ContainsRune(f.Content, 0) {
			add(field+".content", "must not hold a NUL character")
		}
		if len(f.Content) > MaxFileBytes {
			add(field+".content", "has more than %d bytes", MaxFileBytes)
		}
		total += len(f.Content)
	}
	if total > MaxTotalBytes {
		add("files", "have more than %d bytes in all", MaxTotalBytes)
	}
	s.checkNesting(add, seen)
}

// checkNesting refuses a file that another file of the same change needs as a folder.
func (s *Submission) checkNesting(add func(field, format string, a ...any), seen map[string]int) {
	paths := make([]string, 0, len(seen))
	for p := range seen {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	for _, p := range paths {
		for dir := path.Dir(p); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if j, both := seen[dir]; both && s.Files[j].Action != "delete" && s.Files[seen[p]].Action != "delete" {
				add(fmt.Sprintf("files[%d].path", seen[p]), "lies below files[%d].path, which is a file", j)
			}
		}
	}
}

// badPath says why a path can't be written to in a repository; empty is fine.
func badPath(p string) string {
	switch {
	case p == "":
		return "is required"
	case len(p) > maxPath:
		return fmt.Sprintf("has more than %d bytes", maxPath)
	case !utf8.ValidString(p):
		return "is not valid UTF-8"
	case strings.HasPrefix(p, "/"):
		return "must be relative to the repository"
	case strings.Contains(p, `\`):
		return `must not hold a backslash`
	}
	for _, r := range p {
		if r < 0x20 || r == 0x7f {
			return "must not hold control characters"
		}
	}
	for seg := range strings.SplitSeq(p, "/") {
		switch {
		case seg == "":
			return "must not hold an empty segment"
		case seg == "." || seg == "..":
			return fmt.Sprintf("must not hold %q", seg)
		case isDotGit(seg):
			return "must not lead into .git"
		}
	}
	return ""
}

// longName refuses a name that git keeps and no common file system can: it would
// be merged, and nobody could check it out. One that is there can be deleted.
func longName(p string) string {
	for seg := range strings.SplitSeq(p, "/") {
		if len(seg) > maxSegment {
			return fmt.Sprintf("holds a name of more than %d bytes, which no file system takes", maxSegment)
		}
	}
	return ""
}

// isDotGit recognises the names that some file system takes for .git: case
// folded, NTFS's short name, trailing dots and spaces, a stream behind a colon,
// and HFS+'s invisible characters.
func isDotGit(seg string) bool {
	seg, _, _ = strings.Cut(seg, ":")
	seg = strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return r
	}, seg)
	seg = strings.ToLower(strings.TrimRight(seg, ". "))
	return seg == ".git" || seg == "git~1"
}
