package change_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// Where deploys run in merge order, a later one that is live makes an earlier one live.
func TestTheWatermark(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{true, false} {
		r := newRig(t, forge.Repository{})
		r.project.InOrder = inOrder
		first, second := r.submit("a.yaml", change.MRFirst), ""
		r.approve(first, 1)
		r.until(first, change.HandleMerged)
		second = r.submit("b.yaml", change.MRFirst)
		r.approve(second, 1)
		r.until(second, change.HandleMerged)
		if v, err := r.svc.Deployed(t.Context(), change.DeployCallback{RequestID: "1", OperationID: second, Result: "live", Raw: []byte(`{}`)}); err != nil || v.Verdict != change.Applied {
			t.Fatalf("%+v %v", v, err)
		}
		r.until(second, change.CalledBack)
		if !inOrder {
			if row, _ := r.db.Saga(t.Context(), first); row.State != change.HandleMerged {
				t.Errorf("inferred without being allowed to: %s", row.State)
			}
			continue
		}
		row := r.until(first, change.CalledBack)
		if !strings.Contains(string(row.Data), `"liveBy":"inferred"`) {
			t.Errorf("%s", row.Data)
		}
	}
}

// Merge requests are numbered when they are opened. One that was merged before
// this one says nothing about it, whatever its number and whenever it went live.
func TestTheWatermarkFollowsTheMerges(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	r.project.InOrder = true
	live := func(id, op string) {
		t.Helper()
		if v, err := r.svc.Deployed(t.Context(), change.DeployCallback{RequestID: id, OperationID: op, Result: "live", Raw: []byte(`{}`)}); err != nil || v.Verdict != change.Applied {
			t.Fatalf("%+v %v", v, err)
		}
		r.until(op, change.CalledBack)
	}
	one := r.submit("a.yaml", change.MRFirst)
	r.until(one, change.ApprovalSent)
	two := r.submit("b.yaml", change.MRFirst)
	r.approve(two, 1)
	r.until(two, change.HandleMerged) // number 2, merged first
	r.approve(one, 1)
	row := r.until(one, change.HandleMerged)
	live("1", two)
	checks := r.untilRow(one, func(now saga.Row) bool { return now.Command == nil || now.Command.Checks > row.Command.Checks+2 })
	if checks.State != change.HandleMerged {
		t.Fatalf("%s: inferred from a merge that does not hold it\n%s", checks.State, r.history(one))
	}
	three := r.submit("c.yaml", change.MRFirst)
	r.approve(three, 1)
	r.until(three, change.HandleMerged)
	live("2", three)
	if row := r.until(one, change.CalledBack); !strings.Contains(string(row.Data), `"liveBy":"inferred"`) {
		t.Errorf("%s", row.Data)
	}
}

// A merge that contains this one proves it live whenever we heard of it: before
// a retry, and before our own merge was recorded.
func TestTheWatermarkIsNeverTooEarly(t *testing.T) {
	t.Parallel()
	say := func(r *rig, id, op, result string) {
		r.t.Helper()
		if v, err := r.svc.Deployed(r.t.Context(), change.DeployCallback{RequestID: id, OperationID: op, Result: result, Raw: []byte(`{}`)}); err != nil || v.Verdict != change.Applied {
			r.t.Fatalf("%+v %v", v, err)
		}
	}
	t.Run("a retry", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		r.project.InOrder = true
		one := r.submit("a.yaml", change.MRFirst)
		r.approve(one, 1)
		r.until(one, change.HandleMerged)
		say(r, "1", one, "failed")
		row := r.until(one, change.DeployFailed)
		two := r.submit("b.yaml", change.MRFirst)
		r.approve(two, 1)
		r.until(two, change.HandleMerged)
		say(r, "2", two, "live")
		if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "repaired", "ops"); err != nil {
			t.Fatal(err)
		}
		if row := r.until(one, change.CalledBack); row.Failure != nil {
			t.Errorf("live, and it shows %+v", row.Failure)
		}
	})
	t.Run("a callback that comes early", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		r.project.InOrder = true
		one := r.submit("a.yaml", change.MRFirst)
		r.approve(one, 1)
		r.until(one, change.HandleMerged)
		two := r.submit("b.yaml", change.MRFirst)
		r.until(two, change.ApprovalSent)
		if v, err := r.svc.Deployed(t.Context(), change.DeployCallback{RequestID: "1", OperationID: two, Result: "live", Raw: []byte(`{}`)}); err != nil || v.Verdict != change.Early {
			t.Fatalf("%+v %v", v, err)
		}
		if row := r.untilRow(one, func(row saga.Row) bool { return row.Command == nil || row.Command.Checks > 3 }); row.State != change.HandleMerged {
			t.Fatalf("inferred from what is not merged: %s", r.history(one))
		}
		r.approve(two, 1)
		r.until(two, change.CalledBack)
		r.until(one, change.CalledBack)
	})
	t.Run("an answer that comes late", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		r.project.InOrder = true
		merged, gate := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(gate) })
		t.Cleanup(release) // before the engine's stop, which waits for the step
		var second atomic.Bool
		r.forge.set(func(ctx context.Context, in forge.MergeInput) (string, error) {
			commit, err := r.host.Merge(ctx, in)
			if !second.Swap(true) {
				close(merged)
				<-gate
			}
			return commit, err
		})
		one := r.submit("a.yaml", change.MRFirst)
		r.approve(one, 1)
		<-merged
		two := r.submit("b.yaml", change.MRFirst)
		r.approve(two, 1)
		r.until(two, change.HandleMerged)
		say(r, "1", two, "live")
		release()
		r.until(one, change.CalledBack)
	})
}

// A deploy that no repeat can help fails visibly; one that may work later is
// tried again.
func TestADeployThatIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	r.env.fail(errors.New("the disk is full"))
	op := r.submit("a.yaml", change.MRFirst)
	r.approve(op, 1)
	r.untilRow(op, func(row saga.Row) bool {
		return row.State == change.HandleMerged && row.Command.Checks > 2 && strings.Contains(row.Command.Evidence, "disk is full")
	})
	r.env.fail(&deploy.Refused{Cause: "no folder holds it", Hint: "delete the file"})
	row := r.until(op, change.DeployFailed)
	if f := row.Failure; f.Kind != saga.NeedsHuman || f.Error != "no folder holds it" || f.Hint != "delete the file" {
		t.Errorf("%+v", f)
	}
	r.env.fail(nil)
	r.env.set(op)
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "deleted", "ops"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.CalledBack)
}

// Live after a failure is live: no failure is shown any more.
func TestLiveAfterAll(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	op := r.submit("a.yaml", change.MRFirst)
	r.approve(op, 1)
	r.until(op, change.HandleMerged)
	for i, result := range []string{"failed", "live"} {
		// Ids are the same in any case of their letters.
		c := change.DeployCallback{RequestID: fmt.Sprint(i), OperationID: strings.ToUpper(op), Result: result, Raw: []byte(`{}`)}
		if v, err := r.svc.Deployed(t.Context(), c); err != nil || v.Verdict != change.Applied {
			t.Fatalf("%+v %v", v, err)
		}
	}
	if row := r.until(op, change.CalledBack); row.Failure != nil {
		t.Errorf("%+v", row.Failure)
	}
}
