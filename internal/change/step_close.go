package change

import (
	"context"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// closeAll closes what the operation left outside: the merge request, the
// branch, the approver's request. What is gone already is done already; what is
// merged is not closed; what somebody else has pushed to stays.
func (s *Steps) closeAll(ctx context.Context, run engine.Run) saga.Outcome {
	o, inputs, bad := s.openCreate(ctx, run)
	if bad != nil {
		return *bad
	}
	branch, found := o.branch(), o.d.MRIID
	if found == 0 {
		// A step that was cut off may have opened one without our knowing.
		own, _, err := o.lookMRs(ctx, branch)
		if err != nil {
			return readFailed(err)
		}
		if own != nil {
			found = own.Ref.IID
		}
	}
	if found != 0 {
		ref := forge.Ref{Project: o.row.About.Project, IID: found}
		mr, err := o.forge.MergeRequest(ctx, ref)
		if err != nil {
			return readFailed(err)
		}
		switch mr.State {
		case forge.Merged:
			return o.found(mr)
		case forge.Locked:
			return saga.NotYet("the forge is merging it right now")
		case forge.Open:
			if err := o.forge.CloseMergeRequest(ctx, ref); err != nil {
				return writeFailed(err, "close the merge request on the forge, then retry")
			}
		}
	}
	stays, out := o.removeBranch(ctx, inputs)
	if out != nil {
		return *out
	}
	if err := s.withdraw(ctx, o); err != nil {
		// A request that stays open with the approver is no reason to keep a change
		// open: its answer will be stale.
		f, c := approverFailed(err), run.Row.Command
		if !f.Settles() && c != nil && c.Attempt < s.Settings().AttemptLimit() {
			return f
		}
		stays += "; the approval request was not taken back: " + saga.Clean(err.Error(), 300)
	}
	if found == 0 {
		return saga.Done("no merge request was open"+stays, nil)
	}
	return saga.Done(fmt.Sprintf("merge request %d is closed%s", found, stays), map[string]any{"mrIid": found})
}

// withdraw takes the approval request back where it is open as far as is known:
// approvers who have decided, or who took it back themselves, need no word.
func (s *Steps) withdraw(ctx context.Context, o opened) error {
	if o.d.CloseAs == string(ApprovalRejected) || o.d.CloseAs == string(ApprovalWithdrawn) {
		return nil
	}
	return s.Approver.Withdraw(ctx, ApprovalID(o.row.ID, o.d.round()))
}

// removeBranch deletes the operation's branch while it holds nothing but the
// operation's own commit; where it holds more it stays, and the history says so.
func (o opened) removeBranch(ctx context.Context, inputs []store.Input) (stays string, out *saga.Outcome) {
	head, foreign := o.d.HeadSHA, ""
	if head == "" { // a step that was cut off may have made one without our knowing
		var err error
		if head, foreign, err = o.lookBranch(ctx, inputs); err != nil {
			return "", outcome(readFailed(err))
		}
	}
	if head != "" {
		err := o.forge.DeleteBranch(ctx, o.row.About.Project, o.branch(), head)
		switch {
		case err == nil:
			return ", its branch is gone", nil
		case forge.KindOf(err) == forge.KindHeadMoved:
			foreign = "holds what somebody else has pushed"
		case forge.KindOf(err) != forge.KindNotFound:
			return "", outcome(writeFailed(err, "delete the branch on the forge, then retry"))
		}
	}
	if foreign == "" {
		return "", nil
	}
	return "; branch " + o.branch() + " stays: it " + foreign, nil
}

func (s *Steps) lookClose(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	if o.d.MRIID == 0 {
		return saga.NotDone("not closed yet")
	}
	mr, err := o.forge.MergeRequest(ctx, o.ref)
	switch {
	case err != nil:
		return readFailed(err)
	case mr.State == forge.Merged:
		return o.found(mr)
	}
	return saga.NotDone("not known to be closed whole")
}
