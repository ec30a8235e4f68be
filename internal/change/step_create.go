package change

import (
	"context"
	"fmt"
	"strings"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// create makes the branch with its one commit, then the merge request. Each
// sub-step looks first and adopts what carries the operation's marker, never
// what is somebody else's.
func (s *Steps) create(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	head, out := s.ownBranch(ctx, o)
	if out != nil {
		return *out
	}
	if head == "" {
		if head, out = s.makeBranch(ctx, o); out != nil {
			return *out
		}
	}
	return s.mergeRequest(ctx, o, head, true)
}

// lookCreate is create without its writes.
func (s *Steps) lookCreate(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	head, out := s.ownBranch(ctx, o)
	if out != nil {
		return *out
	}
	if head == "" {
		return saga.NotDone("there is no branch yet")
	}
	return s.mergeRequest(ctx, o, head, false)
}

// ownBranch finds the branch that an earlier attempt made; empty when there is none.
func (s *Steps) ownBranch(ctx context.Context, o opened) (head string, out *saga.Outcome) {
	name := o.branch()
	b, err := o.forge.Branch(ctx, o.row.About.Project, name)
	switch {
	case err != nil && forge.KindOf(err) == forge.KindNotFound:
		return "", nil
	case err != nil:
		return "", outcome(readFailed(err))
	case !isOwn(b.Message, o.row.ID):
		return "", outcome(saga.FailWith(saga.NeedsHuman, "branch "+name+" exists and is not this operation's",
			"delete or rename the branch on the forge, then retry"))
	}
	return b.SHA, nil
}

func outcome(o saga.Outcome) *saga.Outcome { return &o }

func (s *Steps) makeBranch(ctx context.Context, o opened) (head string, out *saga.Outcome) {
	project := o.row.About.Project
	base, err := o.forge.Branch(ctx, project, o.d.Base)
	if err != nil {
		return "", outcome(readFailed(err))
	}
	inputs, err := s.Store.Inputs(ctx, o.row.ID)
	if err != nil {
		return "", outcome(saga.FailWith(saga.Transient, "reading the inputs: "+err.Error(), ""))
	}
	if out := s.baseMoved(ctx, o, base.SHA, inputs); out != nil {
		return "", out
	}
	head, err = o.forge.CreateCommit(ctx, newChange(o.row, o.d, o.branch(), base.SHA, inputs))
	switch {
	case err == nil:
		return head, nil
	case forge.KindOf(err) == forge.KindNothingToMerge:
		return "", outcome(saga.Moved(EvNoChange, o.d.Base+" already says so", nil))
	case forge.KindOf(err) == forge.KindExists, forge.KindOf(err) == forge.KindUnclear:
		// Another attempt of ours, or somebody else: a look tells.
		if head, out := s.ownBranch(ctx, o); out != nil || head != "" {
			return head, out
		}
		return "", outcome(saga.Unclear(saga.Clean(err.Error(), 1000)))
	}
	return "", outcome(writeFailed(err, "fix the cause, then retry: what exists is adopted"))
}

func newChange(row saga.Row, d Data, branch, base string, inputs []store.Input) forge.NewChange {
	in := forge.NewChange{
		Project: row.About.Project, Base: base, Branch: branch, Author: d.Author, When: row.CreatedAt,
		Message: row.About.Title + "\n\n" + strings.TrimSpace(d.Description) + "\n\n" + trailer(row.ID) + "\n",
	}
	if strings.TrimSpace(d.Description) == "" {
		in.Message = row.About.Title + "\n\n" + trailer(row.ID) + "\n"
	}
	for _, f := range inputs {
		in.Files = append(in.Files, forge.FileChange{Path: f.Path, Delete: f.Action == "delete", Content: f.Content})
	}
	return in
}

// baseMoved lets a moved base pass where the touched files are what they were
// at submit: then the change is built on the current base.
func (s *Steps) baseMoved(ctx context.Context, o opened, tip string, inputs []store.Input) *saga.Outcome {
	if tip == o.d.BaseSHA {
		return nil
	}
	paths := make([]string, len(inputs))
	for i, f := range inputs {
		paths[i] = f.Path
	}
	before, err := o.forge.Files(ctx, o.row.About.Project, o.d.BaseSHA, paths)
	if err != nil {
		return outcome(readFailed(err))
	}
	now, err := o.forge.Files(ctx, o.row.About.Project, tip, paths)
	if err != nil {
		return outcome(readFailed(err))
	}
	var changed []string
	for _, p := range paths {
		if before[p] != now[p] {
			changed = append(changed, p)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return outcome(saga.FailWith(saga.Deterministic,
		fmt.Sprintf("%s moved since submit and changed %s", o.d.Base, strings.Join(changed, ", ")),
		"close this operation and submit the change again, on what the files say now"))
}

// mergeRequest finds the operation's merge request or, with open, opens it.
func (s *Steps) mergeRequest(ctx context.Context, o opened, head string, open bool) saga.Outcome {
	project, branch := o.row.About.Project, o.branch()
	base, err := o.forge.Branch(ctx, project, o.d.Base)
	if err != nil {
		return readFailed(err)
	}
	fork, err := o.forge.MergeBase(ctx, project, base.SHA, head)
	if err != nil {
		return readFailed(err)
	}
	digest, err := o.forge.Digest(ctx, project, fork, head)
	if err != nil {
		return readFailed(err)
	}
	learnt := map[string]any{"branch": branch, "headSha": head, "digest": digest}
	if o.d.InputsApproved {
		learnt["approvedDigest"] = digest // built from the inputs that were approved
	}
	mr, out := s.findMR(ctx, o, branch)
	switch {
	case out != nil:
		return out.With(learnt)
	case mr == nil && !open:
		return saga.NotDone("there is no merge request yet")
	case mr == nil:
		made, err := o.forge.OpenMergeRequest(ctx, forge.NewMergeRequest{
			Project: project, Source: branch, Target: o.d.Base, Title: o.conf.title(o.row),
			Description: strings.TrimSpace(o.d.Description + "\n\n" + trailer(o.row.ID)), Author: o.d.Author.Name,
		})
		if err != nil {
			if k := forge.KindOf(err); k != forge.KindExists && k != forge.KindUnclear {
				return writeFailed(err, "fix the cause, then retry: the branch is adopted")
			}
			if mr, out = s.findMR(ctx, o, branch); out != nil {
				return out.With(learnt)
			}
			if mr == nil {
				return saga.Unclear(saga.Clean(err.Error(), 1000))
			}
		} else {
			mr = &made
		}
	}
	learnt["mrIid"], learnt["url"] = mr.Ref.IID, mr.URL
	return saga.Done(fmt.Sprintf("merge request %d for %s", mr.Ref.IID, short(head)), learnt)
}

// findMR looks for the operation's own merge request, in any state.
func (s *Steps) findMR(ctx context.Context, o opened, branch string) (*forge.MergeRequest, *saga.Outcome) {
	all, err := o.forge.FindMergeRequests(ctx, o.row.About.Project, branch, o.d.Base)
	if err != nil {
		return nil, outcome(readFailed(err))
	}
	for i := range all {
		mr := &all[i]
		if !isOwn(mr.Description, o.row.ID) {
			if mr.State == forge.Open {
				return nil, outcome(saga.FailWith(saga.NeedsHuman, fmt.Sprintf("merge request %d of branch %s is not this operation's", mr.Ref.IID, branch),
					"close that merge request on the forge, then retry"))
			}
			continue
		}
		switch mr.State {
		case forge.Merged:
			return nil, outcome(saga.Moved(saga.Found, "merged on the forge as "+short(mr.MergeCommit), map[string]any{"mrIid": mr.Ref.IID, "mergeCommit": mr.MergeCommit}))
		case forge.Closed:
			return nil, outcome(saga.Moved(EvClosedOutside, "the merge request was closed on the forge", map[string]any{"mrIid": mr.Ref.IID}))
		}
		return mr, nil
	}
	return nil, nil
}
