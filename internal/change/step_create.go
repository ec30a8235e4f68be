package change

import (
	"context"
	"errors"
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
	o, inputs, bad := s.openCreate(ctx, run)
	if bad != nil {
		return *bad
	}
	head, out := s.ownBranch(ctx, o, inputs)
	if out != nil {
		return *out
	}
	if head == "" {
		if head, out = s.makeBranch(ctx, o, inputs); out != nil {
			return *out
		}
	}
	return s.mergeRequest(ctx, o, head, true)
}

// lookCreate is create without its writes. A close that waits needs no look: it
// looks for itself what was made, and takes it back.
func (s *Steps) lookCreate(ctx context.Context, run engine.Run) saga.Outcome {
	if run.Row.Pending != nil {
		return saga.NotDone("what was made is closed with it")
	}
	o, inputs, bad := s.openCreate(ctx, run)
	if bad != nil {
		return *bad
	}
	head, out := s.ownBranch(ctx, o, inputs)
	if out != nil {
		return *out
	}
	if head == "" {
		return saga.NotDone("there is no branch yet")
	}
	return s.mergeRequest(ctx, o, head, false)
}

func (s *Steps) openCreate(ctx context.Context, run engine.Run) (opened, []store.Input, *saga.Outcome) {
	o, bad := s.open(run)
	if bad != nil {
		return o, nil, bad
	}
	inputs, err := s.Store.Inputs(ctx, run.Row.ID)
	if err != nil {
		return o, nil, outcome(saga.FailWith(saga.Transient, "reading the inputs: "+err.Error(), ""))
	}
	return o, inputs, nil
}

// ownBranch finds the branch that an earlier attempt made; empty when there is none.
func (s *Steps) ownBranch(ctx context.Context, o opened, inputs []store.Input) (head string, out *saga.Outcome) {
	head, foreign, err := o.lookBranch(ctx, inputs)
	switch {
	case err != nil:
		return "", outcome(readFailed(err))
	case foreign != "":
		return "", outcome(saga.FailWith(saga.NeedsHuman, "branch "+o.branch()+" exists and "+foreign, "delete or rename the branch on the forge, then retry"))
	}
	return head, nil
}

// lookBranch looks at the operation's branch: its head where it is the
// operation's own, nothing where there is none, else why it is somebody else's.
// The marker only claims whose it is: anybody who may push can write one. Its
// own is the change itself, one commit with exactly its files on a commit of
// the base branch.
func (o opened) lookBranch(ctx context.Context, inputs []store.Input) (head, foreign string, err error) {
	name, project := o.branch(), o.row.About.Project
	b, err := o.forge.Branch(ctx, project, name)
	switch {
	case forge.KindOf(err) == forge.KindNotFound:
		return "", "", nil
	case err != nil:
		return "", "", err
	case !isOwn(b.Message, o.row.ID):
		return "", "is not this operation's", nil
	}
	parent, same, err := o.forge.IsChange(ctx, newChange(o.row, o.d, name, "", inputs), b.SHA)
	switch {
	case err != nil:
		return "", "", err
	case !same:
		return "", "carries this operation's marker, but is not one commit with its files", nil
	}
	base, err := o.forge.Branch(ctx, project, o.d.Base)
	fork := ""
	if err == nil {
		fork, err = o.forge.MergeBase(ctx, project, base.SHA, parent)
	}
	switch k := forge.KindOf(err); {
	case err != nil && k != forge.KindNotFound && k != forge.KindConflict:
		return "", "", err
	case fork != parent: // or there is no base, or no history in common
		return "", "carries this operation's marker, but stands on a commit that " + o.d.Base + " does not have", nil
	}
	// A commit of long ago may hold what is asked for already: a change that
	// changes nothing there takes nothing back on the base.
	changed, err := o.changedSince(ctx, parent, inputs)
	switch {
	case err != nil:
		return "", "", err
	case len(changed) > 0:
		return "", "carries this operation's marker, but stands on a commit where " + strings.Join(changed, ", ") + " was not what it was at submit", nil
	}
	return b.SHA, "", nil
}

