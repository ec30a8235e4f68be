package localgit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Approvals is where approvals are kept.
type Approvals interface {
	// ApproveMR records that an account approved a head; again is a no-op.
	ApproveMR(ctx context.Context, pullID, account, sha string) error
	// MRApprovals lists them, oldest first.
	MRApprovals(ctx context.Context, pullID string) ([]store.MRApproval, error)
}

const (
	pointOpenBefore    = fault.OpenBefore
	pointOpenAfter     = fault.OpenDone
	pointCloseBefore   = fault.CloseBefore
	pointCloseAfter    = fault.CloseDone
	pointApproveBefore = fault.ApproveBefore
	pointApproveAfter  = fault.ApproveDone
)

// maxFound bounds how many merge requests of one branch are looked at.
const maxFound = 100

// FindMergeRequests looks for the merge requests of a branch, newest first, at
// most 100.
func (h *Host) FindMergeRequests(ctx context.Context, project, source, target string) ([]forge.MergeRequest, error) {
	const op = "find merge requests"
	row, repo, err := h.open(ctx, op, project)
	if err != nil {
		return nil, err
	}
	pulls, err := h.Store.PullsBySource(ctx, h.Forge, project, source, target, maxFound)
	if err != nil {
		return nil, fromStore(op, "repo", "repository "+project, err)
	}
	found := make([]forge.MergeRequest, 0, len(pulls))
	for _, p := range pulls {
		l := &look{host: h, pull: p, row: row, repo: repo}
		if err := l.refresh(ctx, op); err != nil {
			return nil, err
		}
		found = append(found, l.mergeRequest())
	}
	return found, nil
}

// OpenMergeRequest is CreateMergeRequest where no open one of these branches is
// there. Those who open at the same time wait for each other.
func (h *Host) OpenMergeRequest(ctx context.Context, in forge.NewMergeRequest) (forge.MergeRequest, error) {
	const op = "open merge request"
	_, repo, err := h.open(ctx, op, in.Project)
	if err != nil {
		return forge.MergeRequest{}, err
	}
	unlock, err := repo.Lock(ctx, "open")
	if err != nil {
		return forge.MergeRequest{}, fromGit(op, err)
	}
	defer unlock()
	found, err := h.FindMergeRequests(ctx, in.Project, in.Source, in.Target)
	if err != nil {
		return forge.MergeRequest{}, err
	}
	if i := slices.IndexFunc(found, func(mr forge.MergeRequest) bool { return mr.State == forge.Open }); i >= 0 {
		return forge.MergeRequest{}, &forge.Error{Op: op, Kind: forge.KindExists, Field: "source", Detail: fmt.Sprintf("%s!%d is open for these branches", in.Project, found[i].Ref.IID)}
	}
	if err := h.point(pointOpenBefore); err != nil {
		return forge.MergeRequest{}, notApplied(op, err)
	}
	mr, err := h.CreateMergeRequest(ctx, in)
	if err != nil {
		return forge.MergeRequest{}, err
	}
	if err := h.point(pointOpenAfter); err != nil {
		return forge.MergeRequest{}, unclear(op, err)
	}
	return mr, nil
}

// CloseMergeRequest closes an open merge request: the reference of the close
// comes first, and no merge lands from then on; see the package's description.
func (h *Host) CloseMergeRequest(ctx context.Context, ref forge.Ref) error {
	const op = "close merge request"
	l, err := h.look(ctx, op, ref)
	for try := 0; ; try++ {
		switch {
		case err != nil:
			return err
		case l.merged != "":
			return invalid(op, "iid", "%s!%d is merged as %s", ref.Project, ref.IID, l.merged)
		case l.state() == forge.Closed:
			l.record(ctx)
			return nil
		case try == maxTries:
			return notApplied(op, fmt.Errorf("the merge request kept moving for %d tries", maxTries))
		}
		err = l.close(ctx, op)
		if !errors.Is(err, git.ErrMoved) {
			return err
		}
		pause(ctx, try)
		l, err = h.look(ctx, op, ref)
	}
}

