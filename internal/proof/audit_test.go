package proof

import (
	"fmt"
	"testing"

	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// audit checks what must hold whatever happened: one merge in git for each
// operation, in git's own words, and one delivery id for each watcher.
func audit(t *testing.T, c *cluster.Cluster, repo string, watchers map[string][]string) {
	t.Helper()
	merges := map[string]int{}
	for _, id := range c.MergesInGit(repo, "main") {
		merges[id]++
	}
	if len(merges) != len(watchers) {
		t.Errorf("git has merges of %d operations, expected %d: %v", len(merges), len(watchers), merges)
	}
	ids := map[string]map[string]bool{}
	for _, d := range c.Receiver.Deliveries() {
		key := d.OperationID + " " + d.Watcher
		if ids[key] == nil {
			ids[key] = map[string]bool{}
		}
		ids[key][d.DeliveryID] = true
	}
	expected := 0
	for op, names := range watchers {
		if merges[op] != 1 {
			t.Errorf("git has %d merges of operation %s", merges[op], op)
		}
		for _, w := range names {
			expected++
			if n := len(ids[op+" "+w]); n != 1 {
				t.Errorf("%s got %d delivery ids for %s", w, n, op)
			}
		}
	}
	if len(ids) != expected {
		t.Errorf("deliveries to %d, expected %d: %v", len(ids), expected, fmt.Sprint(ids))
	}
}