func outcome(o saga.Outcome) *saga.Outcome { return &o }

func (s *Steps) makeBranch(ctx context.Context, o opened, inputs []store.Input) (head string, out *saga.Outcome) {
	project := o.row.About.Project
	base, err := o.forge.Branch(ctx, project, o.d.Base)
	if err != nil {
		return "", outcome(readFailed(err))
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
		if head, out := s.ownBranch(ctx, o, inputs); out != nil || head != "" {
			return head, out
		}
		return "", outcome(saga.Unclear(saga.Clean(err.Error(), 1000)))
	case nested(err):
		return "", outcome(saga.FailWith(saga.NeedsHuman, err.Error(), "delete or rename the branch that is in the way, or name mergeflow's branches otherwise (projects[].mr.branch), then retry"))
	}
	return "", outcome(writeFailed(err, "fix the cause, then retry: what exists is adopted"))
}

// nested says that a branch came into the way after the door had looked.
func nested(err error) bool {
	e, ok := errors.AsType[*forge.Error](err)
	return ok && e.Kind == forge.KindInvalid && e.Field == "branch"
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
	changed, err := o.changedSince(ctx, tip, inputs)
	switch {
	case err != nil:
		return outcome(readFailed(err))
	case len(changed) == 0:
		return nil
	}
	return outcome(saga.FailWith(saga.Deterministic,
		fmt.Sprintf("%s moved since submit and changed %s", o.d.Base, strings.Join(changed, ", ")),
		"close this operation and submit the change again, on what the files say now"))
}

// changedSince are the touched files that are not the same in a commit as they
// were on the base at submit.
func (o opened) changedSince(ctx context.Context, commit string, inputs []store.Input) (changed []string, err error) {
	if commit == o.d.BaseSHA {
		return nil, nil
	}
	paths := make([]string, len(inputs))
	for i, f := range inputs {
		paths[i] = f.Path
	}
	before, err := o.forge.Files(ctx, o.row.About.Project, o.d.BaseSHA, paths)
	if err != nil {
		return nil, err
	}
	now, err := o.forge.Files(ctx, o.row.About.Project, commit, paths)
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		if before[p] != now[p] {
			changed = append(changed, p)
		}
	}
	return changed, nil
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
	o.d.HeadSHA = head
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
	own, foreign, err := o.lookMRs(ctx, branch)
	switch {
	case err != nil:
		return nil, outcome(readFailed(err))
	case own != nil && own.State == forge.Merged:
		return nil, outcome(o.found(*own))
	case foreign != nil:
		return nil, outcome(saga.FailWith(saga.NeedsHuman, fmt.Sprintf("merge request %d of branch %s is not this operation's", foreign.Ref.IID, branch),
			"close that merge request on the forge, then retry"))
	case own != nil && own.State == forge.Closed:
		return nil, outcome(saga.Moved(EvClosedOutside, "the merge request was closed on the forge", map[string]any{"mrIid": own.Ref.IID}))
	}
	return own, nil
}

// lookMRs looks at the merge requests of the operation's branch: its own, which
// carries its marker, and an open one of somebody else.
func (o opened) lookMRs(ctx context.Context, branch string) (own, foreign *forge.MergeRequest, err error) {
	all, err := o.forge.FindMergeRequests(ctx, o.row.About.Project, branch, o.d.Base)
	if err != nil {
		return nil, nil, err
	}
	for i := range all { // the newest first
		mr := &all[i]
		switch ours := isOwn(mr.Description, o.row.ID); {
		case ours && (own == nil || mr.State == forge.Merged):
			own = mr
		case !ours && foreign == nil && mr.State == forge.Open:
			foreign = mr
		}
	}
	return own, foreign, nil
}
