package change

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Steps are the flow's commands with what they need.
type Steps struct {
	Forges      func(name string) (forge.Changer, bool)
	Projects    func(project string) Project
	Approver    approval.Approver
	Deployer    deploy.Deployer
	Store       StepStore
	Settings    func() saga.Settings // in force now
	CallbackURL string               // where approvers answer
}

// StepStore is what the steps ask of the store.
type StepStore interface {
	Inputs(ctx context.Context, sagaID string) ([]store.Input, error)
	LiveSince(ctx context.Context, project, base string, since time.Time, limit int) ([]store.DeployRecord, error)
	OperationOf(ctx context.Context, project, mergeCommit string, mrIID int64) (string, error)
	Saga(ctx context.Context, id string) (saga.Row, error)
}

// Commands are the flow's steps by command. AwaitPeople comes with the change
// flow's hard days; until then no step leads to its state, and RebaseMergeRequest
// only looks.
func (s *Steps) Commands() map[saga.Command]engine.Step {
	return map[saga.Command]engine.Step{
		CmdRequestApproval: {Perform: s.requestApproval, Look: s.awaitApproval},
		CmdAwaitApproval:   {Look: s.awaitApproval},
		CmdCreate:          {Perform: s.create, Look: s.lookCreate},
		CmdAwaitChecks:     {Perform: s.awaitChecks, Look: s.awaitChecks},
		CmdApprove:         {Perform: s.approve, Look: s.lookApprove},
		CmdMerge:           {Perform: s.merge, Look: s.lookMerge},
		CmdRebase:          {Perform: s.rebase, Look: s.rebase},
		CmdClose:           {Perform: s.closeAll, Look: s.lookClose},
		CmdReconcile:       {Perform: s.reconcile, Look: s.lookLive},
	}
}

// Flow is the table with these steps, as the engine takes it.
func (s *Steps) Flow() engine.Flow {
	return engine.Flow{Table: Table, Steps: s.Commands(), Outward: Outward}
}

// opened is a saga with its data and its forge at hand.
type opened struct {
	row   saga.Row
	d     Data
	forge forge.Changer
	ref   forge.Ref
	conf  Project
}

func (s *Steps) open(run engine.Run) (opened, *saga.Outcome) {
	o := opened{row: run.Row, conf: s.Projects(run.Row.About.Project)}
	d, err := dataOf(run.Row)
	if err != nil {
		out := saga.FailWith(saga.Deterministic, err.Error(), "the saga's data can't be read; please report it")
		return o, &out
	}
	f, ok := s.Forges(d.Forge)
	if !ok {
		out := saga.FailWith(saga.NeedsHuman, "forge "+d.Forge+" is not configured on this instance", "put the forge back into the configuration, then retry")
		return o, &out
	}
	o.d, o.forge, o.ref = d, f, forge.Ref{Project: run.Row.About.Project, IID: d.MRIID}
	return o, nil
}

// branch is the operation's branch: the one it has, else the one the project's
// template names now.
func (o opened) branch() string {
	if o.d.Branch != "" {
		return o.d.Branch
	}
	return o.conf.branch(o.row)
}

// lookMR reads the merge request and settles what a look alone settles: merged
// or closed by somebody, or another head than the one that is being carried.
func (o opened) lookMR(ctx context.Context) (forge.MergeRequest, *saga.Outcome) {
	mr, err := o.forge.MergeRequest(ctx, o.ref)
	if err != nil {
		out := readFailed(err)
		return mr, &out
	}
	var out saga.Outcome
	switch {
	case mr.State == forge.Merged:
		out = o.found(mr)
	case mr.State == forge.Closed:
		out = saga.Moved(EvClosedOutside, "the merge request was closed on the forge", nil)
	case mr.State == forge.Locked:
		out = saga.NotYet("the forge is merging it right now")
	case mr.HeadSHA != o.d.HeadSHA:
		out = saga.FailAs(EvHeadMoved, saga.NeedsHuman, headMoved(o.d.HeadSHA, mr.HeadSHA), "")
	default:
		return mr, nil
	}
	return mr, &out
}

// WithoutApproval begins the history's entry of a merge by other hands of
// content that nobody had approved, or of another head than the operation's.
const WithoutApproval = "merged-without-approval"

// found is the outcome of a look that finds the merge request merged, by other
// hands as far as the flow knows.
func (o opened) found(mr forge.MergeRequest) saga.Outcome {
	detail := "merged on the forge as " + short(mr.MergeCommit)
	approved := o.d.approved() || o.d.Digest == "" && o.d.InputsApproved
	if !approved || mr.MergedHead != "" && mr.MergedHead != o.d.HeadSHA {
		detail = WithoutApproval + ": " + detail
	}
	return saga.Moved(saga.Found, detail, map[string]any{"mrIid": mr.Ref.IID, "mergeCommit": mr.MergeCommit})
}

func merged(commit string) any {
	return map[string]string{"mergeCommit": commit}
}

func headMoved(want, have string) string {
	if have == "" {
		return "the branch is gone; its head was " + short(want)
	}
	return fmt.Sprintf("the branch is at %s, mergeflow's head is %s", short(have), short(want))
}

func short(sha string) string {
	if len(sha) > 10 {
		return sha[:10]
	}
	return sha
}

// readFailed is the outcome of a read that failed: nothing was changed.
func readFailed(err error) saga.Outcome {
	switch forge.KindOf(err) {
	case forge.KindNotFound:
		return saga.FailWith(saga.Deterministic, err.Error(), "the project, the branch or the merge request is gone from the forge")
	case forge.KindInvalid:
		return saga.FailWith(saga.Deterministic, err.Error(), "")
	}
	return saga.FailWith(saga.Transient, err.Error(), "the forge could not be read; retry when it answers again")
}

// writeFailed is the outcome of a write that can be settled by a look.
func writeFailed(err error, hint string) saga.Outcome {
	switch forge.KindOf(err) {
	case forge.KindTransient:
		return saga.FailWith(saga.Transient, err.Error(), hint)
	case forge.KindUnclear:
		return saga.Unclear(saga.Clean(err.Error(), 1000))
	case forge.KindHeadMoved:
		return saga.FailAs(EvHeadMoved, saga.NeedsHuman, err.Error(), "")
	}
	return saga.FailWith(saga.Deterministic, err.Error(), hint)
}

func approverFailed(err error) saga.Outcome {
	kind := saga.Transient
	if e, ok := errors.AsType[*approval.Error](err); ok && !e.Transient {
		kind = saga.Deterministic
	}
	return saga.FailWith(kind, saga.Clean(err.Error(), 1000), "when the approval system answers again, retry: the request has the same id")
}
