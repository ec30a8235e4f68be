package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pkg is a made-up package that imports these.
func pkg(path string, imports ...string) Package {
	return Package{Path: path, Name: last(path), Documented: true, HasProduct: true, Imports: imports,
		Files: []File{{Name: last(path) + ".go", Lines: 100}}}
}

// Every rule of the architecture, with trees that it must refuse and trees that
// it must let pass: a rule that can't fail guards nothing.
func TestEachRuleCanFail(t *testing.T) {
	t.Parallel()
	type tree = []Package
	cases := map[string]struct{ bad, good []tree }{
		"the core stands alone": {
			bad: []tree{
				{pkg("./internal/saga", "./internal/store")},
				{pkg("./internal/saga", "github.com/google/uuid")},
				{pkg("./internal/saga/diagram", "./internal/saga")},
			},
			good: []tree{{pkg("./internal/saga", "encoding/json", "time")}},
		},
		"interfaces are narrow": {
			bad: []tree{
				{pkg("./internal/store", "github.com/jackc/pgx/v5")},
				{pkg("./internal/forge", "./internal/store")},
				{pkg("./internal/search", "./internal/search/embedded")},
			},
			good: []tree{{pkg("./internal/store", "./internal/saga", "context"), pkg("./internal/search/embedded", "./internal/search", "modernc.org/sqlite")}},
		},
		"flows see interfaces": {
			bad: []tree{
				{pkg("./internal/pull", "./internal/store/postgres")},
				{pkg("./internal/pull", "./internal/change")},
				{pkg("./internal/change/submit", "./internal/pull")},
				{pkg("./internal/pull", "./internal/git")},
				{pkg("./internal/pull", "./internal/telemetry")},
				{pkg("./internal/pull", "github.com/jackc/pgx/v5")},
			},
			good: []tree{{pkg("./internal/pull", "./internal/saga", "./internal/forge", "./internal/engine", "./internal/pull/text", "./internal/fault", "context")}},
		},
		"the engine knows rows and tables": {
			bad: []tree{
				{pkg("./internal/engine", "./internal/pull")},
				{pkg("./internal/engine", "./internal/forge")},
				{pkg("./internal/engine", "./internal/telemetry")},
			},
			good: []tree{{pkg("./internal/engine", "./internal/saga", "./internal/store", "./internal/fault", "golang.org/x/sync/errgroup")}},
		},
		"no way to a driver": {
			bad: []tree{
				{pkg("./internal/httpapi", "./internal/pull"), pkg("./internal/pull", "./internal/text"), pkg("./internal/text", "./internal/forge/localgit")},
				{pkg("./internal/webui", "./internal/store/sqlite")},
			},
			good: []tree{{pkg("./internal/httpapi", "./internal/forge", "./internal/httpapi"), pkg("./internal/forge")}},
		},
		"drivers are chosen in one place": {
			bad: []tree{
				{pkg("./internal/cli", "./internal/store/sqlite")},
				{pkg("./cmd/mergeflow", "./internal/forge/localgit")},
				{pkg("./internal/store/storetest", "./internal/store/sqlite")},
			},
			good: []tree{
				{pkg("./internal/app", "./internal/store/sqlite", "./internal/notify/webhook")},
				{pkg("./internal/store/postgres", "./internal/store/postgres/migrations")},
			},
		},
		"drivers never import each other": {
			bad: []tree{
				{pkg("./internal/store/postgres", "./internal/store/sqlite")},
				{pkg("./internal/search/embedded", "./internal/forge/localgit/files")},
			},
			good: []tree{{pkg("./internal/forge/gitlab/gitlabfake", "./internal/forge/gitlab", "./internal/forge/forgetest")}},
		},
		"nothing imports the wiring but what starts it": {
			bad:  []tree{{pkg("./internal/httpapi", "./internal/app")}},
			good: []tree{{pkg("./internal/cli", "./internal/app"), pkg("./cmd/mergeflow", "./internal/app")}},
		},
		"the command line is the outermost layer": {
			bad:  []tree{{pkg("./internal/app", "./internal/cli")}},
			good: []tree{{pkg("./cmd/mergeflow", "./internal/cli")}},
		},
		"database libraries stay in database drivers": {
			bad: []tree{
				{pkg("./internal/httpapi", "database/sql")},
				{pkg("./internal/pull", "github.com/jackc/pgx/v5/pgxpool")},
				{pkg("./internal/app", "modernc.org/sqlite")},
			},
			good: []tree{{pkg("./internal/store/sqlite", "database/sql", "modernc.org/sqlite"), pkg("./internal/search/embedded", "database/sql")}},
		},
		"one package runs the git program": {
			bad:  []tree{{pkg("./internal/forge/localgit", "os/exec")}},
			good: []tree{{pkg("./internal/git", "os/exec")}},
		},
		"no test code in the product": {
			bad: []tree{
				{pkg("./internal/engine", "testing")},
				{pkg("./internal/engine", "testing/fstest")},
				{pkg("./internal/app", "./internal/testkit/proxy")},
				{pkg("./internal/app", "./internal/forge/gitlab/gitlabfake")},
				{pkg("./internal/store/sqlite", "./internal/store/storetest")},
				{pkg("./internal/demo", "./internal/testkit/pg")},
			},
			good: []tree{
				{pkg("./internal/store/storetest", "testing"), pkg("./internal/testkit/pg", "testing")},
				{pkg("./internal/demo", "./internal/testkit/indexer")},
				{{Path: "./internal/pull", Name: "pull", HasProduct: true, TestImports: []string{"testing", "./internal/testkit/pg"}}},
			},
		},
		"names say what is inside": {
			bad: []tree{
				{pkg("./internal/util")},
				{{Path: "./internal/text", Name: "common", HasProduct: true}},
			},
			good: []tree{{pkg("./internal/utility")}},
		},
		"files are named after one thing": {
			bad:  []tree{{{Path: "./internal/a", Files: []File{{Name: "a_test.go", Lines: 701}}}}},
			good: []tree{{{Path: "./internal/a", Files: []File{{Name: "a.go", Lines: 700}, {Name: "page_templ.go", Lines: 4000, Generated: true}}}}},
		},
		"packages explain themselves": {
			bad:  []tree{{{Path: "./internal/a", HasProduct: true}}},
			good: []tree{{{Path: "./internal/a"}, pkg("./internal/b")}},
		},
	}
	for _, r := range Architecture() {
		c, ok := cases[r.Name]
		if !ok {
			t.Errorf("no made-up trees for the rule %q", r.Name)
			continue
		}
		delete(cases, r.Name)
		for i, packages := range c.bad {
			if got := Check(&Tree{Packages: packages}, []Rule{r}); len(got) == 0 {
				t.Errorf("%s: bad tree %d passes", r.Name, i)
			} else if !strings.HasPrefix(got[0], r.Name) || !strings.Contains(got[0], r.Why) {
				t.Errorf("%s: says %q", r.Name, got[0])
			}
		}
		for i, packages := range c.good {
			if got := Check(&Tree{Packages: packages}, []Rule{r}); len(got) != 0 {
				t.Errorf("%s: good tree %d is refused: %q", r.Name, i, got)
			}
		}
	}
	for name := range cases {
		t.Errorf("made-up trees for %q, which is no rule", name)
	}
}