// close makes the reference, as long as the merge request is as it was seen.
// git.ErrMoved: it is not.
func (l *look) close(ctx context.Context, op string) error {
	if err := l.host.point(pointCloseBefore); err != nil {
		return notApplied(op, err)
	}
	note, err := l.repo.StoreBlob(ctx, "closed\n")
	if err != nil {
		return fromGit(op, err)
	}
	err = l.repo.UpdateRef(ctx, git.Swap{Ref: l.closedRef(), Old: git.Zero, New: note},
		git.Guard{Ref: l.markerRef(), Value: orZero(l.marker)}, git.Guard{Ref: l.targetRef(), Value: orZero(l.target)})
	switch locked, isLock := errors.AsType[*git.LockError](err); {
	case errors.Is(err, git.ErrMoved):
		return err
	case isLock:
		return notApplied(op, locked)
	case err == nil:
		err = l.host.point(pointCloseAfter)
	}
	if err != nil {
		return unclear(op, err)
	}
	l.closed = true
	l.record(ctx)
	return nil
}

// Reviewers are the repository's reviewers.
func (h *Host) Reviewers(ctx context.Context, project string) ([]string, error) {
	row, _, err := h.open(ctx, "read reviewers", project)
	return row.Reviewers, err
}

func (h *Host) approvals(op string) (Approvals, error) {
	if h.ApprovalStore == nil {
		return nil, invalid(op, "repo", "this forge keeps no approvals")
	}
	return h.ApprovalStore, nil
}

// Approvals are those that were recorded, oldest first.
func (h *Host) Approvals(ctx context.Context, ref forge.Ref) ([]forge.Approval, error) {
	const op = "read approvals"
	l, err := h.look(ctx, op, ref)
	if err != nil {
		return nil, err
	}
	approvals, err := h.approvals(op)
	if err != nil {
		return nil, err
	}
	rows, err := approvals.MRApprovals(ctx, l.pull.ID)
	if err != nil {
		return nil, fromStore(op, "iid", fmt.Sprintf("merge request %s!%d", ref.Project, ref.IID), err)
	}
	out := make([]forge.Approval, len(rows))
	for i, r := range rows {
		out[i] = forge.Approval{Account: r.Account, SHA: r.SHA}
	}
	return out, nil
}

// Approve records a reviewer's approval of the head that the merge request has
// now. A push that comes later leaves it an approval of the older head.
func (h *Host) Approve(ctx context.Context, ref forge.Ref, account, sha string) error {
	const op = "approve"
	if !git.IsSHA(sha) {
		return invalid(op, "sha", "%.60q is no full commit id", sha)
	}
	l, err := h.look(ctx, op, ref)
	if err != nil {
		return err
	}
	approvals, err := h.approvals(op)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s!%d", ref.Project, ref.IID)
	switch {
	case !slices.Contains(l.row.Reviewers, account):
		return invalid(op, "account", "%.60q is no reviewer of %s", account, ref.Project)
	case l.merged != "":
		return invalid(op, "iid", "%s is merged as %s", name, l.merged)
	case l.state() == forge.Closed:
		return &forge.Error{Op: op, Kind: forge.KindClosed, Detail: name + " is closed"}
	case l.head != sha:
		return &forge.Error{Op: op, Kind: forge.KindHeadMoved, Detail: fmt.Sprintf("the head of %s is %s, not %s", name, orNone(l.head), sha)}
	}
	if err := h.point(pointApproveBefore); err != nil {
		return notApplied(op, err)
	}
	if err := approvals.ApproveMR(ctx, l.pull.ID, account, sha); err != nil {
		return fromCreate(op, "iid", "merge request "+name, err)
	}
	if err := h.point(pointApproveAfter); err != nil {
		return unclear(op, err)
	}
	return nil
}

func orNone(sha string) string {
	if sha == "" {
		return "gone"
	}
	return sha
}
