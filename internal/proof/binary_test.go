package proof

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// The product holds no fault point: none of their names is in a binary that is
// built as it is shipped, while all are in the one for tests.
func TestProductHasNoFaultPoints(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mergeflow")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, "github.com/mergeflow/mergeflow/cmd/mergeflow")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	product, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	forTests, err := os.ReadFile(cluster.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	names := append(cluster.FaultPoints(t), "MERGEFLOW_FAULT")
	if len(names) < 20 {
		t.Fatalf("only %d names: %v", len(names), names)
	}
	for _, name := range names {
		name = strings.TrimSuffix(name, "*")
		if bytes.Contains(product, []byte(name)) {
			t.Errorf("the product contains %q", name)
		}
		if !bytes.Contains(forTests, []byte(name)) {
			t.Errorf("the binary for tests does not contain %q", name)
		}
	}
	t.Logf("counted: %d names", len(names))
}
