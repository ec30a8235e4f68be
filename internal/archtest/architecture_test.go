package archtest

import (
	"path/filepath"
	"testing"
)

const root = "../.."

func TestArchitecture(t *testing.T) {
	t.Parallel()
	tree, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range Check(tree, Architecture()) {
		t.Error(broken)
	}
}

// The rules bind nothing when the tree is not what they think it is.
func TestLoadSeesThisModule(t *testing.T) {
	t.Parallel()
	tree, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if tree.Module != "github.com/mergeflow/mergeflow" {
		t.Errorf("module %q", tree.Module)
	}
	want := map[string]string{"./internal/saga": "time", "./internal/store": "./internal/saga", "./internal/archtest": "go/parser"}
	for _, p := range tree.Packages {
		to, ok := want[p.Path]
		if !ok {
			continue
		}
		delete(want, p.Path)
		if !p.HasProduct || !p.Documented || p.Name != filepath.Base(p.Path) {
			t.Errorf("%s: read as %+v", p.Path, p)
		}
		if !(Set(p.Imports)).Has(to) {
			t.Errorf("%s: the import of %s was not seen", p.Path, to)
		}
	}
	for p := range want {
		t.Errorf("%s was not found", p)
	}
}
