package proof

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// pullScenario merges pull requests of one repository into main, one after the other.
type pullScenario struct {
	mu    sync.Mutex
	pulls map[string]string // by operation
}

var pullWatchers = []string{"ann", "bob"}

func newPullScenario() scenario { return &pullScenario{pulls: map[string]string{}} }

func (s *pullScenario) name() string { return "pull" }

func (s *pullScenario) config() string { return "" }

func (s *pullScenario) passes() (commands []saga.Command, places []string) {
	return []saga.Command{pull.CmdValidate, pull.CmdMerge, pull.CmdNotify, pull.CmdIndex},
		[]string{"merge.before", "merge.marked", "merge.swapped", "notify.sent", "index.sent"}
}

func (s *pullScenario) prepare(p *cluster.Process, n int) { p.Repository("app", n) }

func (s *pullScenario) begin(t *testing.T, p *cluster.Process, i int) string {
	t.Helper()
	pr := p.Pull("app", i, pullWatchers...)
	op := p.Merge(pr)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pulls[op] = pr.ID
	return op
}

func (s *pullScenario) quiet() []string { return []string{"engine.committed." + string(pull.CmdIndex)} }

func (s *pullScenario) merges() bool { return true }

func (s *pullScenario) end() saga.State { return pull.Merged }

// nudge: nobody is needed.
func (s *pullScenario) nudge(context.Context, *cluster.Process, httpapi.Operation) {}

// audit: each state was entered once, git has one merge, the pull request shows
// it, and each watcher was told under one id.
func (s *pullScenario) audit(t *testing.T, c *cluster.Cluster, p *cluster.Process, op string) {
	t.Helper()
	want := []string{string(pull.Validating), string(pull.Merging), string(pull.Notifying), string(pull.Indexing), string(pull.Merged)}
	if got := transitions(t, p, op); !slices.Equal(got, want) {
		t.Errorf("entered %v, expected %v", got, want)
	}
	if n := count(c.MergesInGit("app", "main"), op); n != 1 {
		t.Errorf("git has %d merges of it", n)
	}
	oneDeliveryEach(t, c, op, pullWatchers...)
	s.mu.Lock()
	id := s.pulls[op]
	s.mu.Unlock()
	o, err := p.Client.Operation(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	if o.Failure != nil || o.MergeRequest == nil || o.MergeRequest.MergeCommit == "" {
		t.Errorf("the operation: %+v", o)
	}
	if pr, err := p.Client.Pull(t.Context(), id); err != nil || pr.Status != "merged" || o.MergeRequest != nil && pr.MergeCommit != o.MergeRequest.MergeCommit {
		t.Errorf("the pull request: %+v %v", pr, err)
	}
}

func (s *pullScenario) total(t *testing.T, c *cluster.Cluster, _ *cluster.Process, ops []string) {
	t.Helper()
	if got := c.MergesInGit("app", "main"); len(got) != len(ops) {
		t.Errorf("git has %d merges of %d operations: %v", len(got), len(ops), got)
	}
}
