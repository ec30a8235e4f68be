package flowdoc_test

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/flowdoc"
	"github.com/mergeflow/mergeflow/internal/pull"
)

var update = flag.Bool("update", false, "write docs/states.md from the tables")

const page = "../../docs/states.md"

func TestStatesPage(t *testing.T) {
	want := flowdoc.Page(pull.Table, change.Table)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("docs/states.md is not what the tables say; run make generate\n%s", diff)
	}
}
