// Package archtest holds the architecture of mergeflow as rules that fail: who
// may import whom, how packages are named, how long a file may grow.
//
// Load reads a module's source tree, every file whatever its build tags, and
// Check asks a list of rules about it. Architecture is mergeflow's own list;
// the engine knows nothing about it, and its own tests feed it made-up trees in
// which each rule is broken. Everything here only reads and is safe for
// concurrent use.
package archtest

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Tree is one module's source.
type Tree struct {
	Module   string
	Packages []Package // ordered by Path
}

// Package is one directory with Go files. Product code and tests are kept
// apart, because rules about layers bind the first and not the second.
type Package struct {
	// Path is "./" and the slash-separated directory, as the go command writes
	// packages of the module at hand; "." is the root. Import lists use the same
	// form for the module's own packages, and the plain import path for others.
	Path        string
	Name        string // the package clause; of the tests when there is nothing else
	Documented  bool   // a product file has a package comment
	HasProduct  bool   // there are files other than tests
	Imports     []string
	TestImports []string
	Files       []File
}

// File is one Go file of a package.
type File struct {
	Name      string
	Lines     int
	Generated bool
}

// Load reads the module whose go.mod lies in root. Nested modules, testdata,
// and directories that begin with a dot or an underscore are left out, as the
// go command does. It fails on a file that isn't Go.
func Load(root string) (*Tree, error) {
	module, err := modulePath(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	t := &Tree{Module: module}
	found := map[string]*Package{}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != root && skipDir(name, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" || strings.HasPrefix(d.Name(), "_") || strings.HasPrefix(d.Name(), ".") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		p := found[dir]
		if p == nil {
			p = &Package{Path: localPath(dir)}
			found[dir] = p
		}
		return p.add(module, name)
	})
	if err != nil {
		return nil, fmt.Errorf("read the source tree: %w", err)
	}
	for _, p := range found {
		slices.Sort(p.Imports)
		slices.Sort(p.TestImports)
		p.Imports, p.TestImports = slices.Compact(p.Imports), slices.Compact(p.TestImports)
		t.Packages = append(t.Packages, *p)
	}
	slices.SortFunc(t.Packages, func(a, b Package) int { return strings.Compare(a.Path, b.Path) })
	return t, nil
}

// add reads one file into the package.
func (p *Package) add(module, name string) error {
	src, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return err
	}
	base := filepath.Base(name)
	p.Files = append(p.Files, File{Name: base, Lines: bytes.Count(src, []byte("\n")), Generated: ast.IsGenerated(f)})
	test := strings.HasSuffix(base, "_test.go")
	if !test {
		p.HasProduct, p.Name = true, f.Name.Name
		p.Documented = p.Documented || f.Doc != nil
	} else if p.Name == "" {
		p.Name = strings.TrimSuffix(f.Name.Name, "_test")
	}
	for _, spec := range f.Imports {
		to, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
		}
		if to == module {
			to = "."
		} else if rest, ok := strings.CutPrefix(to, module+"/"); ok {
			to = "./" + rest
		}
		if test {
			p.TestImports = append(p.TestImports, to)
		} else {
			p.Imports = append(p.Imports, to)
		}
	}
	return nil
}

func skipDir(name, base string) bool {
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(name, "go.mod"))
	return err == nil
}

func localPath(dir string) string {
	if dir == "." {
		return "."
	}
	return "./" + filepath.ToSlash(dir)
}

func modulePath(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "module "); ok {
			return strings.TrimSpace(rest), nil
		}
	}
	return "", errors.New("go.mod has no module line")
}

// isLocal says whether an import is one of the module's own packages.
func isLocal(p string) bool { return p == "." || strings.HasPrefix(p, "./") }

// isStandard says whether an import belongs to Go itself: the first element of the
// path of any other module, and of a local import, has a dot in it.
func isStandard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

// last is a package path's last element.
func last(p string) string { return path.Base(p) }
