package proof

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

func TestMain(m *testing.M) {
	code := m.Run()
	cluster.RemoveBinary()
	os.Exit(code)
}

// points are the places where a process dies, for each step: before it, between
// its effect and the commit, after the commit; and inside the merge.
func points() []string {
	var out []string
	for _, cmd := range []string{string(pull.CmdValidate), string(pull.CmdMerge), string(pull.CmdNotify), string(pull.CmdIndex)} {
		for _, where := range []string{"claimed", "performed", "committed"} {
			out = append(out, "engine."+where+"."+cmd)
		}
	}
	return append(out, "merge.before", "merge.marked", "merge.swapped")
}

// A process is killed at each point of each step, on both databases. After the
// restart the saga ends, git has one merge, and each watcher one delivery id.
func TestKilledAtEachPoint(t *testing.T) {
	t.Parallel()
	cells := 0
	for _, db := range cluster.Databases {
		for _, point := range points() {
			cells++
			t.Run(db+"/"+point, func(t *testing.T) {
				t.Parallel()
				killedAt(t, db, point)
			})
		}
	}
	t.Logf("%d cells", cells)
}

func killedAt(t *testing.T, db, point string) {
	c := cluster.New(t, cluster.Options{Database: db})
	first := c.Start(point + ":kill")
	first.Repository("app", 1)
	p := first.Pull("app", 1, "ann", "bob")
	op := first.Merge(p)
	first.AwaitEnd()
	if got := c.Faults(); !slices.Equal(got, []string{point}) {
		t.Fatalf("the process did not die where it should: %v; its log:\n%s", got, first.Log())
	}
	second := c.Start("")
	o := second.AwaitState(op, string(pull.Merged))
	audit(t, c, "app", map[string][]string{op: {"ann", "bob"}})
	if o.Failure != nil || o.MergeRequest == nil || o.MergeRequest.MergeCommit == "" {
		t.Errorf("the operation: %+v", o)
	}
	second.Stop()
}

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
