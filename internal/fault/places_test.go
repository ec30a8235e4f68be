package fault_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every place of the list is in the product's source, so that no test waits for
// one in vain; and what is in the source is of the list, which the compiler sees to.
func TestEachPlaceIsInTheSource(t *testing.T) {
	t.Parallel()
	set := token.NewFileSet()
	list, err := parser.ParseFile(set, "places.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]int{}
	for _, d := range list.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			for _, name := range s.(*ast.ValueSpec).Names {
				if name.IsExported() {
					used[name.Name] = 0
				}
			}
		}
	}
	if len(used) < 20 {
		t.Fatalf("only %d places were found in places.go", len(used))
	}
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "fault" {
					if _, place := used[sel.Sel.Name]; place {
						used[sel.Sel.Name]++
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for place, n := range used {
		if n == 0 {
			t.Errorf("fault.%s is nowhere in the source", place)
		}
	}
}

// The build for tests has tests of its own, which an ordinary run would leave out.
func TestBuildForTests(t *testing.T) {
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-tags=fault", "-count=1", "-skip=^TestBuildForTests$", ".").CombinedOutput(); err != nil {
		t.Errorf("go test -tags=fault: %v\n%s", err, out)
	}
}
