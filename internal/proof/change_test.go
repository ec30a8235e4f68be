package proof

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// changeConfig lets checks and deploys be looked at often.
const changeConfig = "checks: {poll: {short: 50ms, short_tries: 1000, long: 100ms, budget: 10m}}"

// changeScenario submits changes of one project, each of a file of its own.
// People approve them, or reject them once their merge request is there.
type changeScenario struct {
	order    saga.Order
	decision string // approved or rejected

	mu      sync.Mutex
	numbers map[string]int // by operation
}

func newLiveScenario() scenario {
	return &changeScenario{order: change.ApprovalFirst, decision: "approved", numbers: map[string]int{}}
}

func newClosedScenario() scenario {
	return &changeScenario{order: change.MRFirst, decision: "rejected", numbers: map[string]int{}}
}

func (s *changeScenario) live() bool { return s.decision == "approved" }

func (s *changeScenario) name() string {
	if s.live() {
		return "change"
	}
	return "change-rejected"
}

func (s *changeScenario) config() string { return changeConfig }

// passes leaves out of a rejected change what an approved one passes too.
func (s *changeScenario) passes() (commands []saga.Command, places []string) {
	if s.live() {
		return []saga.Command{change.CmdRequestApproval, change.CmdCreate, change.CmdAwaitChecks, change.CmdApprove, change.CmdMerge, change.CmdReconcile},
			[]string{"branch.before", "branch.after", "open.before", "open.after", "approve.before", "approve.after", "merge.before", "merge.marked", "merge.swapped"}
	}
	return []saga.Command{change.CmdClose}, []string{"close.before", "close.after", "delete.before", "delete.after"}
}

// quiet: the callback of the deploy makes a change live while its look is under way.
func (s *changeScenario) quiet() []string {
	if s.live() {
		last := string(change.CmdReconcile)
		return []string{"engine.performed." + last, "engine.committing." + last, "engine.committed." + last}
	}
	return []string{"engine.committed." + string(change.CmdClose)}
}

func (s *changeScenario) merges() bool { return s.live() }

func (s *changeScenario) end() saga.State {
	if s.live() {
		return change.CalledBack
	}
	return change.ApprovalRejected
}

func (s *changeScenario) prepare(p *cluster.Process, _ int) { p.Repository("app", 0, "rita") }

func changedFile(i int) string { return fmt.Sprintf("quota-%d.yaml", i) }

func (s *changeScenario) begin(t *testing.T, p *cluster.Process, i int) string {
	t.Helper()
	a, err := p.Client.Submit(t.Context(), httpapi.NewChange{
		Subject: "team", Target: fmt.Sprint("quota-", i), Project: "app", Title: changedFile(i), Order: string(s.order),
		Files: []httpapi.ChangeFile{{Path: changedFile(i), Action: "create", Content: "limit: 200\n"}},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.numbers[a.OperationID] = i
	return a.OperationID
}

// nudge decides what people are asked for.
func (s *changeScenario) nudge(ctx context.Context, p *cluster.Process, o httpapi.Operation) {
	if o.State == string(change.ApprovalSent) {
		// Refused where it has moved meanwhile; the next look tells.
		_, _ = p.Client.Approval(ctx, o.ID, httpapi.ApprovalInput{Decision: s.decision, Reason: "proof", As: "ann"})
	}
}

// audit: each state was entered once; git has one branch commit and one merge,
// or nothing but the branch's commit without its branch; there is one merge
// request, and the file is live.
func (s *changeScenario) audit(t *testing.T, c *cluster.Cluster, p *cluster.Process, op string) {
	t.Helper()
	s.mu.Lock()
	number := s.numbers[op]
	s.mu.Unlock()
	entered := transitions(t, p, op)
	if once := slices.Compact(slices.Sorted(slices.Values(entered))); len(once) != len(entered) || entered[len(entered)-1] != string(s.end()) {
		t.Errorf("entered %v, expected each once and %s at the end", entered, s.end())
	}
	var own []httpapi.Pull
	for pr, err := range p.Client.Pulls(t.Context(), httpapi.PullQuery{Repo: "app", Limit: 500}) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(pr.Title, changedFile(number)) {
			// A list shows what was recorded; one by itself is looked at in git.
			if pr, err = p.Client.Pull(t.Context(), pr.ID); err != nil {
				t.Fatal(err)
			}
			own = append(own, pr)
		}
	}
	status, merges, commits := "closed", 0, 0
	if s.live() {
		status, merges, commits = "merged", 1, 2
	}
	if len(own) != 1 || own[0].Status != status {
		t.Errorf("merge requests: %+v, expected one that is %s", own, status)
	}
	if n := count(c.MergesInGit("app", "main"), op); n != merges {
		t.Errorf("main has %d merges of it", n)
	}
	repo := filepath.Join(c.Dir, "repos", "app.git")
	// On branches and on main: the commit of the change and the merge.
	if found := strings.Fields(cluster.Git(t, repo, "log", "--branches", "--format=%H", "--grep=Mergeflow-Operation: "+op)); len(found) != commits {
		t.Errorf("%d commits carry the operation's id, expected %d", len(found), commits)
	}
	if s.live() {
		if live, err := os.ReadFile(filepath.Join(c.Dir, "live", "app", changedFile(number))); err != nil || string(live) != "limit: 200\n" {
			t.Errorf("the live file: %q %v", live, err)
		}
	}
}

func (s *changeScenario) total(t *testing.T, c *cluster.Cluster, _ *cluster.Process, ops []string) {
	t.Helper()
	want := 0
	if s.live() {
		want = len(ops)
	}
	if got := c.MergesInGit("app", "main"); len(got) != want {
		t.Errorf("git has %d merges of %d operations: %v", len(got), want, got)
	}
	if !s.live() {
		if left := cluster.Git(t, filepath.Join(c.Dir, "repos", "app.git"), "for-each-ref", "--format=%(refname)", "refs/heads"); left != "refs/heads/main" {
			t.Errorf("branches: %s", left)
		}
	}
}
