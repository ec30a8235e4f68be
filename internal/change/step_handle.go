package change

import (
	"context"
	"fmt"
	"strings"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// approve lets each reviewer account approve exactly this head, by itself.
// Before each attempt it reads who has approved; after a failed one it reads
// once more, because "approved already" and "may not approve" look alike. None
// is legal: then nothing is to be done here.
func (s *Steps) approve(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	if _, out := o.lookMR(ctx); out != nil {
		return *out
	}
	accounts, err := o.forge.Reviewers(ctx, o.row.About.Project)
	if err != nil {
		return readFailed(err)
	}
	for _, a := range accounts {
		if o.hasApproved(ctx, a) {
			continue
		}
		if err := o.forge.Approve(ctx, o.ref, a, o.d.HeadSHA); err != nil && !o.hasApproved(ctx, a) {
			return writeFailed(err, "check what reviewer account "+a+" may do, then retry: accounts that have approved are skipped")
		}
	}
	if len(accounts) == 0 {
		return saga.Done("no reviewer accounts are configured", nil)
	}
	return saga.Done("approved by "+strings.Join(accounts, ", "), nil)
}

// hasApproved says whether the account has approved this head. A read that
// fails counts as "not yet": the check never becomes a new failure.
func (o opened) hasApproved(ctx context.Context, account string) bool {
	have, err := o.forge.Approvals(ctx, o.ref)
	if err != nil {
		return false
	}
	for _, a := range have {
		if a.Account == account && a.SHA == o.d.HeadSHA {
			return true
		}
	}
	return false
}

func (o opened) missingApprovals(ctx context.Context) ([]string, error) {
	accounts, err := o.forge.Reviewers(ctx, o.row.About.Project)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, a := range accounts {
		if !o.hasApproved(ctx, a) {
			out = append(out, a)
		}
	}
	return out, nil
}

func (s *Steps) lookApprove(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	if _, out := o.lookMR(ctx); out != nil {
		return *out
	}
	missing, err := o.missingApprovals(ctx)
	switch {
	case err != nil:
		return readFailed(err)
	case len(missing) > 0:
		return saga.NotDone("not approved by " + strings.Join(missing, ", "))
	}
	return saga.Done("approved", nil)
}

// maxUnapproved bounds how often an approval of ours may be found gone.
const maxUnapproved = 3

// merge merges exactly the head that was approved and checked. The gates are
// passed again here, because the steps before may lie hours back.
func (s *Steps) merge(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	if _, out := o.lookMerge(ctx); out != nil {
		return *out
	}
	if !o.d.approved() {
		return saga.FailWith(saga.Deterministic, "the change that would be merged is not the one that was approved", "this is a fault in mergeflow; please report it")
	}
	if out := o.gates(ctx); out != nil {
		return *out
	}
	commit, err := o.forge.Merge(ctx, forge.MergeInput{
		Ref: o.ref, HeadSHA: o.d.HeadSHA, OperationID: o.row.ID, Title: o.conf.title(o.row), Author: o.d.Author, When: o.row.CreatedAt,
	})
	if err == nil {
		return saga.Done("merged as "+short(commit)+s.removeSource(ctx, o), merged(commit))
	}
	switch forge.KindOf(err) {
	case forge.KindTransient:
		return saga.FailWith(saga.Transient, err.Error(), "nothing was merged; retry when the forge answers again")
	case forge.KindHeadMoved:
		return saga.FailAs(EvHeadMoved, saga.NeedsHuman, err.Error(), "")
	case forge.KindConflict:
		return saga.FailAs(EvConflict, saga.Deterministic, err.Error(), "")
	case forge.KindBehind:
		return saga.FailWith(saga.NeedsHuman, err.Error(), "nothing was merged; the repository wants the branch up to date first: close and submit again on the current base")
	case forge.KindClosed:
		return saga.Moved(EvClosedOutside, err.Error(), nil)
	case forge.KindNothingToMerge:
		return saga.FailWith(saga.Deterministic, err.Error(), "nothing was merged: "+o.d.Base+" holds it already, by other hands; close this operation, or take it off "+o.d.Base+" and retry")
	case forge.KindNotFound, forge.KindInvalid:
		return saga.FailWith(saga.Deterministic, err.Error(), "nothing was merged")
	}
	// The answer was lost. One look now often settles it; if not, the next
	// attempt begins with one.
	if mr, lookErr := o.forge.MergeRequest(ctx, o.ref); lookErr == nil && mr.State == forge.Merged {
		return saga.Done("merged as "+short(mr.MergeCommit)+" (learnt by a look; the answer was lost)", merged(mr.MergeCommit))
	}
	return saga.Unclear(saga.Clean(err.Error(), 1000))
}

// removeSource removes the branch that was merged, where the project wants that.
// It is tidying, no part of the merge: where it fails the branch stays, and the
// history says so.
func (s *Steps) removeSource(ctx context.Context, o opened) string {
	if !o.conf.RemoveSource {
		return ""
	}
	if err := o.forge.DeleteBranch(ctx, o.row.About.Project, o.d.Branch, o.d.HeadSHA); err != nil {
		return "; its branch stays: " + saga.Clean(err.Error(), 200)
	}
	return ""
}

// gates are the merge's own preconditions, for this head.
func (o opened) gates(ctx context.Context) *saga.Outcome {
	c, err := o.forge.Checks(ctx, o.row.About.Project, o.d.HeadSHA)
	if err != nil {
		return outcome(readFailed(err))
	}
	switch c.State {
	case forge.ChecksFailed:
		return outcome(saga.FailAs(EvRed, saga.Deterministic, "checks of "+short(o.d.HeadSHA)+" failed: "+describe(c, "failure", "error"), ""))
	case forge.ChecksPending:
		return outcome(saga.Moved(EvUnfinished, "checks of "+short(o.d.HeadSHA)+" are not finished: "+describe(c, "pending", "missing"), nil))
	}
	missing, err := o.missingApprovals(ctx)
	switch {
	case err != nil:
		return outcome(readFailed(err))
	case len(missing) > 0 && o.d.Unapproved >= maxUnapproved:
		// A retry is a person's word that they stay: it counts anew.
		return outcome(saga.FailWith(saga.NeedsHuman, "approvals of "+strings.Join(missing, ", ")+" keep disappearing", "look what resets them on the forge, then retry").
			With(map[string]int{"unapproved": 0}))
	case len(missing) > 0:
		return outcome(saga.Moved(EvUnapproved, fmt.Sprintf("approval of %s is gone", strings.Join(missing, ", ")), map[string]int{"unapproved": o.d.Unapproved + 1}))
	}
	return nil
}

// lookMerge is lookMR in the merging state: found merged at the head that is
// being carried is our own success.
func (o opened) lookMerge(ctx context.Context) (forge.MergeRequest, *saga.Outcome) {
	mr, out := o.lookMR(ctx)
	if out != nil && mr.State == forge.Merged && (mr.MergedHead == "" || mr.MergedHead == o.d.HeadSHA) {
		return mr, outcome(saga.Done("merged as "+short(mr.MergeCommit), merged(mr.MergeCommit)))
	}
	return mr, out
}

func (s *Steps) lookMerge(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	if _, out := o.lookMerge(ctx); out != nil {
		return *out
	}
	return saga.NotDone("the forge says that it is not merged")
}