func TestNeverReachNamesTheShortestWay(t *testing.T) {
	t.Parallel()
	tree := &Tree{Packages: []Package{
		pkg("./a", "./b", "./c"), pkg("./b", "./c", "./a"), pkg("./c", "./d"), pkg("./d"),
	}}
	got := NeverReach(Set{"./a"}, func(p string) bool { return p == "./d" })(tree)
	if !slices.Equal(got, []string{"./a → ./c → ./d"}) {
		t.Errorf("got %q", got)
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"./internal/store", "./internal/store", true},
		{"./internal/store", "./internal/store/sqlite", false},
		{"./internal/store/...", "./internal/store", true},
		{"./internal/store/...", "./internal/store/sqlite/x", true},
		{"./internal/store/...", "./internal/storehouse", false},
		{"./internal/store/*", "./internal/store", false},
		{"./internal/store/*", "./internal/store/sqlite", true},
		{"./...", "./cmd/x", true},
		{"./...", ".", true},
		{"./...", "fmt", false},
		{Outside, "github.com/jackc/pgx/v5", true},
		{Outside, "net/http", false},
		{Outside, "./internal/saga", false},
	} {
		if got := (Set{c.pattern}).Has(c.path); got != c.want {
			t.Errorf("%s has %s: %v", c.pattern, c.path, got)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                "module example.org/made/up\n\ngo 1.26\n",
		"root.go":               "// Package up is the root.\npackage up\n\nimport _ \"example.org/made/up/a\"\n",
		"a/a.go":                "package a\n\nimport (\n\t\"fmt\"\n\tx \"example.org/other\"\n)\n",
		"a/tagged.go":           "//go:build never\n\n// Package a has a comment in a file that is seldom built.\npackage a\n\nimport \"os\"\n",
		"a/a_test.go":           "package a_test\n\nimport (\n\t\"testing\"\n\t\"example.org/made/up\"\n)\n",
		"a/made.go":             "// Code generated by hand. DO NOT EDIT.\n\npackage a\n",
		"only/only_test.go":     "package only_test\n",
		"a/testdata/bad.go":     "this is not Go",
		"nested/go.mod":         "module example.org/nested\n",
		"nested/n.go":           "package n\n",
		".hidden/h.go":          "package h\n",
		"example.org/made/x.go": "// Package made only has a name like the module's.\npackage made\n",
	} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, p := range tree.Packages {
		paths = append(paths, p.Path)
	}
	if want := []string{".", "./a", "./example.org/made", "./only"}; tree.Module != "example.org/made/up" || !slices.Equal(paths, want) {
		t.Fatalf("module %s, packages %q", tree.Module, paths)
	}
	if p := tree.Packages[0]; !p.Documented || !slices.Equal(p.Imports, []string{"./a"}) {
		t.Errorf("the root: %+v", p)
	}
	a := tree.Packages[1]
	if a.Name != "a" || !a.Documented || !slices.Equal(a.Imports, []string{"example.org/other", "fmt", "os"}) ||
		!slices.Equal(a.TestImports, []string{".", "testing"}) {
		t.Errorf("package a: %+v", a)
	}
	if i := slices.IndexFunc(a.Files, func(f File) bool { return f.Name == "made.go" }); i < 0 || !a.Files[i].Generated || a.Files[i].Lines != 3 {
		t.Errorf("files of a: %+v", a.Files)
	}
	if p := tree.Packages[3]; p.HasProduct || p.Name != "only" {
		t.Errorf("a package of tests alone: %+v", p)
	}

	if err := os.WriteFile(filepath.Join(dir, "a", "broken.go"), []byte("packag a"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "broken.go") {
		t.Errorf("a broken file: %v", err)
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("a directory without go.mod loads")
	}
}
