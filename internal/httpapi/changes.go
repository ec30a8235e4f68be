package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

type submitIn struct {
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"255" doc:"The same key and body again answer the same"`
	Body           NewChange
}

type planIn struct {
	Body NewChange
}

type planOut struct {
	Body Plan
}

type approvalIn struct {
	ID   string `path:"id"`
	Body ApprovalInput
}

type bindingIn struct {
	Subject string `path:"subject"`
	Target  string `path:"target"`
}

type bindingOut struct {
	Body Binding
}

func (a *api) changeRoutes() {
	register(a, post("submit-change", "/v1/changes", "Ask for a change", http.StatusAccepted, 409, 422, 503), a.submitChange)
	register(a, post("plan-change", "/v1/changes:plan", "Say what a change would do; nothing is written", http.StatusOK, 422, 503), a.planChange)
	register(a, post("approve-operation", "/v1/operations/{id}/approval", "Approve, reject or withdraw (built-in approvals)", http.StatusAccepted, 403, 404, 409, 422, 503), a.approve)
	register(a, get("get-operation-callbacks", "/v1/operations/{id}/callbacks", "Callbacks with their verdicts, oldest first", 404), a.callbacks)
	register(a, get("get-binding", "/v1/bindings/{subject}/{target}", "Read a binding and its operations", 404), a.binding)
	a.callbackRoutes()
}

func submission(b NewChange) change.Submission {
	s := change.Submission{Subject: b.Subject, Target: b.Target, Project: b.Project, Base: b.Base, Title: b.Title,
		Description: b.Description, Labels: b.Labels, Ext: b.Ext, Order: saga.Order(b.Order)}
	for _, f := range b.Files {
		s.Files = append(s.Files, store.Input(f))
	}
	return s
}

func (a *api) submitChange(ctx context.Context, in *submitIn) (*acceptedOut, error) {
	var key *store.IdempotencyKey
	if in.IdempotencyKey != "" {
		if bad := badText(in.IdempotencyKey); bad != "" {
			return nil, invalid("Idempotency-Key", bad)
		}
		canonical, err := json.Marshal(in.Body) // keys of a map are sorted
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(canonical)
		key = &store.IdempotencyKey{Scope: actor, Key: in.IdempotencyKey, Hash: hex.EncodeToString(sum[:])}
	}
	started, err := a.Changes.Submit(ctx, submission(in.Body), key, actor)
	if err != nil {
		return nil, err
	}
	return &acceptedOut{Location: "/v1/operations/" + started.OperationID,
		Body: Accepted{OperationID: started.OperationID, Status: started.Status, State: string(started.State)}}, nil
}

func (a *api) planChange(ctx context.Context, in *planIn) (*planOut, error) {
	p, err := a.Changes.Plan(ctx, submission(in.Body), actor)
	if err != nil {
		return nil, err
	}
	out := Plan{Order: string(p.Order), States: texts(p.States), Base: p.Base, BaseSHA: p.BaseSHA, Branch: p.Branch,
		MergeRequest: PlanMR{Title: p.Title, Body: p.Body}, Diff: p.Diff, Approvers: append([]string{}, p.Approvers...), Quorum: p.Quorum,
		Checks: append([]string{}, p.Checks...), Reviewers: append([]string{}, p.Reviewers...), Deadlines: []StateDeadline{}, InTheWay: p.InTheWay}
	for _, s := range p.States {
		if d, ok := p.Deadlines[s]; ok {
			out.Deadlines = append(out.Deadlines, StateDeadline{State: string(s), After: saga.Duration(d)})
		}
	}
	return &planOut{out}, nil
}

// approve votes. A repeat whose effect is under way is accepted like the first.
func (a *api) approve(ctx context.Context, in *approvalIn) (*acceptedOut, error) {
	row, err := a.ops.row(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if row.Flow != change.Table.Name {
		return nil, notAllowed("an operation of flow "+row.Flow+" is not approved by people", nil)
	}
	who := in.Body.As
	if who == "" {
		who = change.LocalActor
	}
	d, err := a.Changes.Vote(ctx, row.ID, approval.Decision(in.Body.Decision), in.Body.Reason, who)
	if errors.Is(err, saga.ErrAlreadyAdvanced) {
		if row, err = a.ops.row(ctx, in.ID); err != nil {
			return nil, err
		}
		return a.accepted(row), nil
	}
	if err != nil {
		return nil, err
	}
	return a.accepted(d.Row), nil
}

func (a *api) callbacks(ctx context.Context, in *historyIn) (*page[CallbackEntry], error) {
	row, err := a.ops.row(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	var after int64
	if in.Cursor != "" {
		parts, ok := decodeCursor("c", in.Cursor, 1)
		if ok {
			var m store.Mark
			m, ok = readMark(parts[0])
			after = m.Seq
		}
		if !ok {
			return nil, badCursor()
		}
	}
	entries, err := a.Changes.Store.Callbacks(ctx, row.ID, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	return &page[CallbackEntry]{pageOf(entries, in.Limit, showCallback, func(e store.CallbackEntry) string {
		return encodeCursor("c", markText(store.Mark{Seq: e.Seq}))
	})}, nil
}

func showCallback(e store.CallbackEntry) CallbackEntry {
	return CallbackEntry{Seq: e.Seq, Kind: e.Kind, Source: e.Source, RequestID: e.RequestID, Verdict: e.Verdict, Rule: e.Rule,
		Actor: e.Actor, At: utc(e.At), AppliedAt: utc(e.AppliedAt), Payload: e.Payload}
}

func (a *api) binding(ctx context.Context, in *bindingIn) (*bindingOut, error) {
	b, err := a.Changes.Store.Binding(ctx, in.Subject, in.Target)
	if err != nil {
		return nil, missing(err, "binding of "+in.Subject+" and "+in.Target)
	}
	ops, err := a.ops.List(ctx, OperationFilter{Flow: change.Table.Name, Subject: in.Subject, Target: in.Target})
	if err != nil {
		return nil, err
	}
	return &bindingOut{Binding{Subject: b.Subject, Target: b.Target, Status: b.Status, OperationID: b.OperationID, Operations: ops.Items}}, nil
}

// changeRefusal maps what flow change refuses.
func changeRefusal(err error) *Error {
	if i, ok := errors.AsType[*change.Invalid](err); ok {
		e := newError(http.StatusUnprocessableEntity, codeInvalid, "the input is not valid")
		for _, f := range i.Fields {
			e.Errors = append(e.Errors, FieldError{Location: f.Field, Message: f.Detail})
		}
		return e
	}
	r, ok := errors.AsType[*change.Refusal](err)
	if !ok {
		return nil
	}
	status := http.StatusConflict
	switch r.Code {
	case change.CodeNoChange:
		status = http.StatusUnprocessableEntity
	case change.CodeOverloaded:
		status = http.StatusServiceUnavailable
	case change.CodeNotAllowed:
		status = http.StatusForbidden
	}
	e := newError(status, r.Code, r.Detail)
	e.OperationID, e.retryAfter = r.OperationID, r.RetryAfter
	return e
}

// changeMergeRequest is what a change's data says of its merge request.
func changeMergeRequest(row saga.Row) *MergeRequest {
	var d change.Data
	if json.Unmarshal(row.Data, &d) != nil || d.Branch == "" && d.MRIID == 0 {
		return nil
	}
	return &MergeRequest{IID: d.MRIID, URL: d.URL, Branch: d.Branch, HeadSHA: d.HeadSHA, MergeCommit: d.MergeCommit}
}
