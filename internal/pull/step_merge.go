package pull

import (
	"context"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// merge merges exactly the head that was validated, once. It looks first: a
// merge that an earlier attempt made, or that the forge made meanwhile, is
// found and not repeated. The gates of validation are passed again here,
// because minutes may lie between the two.
func (s *Steps) merge(ctx context.Context, run engine.Run) saga.Outcome {
	d, f, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	ref := forge.Ref{Project: d.Repo, IID: d.IID}
	mr, err := f.MergeRequest(ctx, ref)
	if err != nil {
		return readFailed(err)
	}
	if out, settled := settledMerge(d, mr); settled {
		return out
	}
	checks, err := f.Checks(ctx, d.Repo, d.HeadSHA)
	if err != nil {
		return readFailed(err)
	}
	if checks.State != forge.ChecksPassed {
		return saga.FailWith(saga.Deterministic, "required checks of "+short(d.HeadSHA)+" are no longer green: "+describe(checks, "failure", "error", "pending", "missing"),
			"when they are green again, ask again to merge")
	}
	commit, err := f.Merge(ctx, forge.MergeInput{
		Ref: ref, HeadSHA: d.HeadSHA, OperationID: run.Row.ID,
		Title: d.Title, Author: d.Author, When: run.Row.CreatedAt,
	})
	if err == nil {
		return saga.Done("merged as "+short(commit), d.learnt(commit))
	}
	switch forge.KindOf(err) {
	case forge.KindTransient:
		return saga.FailWith(saga.Transient, err.Error(), "nothing was merged; retry when the forge answers again")
	case forge.KindHeadMoved, forge.KindConflict, forge.KindBehind, forge.KindClosed, forge.KindNothingToMerge, forge.KindNotFound, forge.KindInvalid:
		return saga.FailWith(saga.Deterministic, err.Error(), "nothing was merged; fix the cause and ask again to merge")
	}
	// The answer was lost. One look now often settles it; if not, the next
	// attempt begins with one.
	if mr, lookErr := f.MergeRequest(ctx, ref); lookErr == nil && mr.State == forge.Merged {
		return saga.Done("merged as "+short(mr.MergeCommit)+" (learnt by a look; the answer was lost)", d.learnt(mr.MergeCommit))
	}
	return saga.Unclear(err.Error())
}

// settledMerge is what a look alone decides.
func settledMerge(d Data, mr forge.MergeRequest) (saga.Outcome, bool) {
	switch mr.State {
	case forge.Merged:
		return saga.Done("merged as "+short(mr.MergeCommit), d.learnt(mr.MergeCommit)), true
	case forge.Closed:
		return saga.FailWith(saga.Deterministic, "the pull request was closed on the forge before it was merged", "reopen it, or ask again with a new one"), true
	case forge.Locked:
		return saga.NotYet("the forge is merging it right now"), true
	}
	if mr.HeadSHA != d.HeadSHA {
		return saga.FailWith(saga.Deterministic, headMoved(d.HeadSHA, mr.HeadSHA), "ask again to merge: a new request takes the branch's current head"), true
	}
	return saga.Outcome{}, false
}

func (s *Steps) lookMerge(ctx context.Context, run engine.Run) saga.Outcome {
	d, f, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	mr, err := f.MergeRequest(ctx, forge.Ref{Project: d.Repo, IID: d.IID})
	if err != nil {
		return readFailed(err)
	}
	switch mr.State {
	case forge.Merged, forge.Locked:
		out, _ := settledMerge(d, mr)
		return out
	}
	return saga.NotDone("the forge says that it is not merged")
}
