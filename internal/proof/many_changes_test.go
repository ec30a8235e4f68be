package proof

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// Many changes at once, asked of two processes on one PostgreSQL: all live, each
// with one merge, and no state of one entered twice by two workers.
func TestManyChangesFromTwoProcesses(t *testing.T) {
	t.Parallel()
	n := manyChanges()
	c := cluster.New(t, cluster.Options{Database: "postgres", Extra: changeConfig})
	ps := []*cluster.Process{c.Start(""), c.Start("")}
	ps[0].Repository("app", 0)
	ops := make([]string, n)
	var wg sync.WaitGroup
	turns := make(chan struct{}, 16)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			p := ps[i%2]
			a, err := p.Client.Submit(context.Background(), httpapi.NewChange{Subject: fmt.Sprint("team-", i), Target: "quota", Project: "app", Title: fmt.Sprint("Change ", i),
				Files: []httpapi.ChangeFile{{Path: fmt.Sprintf("q/%d.yaml", i), Action: "create", Content: "limit: 1\n"}}}, "")
			if err != nil {
				t.Error(err)
				return
			}
			ops[i] = a.OperationID
			if !reaches(p, ops[i], "APPROVAL_SENT") {
				t.Errorf("%s is never asked for", ops[i])
				return
			}
			if _, err := p.Client.Approval(context.Background(), ops[i], httpapi.ApprovalInput{Decision: "approved", Reason: "load", As: "ann"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, op := range ops {
		if !reaches(ps[0], op, "CALLED_BACK") {
			o, err := ps[0].Client.Operation(context.Background(), op)
			t.Fatalf("not live: %+v %v; the log:\n%s", o, err, ps[0].Log())
		}
	}
	merges := map[string]int{}
	for _, id := range c.MergesInGit("app", "main") {
		merges[id]++
	}
	for _, op := range ops {
		if merges[op] != 1 {
			t.Errorf("%d merges of %s", merges[op], op)
		}
		seen := map[string]bool{}
		for e, err := range ps[1].Client.History(context.Background(), op) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == "transition" && seen[e.To] {
				t.Errorf("%s entered %s twice", op, e.To)
			}
			if e.Kind == "note" && e.Event == "late" {
				t.Errorf("%s: two workers at once: %s", op, e.Detail)
			}
			seen[e.To] = true
		}
	}
	if len(merges) != n {
		t.Errorf("git has merges of %d operations, expected %d", len(merges), n)
	}
	for i, p := range ps {
		t.Logf("process %d: peak memory %d MiB", i, p.PeakMemory()>>20)
		p.Stop()
	}
	t.Logf("counted: %d changes live", n)
}

// reaches waits until an operation is in a state, as long as a thousand of them may take.
func reaches(p *cluster.Process, op, state string) bool {
	for end := time.Now().Add(15 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if o, err := p.Client.Operation(context.Background(), op); err == nil && o.State == state {
			return true
		}
	}
	return false
}

// manyChanges is 1,000 under `make proof`, fewer in an ordinary run.
func manyChanges() int {
	if everything() {
		return 1000
	}
	return 60
}
