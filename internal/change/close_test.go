package change_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// Whatever an operation waits for, a close ends it: a look that settles nothing
// holds nothing up, not even where nobody can look.
func TestACloseEndsEveryWait(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order saga.Order
		in    saga.State
		ready func(r *rig)
	}{
		"checks":                       {change.MRFirst, change.CreateChecking, func(*rig) {}},
		"checks, the forge is down":    {change.MRFirst, change.CreateChecking, func(r *rig) { r.forge.fail(errors.New("down")) }},
		"checks before the merge":      {change.MRFirst, change.HandleChecking, func(*rig) {}},
		"approval":                     {change.ApprovalFirst, change.ApprovalSent, func(*rig) {}},
		"approval, looking takes long": {change.ApprovalFirst, change.ApprovalSent, func(r *rig) { r.approver.hang() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
			op := r.submit("a.yaml", c.order)
			if c.in == change.HandleChecking {
				row := r.until(op, change.CreateChecking)
				r.status(row, "success")
				r.until(op, change.ApprovalSent)
				r.status(row, "pending") // it runs again
				r.approve(op, 1)
			}
			row := r.until(op, c.in)
			c.ready(r)
			if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
				t.Fatal(err)
			}
			r.until(op, change.CloseStarted, change.CloseSucceeded, change.CloseFailed)
			r.forge.fail(nil)
			if row := r.until(op, change.CloseSucceeded, change.CloseFailed); row.State == change.CloseFailed {
				if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "it is back", "sue"); err != nil {
					t.Fatal(err)
				}
			}
			r.until(op, change.CloseSucceeded)
		})
	}
}

// A close deletes its own commit's branch, and nobody's work.
func TestACloseLeavesWhatOthersPushed(t *testing.T) {
	t.Parallel()
	for name, push := range map[string]func(r *rig, op string){
		"onto its branch": func(r *rig, op string) {
			r.until(op, change.CreateChecking)
			r.git("fetch", "-q", "origin")
			r.git("checkout", "-q", "-b", "theirs", "origin/mergeflow/"+op)
			r.write("theirs.yaml", "x: 1\n")
			r.git("commit", "-q", "--amend", "--no-edit") // the marker stays
		},
		"a branch of its name": func(r *rig, op string) {
			r.until(op, change.ApprovalSent)
			r.git("checkout", "-q", "-b", "theirs")
			r.write("theirs.yaml", "x: 1\n")
			r.git("commit", "-q", "-m", "theirs\n\nMergeflow-Operation: "+op)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
			order := change.MRFirst
			if name == "a branch of its name" {
				order = change.ApprovalFirst
			}
			op := r.submit("a.yaml", order)
			push(r, op)
			r.git("push", "-q", "-f", "origin", "theirs:mergeflow/"+op)
			row, err := r.db.Saga(t.Context(), op)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
				t.Fatal(err)
			}
			r.until(op, change.CloseSucceeded)
			if got, want := r.git("ls-remote", "origin", "refs/heads/mergeflow/"+op), r.git("rev-parse", "theirs"); !strings.HasPrefix(got, want) {
				t.Errorf("their branch is %q, not at %s", got, want)
			}
			if !strings.Contains(r.history(op), "stays") {
				t.Errorf("the history does not say that it stays:\n%s", r.history(op))
			}
		})
	}
}

// A close that knows of no merge request looks for its own, and never takes a
// look that failed, or somebody else's merge request, for the answer.
func TestACloseFindsItsMergeRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(r *rig, op string) error
		want   forge.State
		out    string
	}{
		"alone":        {func(*rig, string) error { return nil }, forge.Closed, "ok"},
		"a look fails": {func(r *rig, _ string) error { r.forge.fail(errors.New("down")); return nil }, forge.Open, "failed_transient"},
		"beside somebody else's": {func(r *rig, op string) error {
			_, err := r.host.CreateMergeRequest(r.t.Context(), forge.NewMergeRequest{Project: "app", Source: "mergeflow/" + op, Target: "main", Title: "mine"})
			return err
		}, forge.Closed, "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{})
			op := r.submit("a.yaml", change.MRFirst)
			row := r.until(op, change.ApprovalSent)
			if err := c.before(r, op); err != nil {
				t.Fatal(err)
			}
			// As a process leaves it that dies between opening and recording.
			data, err := saga.MergeData(row.Data, []byte(`{"mrIid":null,"headSha":null,"branch":null,"digest":null,"url":null}`))
			if err != nil {
				t.Fatal(err)
			}
			row.Data, row.State = data, change.CloseStarted
			out := r.steps.Commands()[change.CmdClose].Perform(t.Context(), engine.Run{Row: row})
			mr, err := r.host.MergeRequest(t.Context(), forge.Ref{Project: "app", IID: 1})
			if err != nil || mr.State != c.want || out.Label() != c.out {
				t.Errorf("%s; it is %s, %v", out, mr.State, err)
			}
		})
	}
}

// An approver who will not or can't take a request back keeps nothing open.
func TestACloseAndTheApprover(t *testing.T) {
	t.Parallel()
	t.Run("refuses", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.MRFirst)
		row := r.until(op, change.ApprovalSent)
		r.approver.refuseWithdrawals(&approval.Error{Status: 409, Detail: "decided already"})
		if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
			t.Fatal(err)
		}
		r.until(op, change.CloseSucceeded)
		if h := r.history(op); !strings.Contains(h, "not taken back") || !strings.Contains(h, "decided already") {
			t.Errorf("%s", h)
		}
	})
	t.Run("rejects", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.MRFirst)
		r.until(op, change.ApprovalSent)
		r.approver.refuseWithdrawals(&approval.Error{Status: 503, Detail: "down", Transient: true})
		r.approver.answer(change.ApprovalID(op, 1), approval.Rejected)
		r.until(op, change.ApprovalRejected) // whoever rejects is not asked to take it back
	})
	t.Run("is down for good", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.MRFirst)
		row := r.until(op, change.ApprovalSent)
		r.approver.refuseWithdrawals(&approval.Error{Status: 503, Detail: "down", Transient: true})
		if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
			t.Fatal(err)
		}
		r.until(op, change.CloseSucceeded)
		if h := r.history(op); !strings.Contains(h, "attempt 1 of 2") || !strings.Contains(h, "not taken back") {
			t.Errorf("%s", h)
		}
	})
}

// A close takes the merge request, the branch and the approver's request with it.
func TestACloseTakesAllWithIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	op := r.submit("a.yaml", change.MRFirst)
	row := r.until(op, change.ApprovalSent)
	if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.CloseSucceeded)
	mr, err := r.host.MergeRequest(t.Context(), forge.Ref{Project: "app", IID: 1})
	if err != nil || mr.State != forge.Closed || mr.HeadSHA != "" {
		t.Errorf("%+v %v", mr, err)
	}
	if !slices.Contains(r.approver.withdrawn, change.ApprovalID(op, 1)) {
		t.Errorf("withdrawn: %v", r.approver.withdrawn)
	}
	if _, err := r.svc.Submit(t.Context(), r.submission("a.yaml"), nil, "sue"); err != nil {
		t.Errorf("asked for again: %v", err)
	}
}
