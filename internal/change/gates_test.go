package change_test

import (
	"strings"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// Checks that went red while people decided are seen before the merge, not
// after it.
func TestRedChecksStopTheMerge(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
	op := r.submit("a.yaml", change.MRFirst)
	row := r.until(op, change.CreateChecking)
	r.status(row, "success")
	r.until(op, change.ApprovalSent)
	r.status(row, "failure")
	r.approve(op, 1)
	row = r.until(op, change.HandlePipelineFailed)
	if f := row.Failure; f.Step != change.HandleApproved || f.Kind != saga.Deterministic || !strings.Contains(f.Error, "ci") {
		t.Errorf("%+v", f)
	}
	if r.merges() != 0 {
		t.Error("it was merged")
	}
	r.status(row, "success")
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "it is green now", "ops"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.HandleMerged)
}

// Nothing is merged but what was approved, whatever led to the merge.
func TestOnlyApprovedContentIsMerged(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	op := r.submit("a.yaml", change.MRFirst)
	row := r.until(op, change.ApprovalSent)
	out := r.steps.Commands()[change.CmdMerge].Perform(t.Context(), engine.Run{Row: row})
	if out.Label() != "failed_deterministic" || !strings.Contains(out.String(), "approved") || r.merges() != 0 {
		t.Errorf("%s, %d merges", out, r.merges())
	}
	var err error
	if row.Data, err = saga.MergeData(row.Data, saga.Patch(map[string]string{"approvedDigest": "of another content"})); err != nil {
		t.Fatal(err)
	}
	out = r.steps.Commands()[change.CmdMerge].Perform(t.Context(), engine.Run{Row: row})
	if out.Label() != "failed_deterministic" || r.merges() != 0 {
		t.Errorf("%s, %d merges", out, r.merges())
	}
}

// Approvals of ours that keep disappearing end in a failed state, not in a loop;
// a retry has as many tries again.
func TestApprovalsThatDisappear(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{Reviewers: []string{"rita"}})
	r.forge.hideApprovals(true)
	op := r.submit("a.yaml", change.ApprovalFirst)
	r.approve(op, 1)
	again := func() (n int) {
		for _, line := range strings.Split(r.history(op), "\n") {
			if strings.Contains(line, "HANDLE_APPROVED>HANDLE_STARTED") {
				n++
			}
		}
		return n
	}
	row := r.until(op, change.HandleMergeFailed)
	if f := row.Failure; f.Kind != saga.NeedsHuman || !strings.Contains(f.Error, "rita") || again() != 3 {
		t.Errorf("%+v after %d tries", f, again())
	}
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "looked", "ops"); err != nil {
		t.Fatal(err)
	}
	r.untilVersion(op, row.Version+2)
	row = r.until(op, change.HandleMergeFailed)
	if again() != 6 {
		t.Errorf("%d tries in all", again())
	}
	r.forge.hideApprovals(false)
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "they stay now", "ops"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.HandleMerged)
	if r.merges() != 1 {
		t.Errorf("%d merges", r.merges())
	}
}

// A merge request that the forge is merging is not closed under its hands.
func TestACloseWaitsForALockedMergeRequest(t *testing.T) {
	t.Parallel()
	for name, merged := range map[string]bool{"merged in the end": true, "not merged": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{})
			op := r.submit("a.yaml", change.MRFirst)
			row := r.until(op, change.ApprovalSent)
			r.forge.show(forge.Locked)
			if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
				t.Fatal(err)
			}
			r.untilRow(op, func(row saga.Row) bool {
				return row.State == change.CloseStarted && row.Command.Checks > 2 && strings.Contains(row.Command.Evidence, "right now")
			})
			if mr, err := r.host.MergeRequest(t.Context(), forge.Ref{Project: "app", IID: 1}); err != nil || mr.State != forge.Open {
				t.Fatalf("%+v %v", mr, err)
			}
			if merged {
				if err := r.mergeByHand(forge.Ref{Project: "app", IID: 1}); err != nil {
					t.Fatal(err)
				}
			}
			r.forge.show("")
			if merged {
				r.until(op, change.HandleMerged)
				return
			}
			r.until(op, change.CloseSucceeded)
		})
	}
}

// The approver is told the end of its time, as the settings have it.
func TestTheApproverIsToldTheDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	before := time.Now().Add(3 * time.Hour).Truncate(time.Second)
	op := r.submit("a.yaml", change.ApprovalFirst)
	row := r.until(op, change.ApprovalSent)
	got := r.approver.sent[0].ExpiresAt
	if got.Before(before) || got.After(row.Command.DeadlineAt) {
		t.Errorf("told %s, begun before %s, ends %s", got, before, row.Command.DeadlineAt)
	}
}
