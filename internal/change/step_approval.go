package change

import (
	"context"
	"maps"
	"time"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// requestApproval sends the request of the current round, under the same id on
// every try. What was decided meanwhile is found first.
func (s *Steps) requestApproval(ctx context.Context, run engine.Run) saga.Outcome {
	d, err := dataOf(run.Row)
	if err != nil {
		return saga.FailWith(saga.Deterministic, err.Error(), "the saga's data can't be read; please report it")
	}
	if out, _ := s.otherHands(ctx, run, d); out != nil {
		return *out
	}
	round := d.round()
	id := ApprovalID(run.Row.ID, round)
	if out, decided := s.decided(ctx, d, id); decided {
		return out
	}
	inputs, err := s.Store.Inputs(ctx, run.Row.ID)
	if err != nil {
		return saga.FailWith(saga.Transient, "reading the inputs: "+err.Error(), "")
	}
	spec, _ := Table.Spec(ApprovalSent)
	r := approval.Request{
		ApprovalID: id, OperationID: run.Row.ID, Round: round, Order: string(run.Row.Order),
		Subject: run.Row.About.Subject, Target: run.Row.About.Target, Project: run.Row.About.Project, Title: run.Row.About.Title,
		Description: d.Description, Files: files(inputs), Ext: maps.Clone(d.Ext), CallbackURL: s.CallbackURL,
		// The wait begins when this has been sent: whoever answers until then is in time.
		ExpiresAt: time.Now().Add(s.Settings().DeadlineOf(spec)).UTC().Truncate(time.Second),
	}
	if d.MRIID != 0 {
		if r.Ext == nil {
			r.Ext = map[string]any{}
		}
		r.Ext["mrId"] = d.MRIID
	}
	if err := s.Approver.Send(ctx, r); err != nil {
		return approverFailed(err)
	}
	return saga.Moved(EvSent, "approval request sent", map[string]any{"round": round, "asked": d.content()})
}

func files(inputs []store.Input) []approval.File {
	out := make([]approval.File, len(inputs))
	for i, f := range inputs {
		out[i] = approval.File(f)
	}
	return out
}

// decided asks the approver, where it can be asked. A question that fails
// settles nothing and is no failure.
func (s *Steps) decided(ctx context.Context, d Data, id string) (saga.Outcome, bool) {
	a, ok, err := s.Approver.Look(ctx, id)
	if err != nil || !ok || a.Decision == approval.None {
		return saga.Outcome{}, false
	}
	in, bad := approvalIncoming(a.Decision, id, a.By, a.Reason, nil)
	if bad != nil {
		return saga.Outcome{}, false
	}
	return saga.Moved(in.event, "learnt by asking: "+string(a.Decision)+" by "+in.ev.Actor, decidedData(d, in)), true
}

// otherHands looks whether the merge request, where there is one, was merged or
// closed meanwhile. What else it sees, a failed look included, settles nothing
// while people decide: it is evidence.
func (s *Steps) otherHands(ctx context.Context, run engine.Run, d Data) (out *saga.Outcome, seen string) {
	if d.MRIID == 0 {
		return nil, ""
	}
	o, bad := s.open(run)
	if bad != nil {
		return nil, "; " + bad.String()
	}
	if _, out = o.lookMR(ctx); out == nil {
		return nil, ""
	}
	switch out.Event() {
	case saga.Found, EvClosedOutside:
		return out, ""
	}
	return nil, "; " + out.String()
}

// awaitApproval is the self-check of the waiting state: a lost callback is
// found by asking, other hands on the merge request by looking.
func (s *Steps) awaitApproval(ctx context.Context, run engine.Run) saga.Outcome {
	d, err := dataOf(run.Row)
	if err != nil {
		return saga.FailWith(saga.Deterministic, err.Error(), "the saga's data can't be read; please report it")
	}
	out, seen := s.otherHands(ctx, run, d)
	if out != nil {
		return *out
	}
	if out, decided := s.decided(ctx, d, ApprovalID(run.Row.ID, d.round())); decided {
		return out
	}
	if run.Row.State == ApprovalSending {
		return saga.NotDone("no decision is known" + seen)
	}
	return saga.NotYet("not decided yet" + seen)
}
