package proof

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// changeConfig lets checks and deploys be looked at often.
const changeConfig = "checks: {poll: {short: 50ms, short_tries: 1000, long: 100ms, budget: 10m}}"

// changePoints are where a process dies on a change's way to live, for each
// step: before it, between its effect and the commit, after the commit; and
// inside the merge.
func changePoints() []string {
	var out []string
	for _, cmd := range []string{string(change.CmdRequestApproval), string(change.CmdCreate), string(change.CmdAwaitChecks),
		string(change.CmdApprove), string(change.CmdMerge), string(change.CmdReconcile)} {
		for _, where := range []string{"claimed", "performed", "committed"} {
			out = append(out, "engine."+where+"."+cmd)
		}
	}
	return append(out, "merge.before", "merge.marked", "merge.swapped")
}

func closePoints() []string {
	var out []string
	for _, where := range []string{"claimed", "performed", "committed"} {
		out = append(out, "engine."+where+"."+string(change.CmdClose))
	}
	return out
}

// A process is killed at each point of each step of flow change, on both
// databases. After the restart there is one branch, one commit, one merge
// request, one merge and one "live".
func TestChangeKilledAtEachPoint(t *testing.T) {
	t.Parallel()
	cells := 0
	for _, db := range cluster.Databases {
		for _, point := range changePoints() {
			cells++
			t.Run(db+"/"+point, func(t *testing.T) {
				t.Parallel()
				w := begin(t, db, point, change.ApprovalFirst, "approved")
				w.drive("CALLED_BACK")
				w.auditLive()
			})
		}
		for _, point := range closePoints() {
			cells++
			t.Run(db+"/"+point, func(t *testing.T) {
				t.Parallel()
				w := begin(t, db, point, change.MRFirst, "rejected")
				w.drive("APPROVAL_REJECTED")
				w.auditClosed()
			})
		}
	}
	t.Logf("%d cells", cells)
}

// walk is one change on its way, over processes that die.
type walk struct {
	t        *testing.T
	c        *cluster.Cluster
	p        *cluster.Process
	point    string
	op       string
	decision string
	died     bool
}

func begin(t *testing.T, db, point string, order saga.Order, decision string) *walk {
	t.Helper()
	c := cluster.New(t, cluster.Options{Database: db, Extra: changeConfig})
	w := &walk{t: t, c: c, point: point, decision: decision, p: c.Start(point + ":kill")}
	w.p.Repository("app", 0, "rita")
	in := httpapi.NewChange{Subject: "team", Target: "quota", Project: "app", Title: "Raise the quota", Order: string(order),
		Files: []httpapi.ChangeFile{{Path: "quota.yaml", Action: "upsert", Content: "limit: 200\n"}}}
	for w.op == "" {
		a, err := w.p.Client.Submit(context.Background(), in, "the-one")
		if err != nil {
			w.restart()
			continue
		}
		w.op = a.OperationID
	}
	return w
}

// restart starts a process without faults where the first one has died.
func (w *walk) restart() {
	w.t.Helper()
	if w.died {
		w.t.Fatalf("the second process does not answer; its log:\n%s", w.p.Log())
	}
	w.p.AwaitEnd()
	w.died = true
	w.p = w.c.Start("")
}

// drive does what people do until the operation is in a state.
func (w *walk) drive(state string) {
	w.t.Helper()
	limit := time.Now().Add(60 * time.Second)
	for {
		o, err := w.p.Client.Operation(context.Background(), w.op)
		switch {
		case err != nil:
			w.restart()
		case o.State == state:
			// Killed after the last commit, it dies only now.
			if !w.died {
				w.restart()
				continue
			}
			if got := w.c.Faults(); !slices.Equal(got, []string{w.point}) {
				w.t.Fatalf("the process did not die where it should: %v", got)
			}
			return
		case o.State == "APPROVAL_SENT":
			// Refused where it has moved meanwhile; the next look tells.
			_, _ = w.p.Client.Approval(context.Background(), w.op, httpapi.ApprovalInput{Decision: w.decision, Reason: "proof", As: "ann"})
		}
		if time.Now().After(limit) {
			w.t.Fatalf("not %s: %+v %v; the log:\n%s", state, o, err, w.p.Log())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *walk) git(args ...string) []string {
	w.t.Helper()
	out := cluster.Git(w.t, filepath.Join(w.c.Dir, "repos", "app.git"), args...)
	return strings.Fields(out)
}

// entered counts how often the operation entered a state.
func (w *walk) entered(state string) int {
	w.t.Helper()
	n := 0
	for e, err := range w.p.Client.History(context.Background(), w.op) {
		if err != nil {
			w.t.Fatal(err)
		}
		if e.Kind == "transition" && e.To == state {
			n++
		}
	}
	return n
}

func (w *walk) mergeRequests() []httpapi.Pull {
	w.t.Helper()
	var out []httpapi.Pull
	for p, err := range w.p.Client.Pulls(context.Background(), httpapi.PullQuery{Repo: "app"}) {
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func (w *walk) auditLive() {
	w.t.Helper()
	if ids := w.c.MergesInGit("app", "main"); !slices.Equal(ids, []string{w.op}) {
		w.t.Errorf("merges on main: %v, expected the one of %s", ids, w.op)
	}
	// The merge commit and the one commit of the branch carry the trailer.
	if commits := w.git("log", "--all", "--format=%H", "--grep=Mergeflow-Operation: "+w.op); len(commits) != 2 {
		w.t.Errorf("%d commits carry the operation's trailer, expected the branch's one and the merge", len(commits))
	}
	if prs := w.mergeRequests(); len(prs) != 1 || prs[0].Status != "merged" {
		w.t.Errorf("merge requests: %+v", prs)
	}
	if n := w.entered("CALLED_BACK"); n != 1 {
		w.t.Errorf("live %d times", n)
	}
	live, err := os.ReadFile(filepath.Join(w.c.Dir, "live", "app", "quota.yaml"))
	if err != nil || string(live) != "limit: 200\n" {
		w.t.Errorf("the live file: %q %v", live, err)
	}
	w.p.Stop()
}

func (w *walk) auditClosed() {
	w.t.Helper()
	if ids := w.c.MergesInGit("app", "main"); len(ids) != 0 {
		w.t.Errorf("merges on main: %v", ids)
	}
	if prs := w.mergeRequests(); len(prs) != 1 || prs[0].Status != "closed" {
		w.t.Errorf("merge requests: %+v", prs)
	}
	if refs := w.git("for-each-ref", "--format=%(refname)", "refs/heads"); !slices.Equal(refs, []string{"refs/heads/main"}) {
		w.t.Errorf("branches: %v", refs)
	}
	w.p.Stop()
}

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
	t.Logf("%d changes live, on %d cores", n, runtime.NumCPU())
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
	if os.Getenv("MERGEFLOW_TEST_PROOF") != "" {
		return 1000
	}
	return 60
}
