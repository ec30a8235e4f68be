package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	makeCall   = regexp.MustCompile("`make(?: -s)? ([a-z]+)[^`]*`|\\$ make ([a-z]+)")
	treeFolder = regexp.MustCompile(`(?m)^internal/([a-z]+)/ `)
	makeTarget = regexp.MustCompile(`(?m)^([a-z]+):`)
)

// pages are the Markdown files that people wrote or that are made for them.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = string(b)
		}
	}
	return out
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	links := 0
	for name, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if to == "" || strings.Contains(to, "://") {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), to)); err != nil {
				t.Errorf("%s: link to %s: %v", name, m[1], err)
			}
		}
	}
	if links < 20 {
		t.Errorf("only %d links were found: the pages are not what this test thinks they are", links)
	}
}

func TestPagesNameOnlyTargetsThatExist(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range makeTarget.FindAllStringSubmatch(string(b), -1) {
		targets = append(targets, m[1])
	}
	calls := 0
	for name, text := range pages(t) {
		for _, m := range makeCall.FindAllStringSubmatch(text, -1) {
			calls++
			if call := m[1] + m[2]; !slices.Contains(targets, call) {
				t.Errorf("%s: `make %s` is no target", name, call)
			}
		}
	}
	if calls < 8 {
		t.Errorf("only %d calls of make were found", calls)
	}
}

// The page's tree and the real one are the same, as far as folders of internal go.
func TestArchitecturePageShowsTheTree(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	var there, shown []string
	for _, p := range tree.Packages {
		if rest, ok := strings.CutPrefix(p.Path, "./internal/"); ok {
			folder, _, _ := strings.Cut(rest, "/")
			there = append(there, folder)
		}
	}
	for _, m := range treeFolder.FindAllStringSubmatch(string(text), -1) {
		shown = append(shown, m[1])
	}
	for _, folder := range slices.Compact(there) {
		if !slices.Contains(shown, folder) {
			t.Errorf("docs/architecture.md doesn't show internal/%s", folder)
		}
	}
	for _, folder := range shown {
		if !slices.Contains(there, folder) {
			t.Errorf("docs/architecture.md shows internal/%s, which is not there", folder)
		}
	}
}

// Every decision record is listed, and has the three parts that make it one.
func TestDecisionRecords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(root, "docs", "adr")
	index, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	records := 0
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == "README.md" {
			return err
		}
		records++
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		number, _, _ := strings.Cut(name, "-")
		if !strings.HasPrefix(string(text), "# "+number+": ") {
			t.Errorf("%s does not begin with its number", name)
		}
		for _, part := range []string{"\n## Context\n", "\n## Decision\n", "\n## Consequences\n"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s has no part %q", name, strings.TrimSpace(part))
			}
		}
		if !strings.Contains(string(index), "("+name+")") {
			t.Errorf("%s is not listed in README.md", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if records == 0 {
		t.Error("no records were found")
	}
}
