package change

import (
	"context"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// closeAll closes what the operation left outside: the merge request, the
// branch, the approver's request. What is gone already is done already; what is
// merged is not closed.
func (s *Steps) closeAll(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	branch, found := o.branch(), o.d.MRIID
	if found == 0 {
		// A step that was cut off may have opened one without our knowing.
		mr, out := s.findMR(ctx, o, branch)
		if out != nil && out.Event() == saga.Found {
			return *out
		}
		if mr != nil {
			found = mr.Ref.IID
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
			return saga.Moved(saga.Found, "merged on the forge as "+short(mr.MergeCommit), map[string]any{"mrIid": found, "mergeCommit": mr.MergeCommit})
		case forge.Locked:
			return saga.NotYet("the forge is merging it right now")
		case forge.Open:
			if err := o.forge.CloseMergeRequest(ctx, ref); err != nil {
				return writeFailed(err, "close the merge request on the forge, then retry")
			}
		}
	}
	b, err := o.forge.Branch(ctx, o.row.About.Project, branch)
	switch {
	case err == nil && isOwn(b.Message, o.row.ID):
		if err := o.forge.DeleteBranch(ctx, o.row.About.Project, branch, b.SHA); err != nil && forge.KindOf(err) != forge.KindHeadMoved {
			return writeFailed(err, "delete the branch on the forge, then retry")
		}
	case err != nil && forge.KindOf(err) != forge.KindNotFound:
		return readFailed(err)
	}
	if err := s.Approver.Withdraw(ctx, ApprovalID(o.row.ID, o.d.round())); err != nil {
		return approverFailed(err)
	}
	if found == 0 {
		return saga.Done("nothing was open on the forge", nil)
	}
	return saga.Done(fmt.Sprintf("merge request %d and its branch are closed", found), map[string]any{"mrIid": found})
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
		return saga.Moved(saga.Found, "merged on the forge as "+short(mr.MergeCommit), merged(mr.MergeCommit))
	}
	return saga.NotDone("not known to be closed whole")
}
