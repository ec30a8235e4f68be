package change

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mergeflow/mergeflow/internal/store"
)

func valid() Submission {
	return Submission{Subject: "team", Target: "prod/eu/quota", Project: "config", Title: "Raise it",
		Files: []store.Input{{Path: "a/b.yaml", Action: "upsert", Content: "1"}}}
}

func TestAValidSubmissionPasses(t *testing.T) {
	t.Parallel()
	s := valid()
	if bad := s.check(); bad != nil {
		t.Fatal(bad)
	}
}

// Each bad field is named; the others are not blamed.
func TestBadFieldsAreNamed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3000)
	for name, c := range map[string]struct {
		field string
		spoil func(*Submission)
	}{
		"no subject":         {"subject", func(s *Submission) { s.Subject = " " }},
		"subject of dots":    {"subject", func(s *Submission) { s.Subject = ".." }},
		"target of a dot":    {"target", func(s *Submission) { s.Target = "." }},
		"NUL in target":      {"target", func(s *Submission) { s.Target = "a\x00b" }},
		"two-line title":     {"title", func(s *Submission) { s.Title = "a\nb" }},
		"escape in title":    {"title", func(s *Submission) { s.Title = "a\x1b[2Jb" }},
		"tab in target":      {"target", func(s *Submission) { s.Target = "a\tb" }},
		"long title":         {"title", func(s *Submission) { s.Title = long }},
		"broken description": {"description", func(s *Submission) { s.Description = "\xff" }},
		"no files":           {"files", func(s *Submission) { s.Files = nil }},
		"absolute path":      {"files[0].path", func(s *Submission) { s.Files[0].Path = "/etc/passwd" }},
		"upward path":        {"files[0].path", func(s *Submission) { s.Files[0].Path = "a/../../b" }},
		"dot segment":        {"files[0].path", func(s *Submission) { s.Files[0].Path = "a/./b" }},
		"empty segment":      {"files[0].path", func(s *Submission) { s.Files[0].Path = "a//b" }},
		"trailing slash":     {"files[0].path", func(s *Submission) { s.Files[0].Path = "a/" }},
		"into .git":          {"files[0].path", func(s *Submission) { s.Files[0].Path = "x/.git/hooks/pre-push" }},
		".git by case":       {"files[0].path", func(s *Submission) { s.Files[0].Path = ".GiT/config" }},
		".git by NTFS":       {"files[0].path", func(s *Submission) { s.Files[0].Path = "git~1/config" }},
		".git by dots":       {"files[0].path", func(s *Submission) { s.Files[0].Path = ".git. ./config" }},
		".git by stream":     {"files[0].path", func(s *Submission) { s.Files[0].Path = ".git::$INDEX_ALLOCATION/x" }},
		".git by HFS":        {"files[0].path", func(s *Submission) { s.Files[0].Path = ".g\u200cit/config" }},
		"control character":  {"files[0].path", func(s *Submission) { s.Files[0].Path = "a\nb" }},
		"backslash":          {"files[0].path", func(s *Submission) { s.Files[0].Path = `a\b` }},
		"long path":          {"files[0].path", func(s *Submission) { s.Files[0].Path = long }},
		"name no disk takes": {"files[0].path", func(s *Submission) { s.Files[0].Path = "a/" + strings.Repeat("x", 256) }},
		"unknown action":     {"files[0].action", func(s *Submission) { s.Files[0].Action = "chmod" }},
		"no action":          {"files[0].action", func(s *Submission) { s.Files[0].Action = "" }},
		"NUL in content":     {"files[0].content", func(s *Submission) { s.Files[0].Content = "a\x00" }},
		"deleted content":    {"files[0].content", func(s *Submission) { s.Files[0].Action = "delete" }},
		"large content":      {"files[0].content", func(s *Submission) { s.Files[0].Content = strings.Repeat("x", MaxFileBytes+1) }},
		"path twice":         {"files[1].path", func(s *Submission) { s.Files = append(s.Files, s.Files[0]) }},
		"file below a file":  {"files[1].path", func(s *Submission) { s.Files = append(s.Files, store.Input{Path: "a/b.yaml/c", Action: "upsert"}) }},
		"too many files":     {"files", func(s *Submission) { s.Files = make([]store.Input, MaxFiles+1) }},
		"reserved ext":       {"ext.mrId", func(s *Submission) { s.Ext = map[string]any{"mrId": 1} }},
		"NUL in ext":         {"ext", func(s *Submission) { s.Ext = map[string]any{"a": "\x00"} }},
		"large ext":          {"ext", func(s *Submission) { s.Ext = map[string]any{"a": strings.Repeat("x", maxExt)} }},
		"label of two":       {"labels[0]", func(s *Submission) { s.Labels = []string{"a,b"} }},
		"too many labels":    {"labels", func(s *Submission) { s.Labels = slices.Repeat([]string{"a"}, maxLabels+1) }},
		"long label":         {"labels[0]", func(s *Submission) { s.Labels = []string{strings.Repeat("x", 101)} }},
		"unknown order":      {"order", func(s *Submission) { s.Order = "random" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := valid()
			c.spoil(&s)
			bad := s.check()
			if bad == nil {
				t.Fatal("it passed")
			}
			if len(bad.Fields) != 1 || bad.Fields[0].Field != c.field || bad.Fields[0].Detail == "" {
				t.Errorf("blamed: %v", bad.Fields)
			}
		})
	}
}

// A path that passes leads nowhere but below the repository's root.
func TestAnyPathThatPassesStaysInside(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		segment := rapid.OneOf(rapid.SampledFrom([]string{"..", ".", "", ".git", ".GIT ", "a", "b.yaml", "git~1", "\x00"}), rapid.String())
		p := strings.Join(rapid.SliceOfN(segment, 1, 5).Draw(t, "segments"), "/")
		if badPath(p) != "" {
			return
		}
		for seg := range strings.SplitSeq(p, "/") {
			if seg == "" || seg == "." || seg == ".." || strings.EqualFold(strings.TrimRight(seg, " ."), ".git") || strings.ContainsAny(seg, "\x00\n\\") {
				t.Fatalf("%q passed", p)
			}
		}
	})
}
