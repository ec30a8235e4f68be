package change

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// LocalActor is who acts where no tokens are required and no name is given.
const LocalActor = "local"

// Vote is one approver's word through the built-in approvals. A vote that makes
// the quorum moves the operation; one before that is recorded in its data and
// history. The same vote again changes nothing.
func (s *Service) Vote(ctx context.Context, operationID string, decision approval.Decision, reason, who string) (saga.Decision, error) {
	if s.Builtin == nil {
		return saga.Decision{}, &Refusal{Code: CodeNotAllowed, Detail: "approvals come from outside (approval.kind: webhook)", OperationID: operationID}
	}
	in, bad := approvalIncoming(decision, "", who, reason, nil)
	if bad != nil {
		return saga.Decision{}, bad
	}
	return s.Engine.Apply(ctx, operationID, func(l store.Locked, settings saga.Settings) (store.Writes, error) {
		return s.vote(l, in, who, reason, settings)
	})
}

func (s *Service) vote(l store.Locked, in incoming, who, reason string, settings saga.Settings) (store.Writes, error) {
	row := l.Row
	d, err := dataOf(row)
	if err != nil {
		return store.Writes{}, err
	}
	if spec, ok := Table.Spec(row.State); ok {
		if _, awaited := spec.Edge(in.event); !awaited {
			return store.Writes{}, &saga.Refusal{Flow: Table.Name, State: row.State, Event: in.event, Allowed: spec.Actions(row), Err: saga.ErrIllegalTransition}
		}
	}
	local := who == LocalActor
	if in.event == EvWithdrawn {
		if who != d.SubmittedBy && !local {
			return store.Writes{}, &Refusal{Code: CodeNotAllowed, Detail: "only " + d.SubmittedBy + ", who asked for it, may withdraw it", OperationID: row.ID}
		}
	} else if ok, why := s.Builtin.May(who, d.SubmittedBy, row.About.Target, local); !ok {
		return store.Writes{}, &Refusal{Code: CodeNotAllowed, Detail: why, OperationID: row.ID}
	}
	flow := engine.Flow{Table: Table, Outward: Outward}
	ev := in.ev
	if in.event == EvApproved {
		have := 1
		for _, v := range d.Votes {
			if v.Round != d.round() {
				continue
			}
			if v.By == who {
				return store.Writes{}, &saga.Refusal{Flow: Table.Name, State: row.State, Event: in.event, Err: saga.ErrAlreadyAdvanced}
			}
			have++
		}
		d.Votes = append(d.Votes, Vote{By: who, Round: d.round(), Reason: saga.Clean(reason, 1000), At: l.Now})
		if _, quorum := s.Builtin.For(row.About.Target); have < quorum {
			next := row
			if next.Data, err = saga.MergeData(row.Data, saga.Patch(map[string]any{"votes": d.Votes})); err != nil {
				return store.Writes{}, err
			}
			return store.Writes{Decision: saga.Decision{Row: next, KeepCommand: true,
				Notes: []saga.Note{{Event: "vote", Actor: who, Detail: fmt.Sprintf("approved (%d of %d): %s", have, quorum, saga.Clean(reason, 1000))}}}}, nil
		}
	}
	if ev.Data, err = saga.MergeData(decidedData(d, in), saga.Patch(map[string]any{"votes": d.Votes})); err != nil {
		return store.Writes{}, err
	}
	return flow.Receive(l, ev, settings)
}

// Verdict is what a callback was answered.
type Verdict struct {
	Verdict string
	Rule    string
}

// ApprovalCallback is POST /v1/callbacks/approval.
type ApprovalCallback struct {
	RequestID   string
	OperationID string
	ApprovalID  string
	Decision    string
	By          string
	Reason      string
	Ext         map[string]any
	Raw         []byte // the body as it came
	Source      string // endpoint and credential
}

// Approval takes an approval callback: ledger row, verdict and effect in one transaction.
func (s *Service) Approval(ctx context.Context, c ApprovalCallback) (Verdict, error) {
	in, bad := approvalIncoming(approval.Decision(c.Decision), c.ApprovalID, c.By, c.Reason, c.Ext)
	if bad != nil {
		return Verdict{}, bad
	}
	if err := required(c.RequestID, "requestId", c.OperationID, "operationId"); err != nil {
		return Verdict{}, err
	}
	return s.receive(ctx, in, store.Callback{Kind: kindApproval, Source: c.Source, RequestID: c.RequestID, OperationID: c.OperationID}, c.Raw)
}

// DeployCallback is POST /v1/callbacks/deploy.
type DeployCallback struct {
	RequestID   string
	Project     string
	MRIID       int64
	OperationID string
	MergeCommit string
	Result      string // live or failed
	Detail      string
	Raw         []byte
	Source      string
}

