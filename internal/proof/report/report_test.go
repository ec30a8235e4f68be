package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// passing is what go test prints of tests that pass.
func passing(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		i := strings.LastIndex(name, ".")
		pkg, test := module+name[:i], name[i+1:]
		for _, line := range []string{
			`{"Action":"output","Package":"PKG","Test":"TEST","Output":"    x_test.go:1: counted: 7 cells\n"}`,
			`{"Action":"pass","Package":"PKG","Test":"TEST/a/b","Elapsed":1}`,
			`{"Action":"pass","Package":"PKG","Test":"TEST/a","Elapsed":1}`,
			`{"Action":"pass","Package":"PKG","Test":"TEST","Elapsed":1}`,
		} {
			b.WriteString(strings.NewReplacer("PKG", pkg, "TEST", test).Replace(line) + "\n")
		}
	}
	return b.String()
}

func all() (names []string) {
	for _, g := range groups {
		for _, c := range g.claims {
			names = append(names, c.tests...)
		}
	}
	return names
}

func TestPageOfAPassingRun(t *testing.T) {
	t.Parallel()
	r, err := read(strings.NewReader(passing(all()...)), io.Discard)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		t.Fatal(err)
	}
	if parts := r.tests[all()[0]].parts; parts != 1 {
		t.Errorf("%d parts, want the one without parts of its own", parts)
	}
	page := r.render(time.Unix(0, 0), 2)
	for _, want := range []string{"1 January 1970, 2 cores", "7 cells", "`internal/proof`: TestEachFaultAtEachPoint", "## The core", "## Not claimed"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
}

// A run in which something failed, or was left out, makes no page.
func TestNoPageWithoutProof(t *testing.T) {
	t.Parallel()
	names := all()
	for what, in := range map[string]string{
		"a test is missing": passing(names[1:]...),
		"a test failed":     passing(names...) + `{"Action":"fail","Package":"` + module + `saga","Test":"TestOther"}`,
		"a test is skipped": passing(names...) + `{"Action":"skip","Package":"` + module + `saga","Test":"TestOther"}`,
		"a build failed":    passing(names...) + `{"Action":"fail","Package":"` + module + `saga"}`,
		"no output of go":   "FAIL",
	} {
		page := filepath.Join(t.TempDir(), "page.md")
		if err := report(strings.NewReader(in), io.Discard, page); err == nil {
			t.Errorf("%s, and no error", what)
		}
		if _, err := os.Stat(page); !os.IsNotExist(err) {
			t.Errorf("%s, and there is a page", what)
		}
	}
}

// Every test that the page names is there.
func TestClaimsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	for _, name := range all() {
		i := strings.LastIndex(name, ".")
		files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(name[:i]), "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", name, len(files), err)
		}
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found = found || regexp.MustCompile(`(?m)^func `+name[i+1:]+`\(`).Match(text)
		}
		if !found {
			t.Errorf("there is no test %s", name)
		}
	}
}
