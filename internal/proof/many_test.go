package proof

import (
	"sync"
	"testing"

	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// Ten merges at once into one branch, asked of two processes on one PostgreSQL:
// all end, and git has each of them once on the first-parent line.
func TestTenMergesIntoOneBranchFromTwoProcesses(t *testing.T) {
	t.Parallel()
	const n = 10
	c := cluster.New(t, cluster.Options{Database: "postgres"})
	ps := []*cluster.Process{c.Start(""), c.Start("")}
	ps[0].Repository("app", n)
	watchers := map[string][]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := 1; i <= n; i++ {
		p := ps[i%2]
		pr := p.Pull("app", i, "ann")
		wg.Go(func() {
			op := p.Merge(pr)
			mu.Lock()
			defer mu.Unlock()
			watchers[op] = []string{"ann"}
		})
	}
	wg.Wait()
	for op := range watchers {
		ps[0].AwaitState(op, string(pull.Merged))
	}
	if len(watchers) != n {
		t.Errorf("%d operations for %d pull requests", len(watchers), n)
	}
	audit(t, c, "app", watchers)
	t.Logf("counted: %d merges", n)
	for _, p := range ps {
		p.Stop()
	}
}