// Deployed takes a deploy callback. One without an operation id is matched by
// merge commit, else by project and merge request.
func (s *Service) Deployed(ctx context.Context, c DeployCallback) (Verdict, error) {
	if err := required(c.RequestID, "requestId"); err != nil {
		return Verdict{}, err
	}
	in := incoming{kind: kindDeploy, mrIID: c.MRIID, hasMR: c.MRIID != 0, project: c.Project, mergeCommit: c.MergeCommit}
	in.ev = saga.Event{Actor: "deploy", Detail: saga.Clean(c.Detail, 1000)}
	switch c.Result {
	case "live":
		in.event = EvLive
		in.ev.Data = saga.Patch(map[string]string{"liveBy": byCallback})
	case "failed":
		in.event = EvDeployFailed
		in.ev.Failure = &saga.Failure{Kind: saga.NeedsHuman, Error: saga.Clean(c.Detail, 1000)}
	default:
		return Verdict{}, invalid("result", "must be live or failed")
	}
	in.ev.Name = in.event
	id := c.OperationID
	if id == "" {
		if c.MergeCommit == "" && (c.Project == "" || c.MRIID == 0) {
			return Verdict{}, invalid("operationId", "is required, or mergeCommit, or project and mrIid")
		}
		found, err := s.Store.OperationOf(ctx, c.Project, c.MergeCommit, c.MRIID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return Verdict{}, err
		}
		id = found
	}
	return s.receive(ctx, in, store.Callback{Kind: kindDeploy, Source: c.Source, RequestID: c.RequestID, OperationID: id}, c.Raw)
}

func (s *Service) receive(ctx context.Context, in incoming, cb store.Callback, raw []byte) (Verdict, error) {
	sum := sha256.Sum256(raw)
	cb.Hash = hex.EncodeToString(sum[:])
	cb.Payload = excerpt(raw)
	cb.OperationID = canonical(cb.OperationID) // empty: no operation has such an id
	id, err := uuid.NewV7()
	if err != nil {
		return Verdict{}, err
	}
	cb.ID, in.ev.ID = id.String(), id.String()
	if err := fault.PointOf(fault.CallbackBefore, cb.Kind); err != nil {
		return Verdict{}, err
	}
	settings := s.Engine.Settings()
	entry, err := s.Store.Callback(ctx, cb, func(st store.CallbackState) (store.CallbackDecision, error) {
		return decideCallback(in, st, settings)
	})
	if err != nil {
		return Verdict{}, err
	}
	if err := fault.PointOf(fault.CallbackDone, cb.Kind); err != nil {
		return Verdict{}, err
	}
	if entry.Decision != nil {
		s.Engine.Announce(ctx, *entry.Decision)
	}
	return Verdict{Verdict: entry.Verdict, Rule: entry.Rule}, nil
}

// canonical is an id as it is stored, in lower case; empty for a text that is none.
func canonical(id string) string {
	u, err := uuid.Parse(id)
	if err != nil {
		return ""
	}
	return u.String()
}

// decideCallback is the one way of every callback, with its saga under lock. It is pure.
func decideCallback(in incoming, st store.CallbackState, settings saga.Settings) (store.CallbackDecision, error) {
	out := store.CallbackDecision{Actor: in.ev.Actor}
	var keep bool
	out.Verdict, out.Rule, keep = judge(Table, in, st)
	if st.Saga == nil {
		return out, nil
	}
	row := st.Saga.Row
	d, err := dataOf(row)
	if err != nil {
		return out, nil //nolint:nilerr // judge has said so; the ledger keeps it
	}
	// What proves that this operation's merge is live is kept for those before
	// it: once, and as the operation knows itself, never as the callback calls it.
	if in.event == EvLive && (out.Verdict == Applied || keep || out.Verdict == Stale && row.State == CalledBack && d.LiveBy != byCallback) {
		out.Deploy = &store.DeployRecord{Project: row.About.Project, Base: d.Base, MRIID: d.MRIID, MergeCommit: d.MergeCommit, Result: string(EvLive)}
	}
	if keep {
		ev := in.ev
		ev.At, ev.Data = st.Now, saga.Patch(in.kept())
		out.Writes = &store.Writes{Decision: saga.Await(row, ev)}
		return out, nil
	}
	if out.Verdict != Applied {
		return out, nil
	}
	ev := in.ev
	if in.kind == kindApproval {
		ev.Data = decidedData(d, in)
	}
	flow := engine.Flow{Table: Table, Outward: Outward}
	w, err := flow.Receive(*st.Saga, ev, settings)
	if err != nil {
		return out, err
	}
	out.Writes = &w
	return out, nil
}

// excerpt keeps a payload for the ledger while it is JSON and not large.
func excerpt(raw []byte) json.RawMessage {
	const limit = 16 << 10
	if len(raw) > limit || !json.Valid(raw) {
		return saga.Patch(map[string]any{"omitted": len(raw)})
	}
	return raw
}

func required(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == "" {
			return invalid(pairs[i+1], "is required")
		}
	}
	return nil
}

// Operate sends an operator's event to a saga of this flow. A close that meets
// a leased command waits for it, like every close.
func (s *Service) Operate(ctx context.Context, row saga.Row, event saga.Name, reason, actor string) (saga.Decision, error) {
	ev := saga.Event{Name: event, Actor: actor, Detail: reason, At: time.Time{}}
	if event == saga.Fail {
		ev.Failure = &saga.Failure{Kind: saga.NeedsHuman, Error: "given up by " + actor + ": " + saga.Clean(reason, 500)}
	}
	return s.Engine.Send(ctx, row.ID, ev)
}
