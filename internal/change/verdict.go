package change

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// The verdicts of the ledger. Every callback gets one, with the rule that gave it.
const (
	Applied       = "applied"
	Duplicate     = "duplicate"
	Stale         = "stale"
	Early         = "early"
	Unknown       = "unknown"
	Contradiction = "contradiction"
)

// awaiting are the states that a kind of callback is for. "Sending" belongs to
// the approval's, because the answer can overtake our own write of "sent".
var awaiting = map[string][]saga.State{
	kindApproval: {ApprovalSending, ApprovalSent},
	kindDeploy:   {HandleMerged, DeployFailed, DeployUnknown},
}

const (
	kindApproval = "approval"
	kindDeploy   = "deploy"

	byCallback = "callback" // how an operation is known to be live
)

// incoming is a callback in the flow's own terms.
type incoming struct {
	kind        string
	event       saga.Name
	approvalID  string
	mrIID       int64 // 0: it names none
	hasMR       bool  // it names one
	project     string
	mergeCommit string
	ev          saga.Event
}

// judge gives a callback its verdict, in the ledger's order of rules, and the
// event that it becomes when it moves something or is kept. It is pure.
func judge(f *saga.Flow, in incoming, s store.CallbackState) (verdict, rule string, keep bool) {
	switch {
	case s.Seen && s.SameHash:
		return Duplicate, "the same request id came before", false
	case s.Seen:
		return Contradiction, "the same request id came before with another payload", false
	case s.Saga == nil:
		return Unknown, "no such operation", false
	}
	row := s.Saga.Row
	if row.Flow != f.Name {
		return Unknown, "the operation is of another flow", false
	}
	d, err := dataOf(row)
	if err != nil {
		return Unknown, "the operation's data can't be read", false
	}
	if !s.Owner {
		return Stale, "a newer operation has taken over", false
	}
	if in.kind == kindApproval {
		current := ApprovalID(row.ID, d.round())
		switch {
		case in.approvalID == "" && d.round() != 1:
			return Stale, "names no approval round, and this is not the first", false
		case in.approvalID != "" && in.approvalID != current:
			return Stale, "belongs to another approval round", false
		}
	}
	if in.hasMR && in.mrIID != d.MRIID {
		return Contradiction, fmt.Sprintf("names merge request %d, the operation's is %d", in.mrIID, d.MRIID), false
	}
	if in.project != "" && in.project != row.About.Project {
		return Contradiction, "names another project than the operation's, " + row.About.Project, false
	}
	if in.mergeCommit != "" && d.MergeCommit != "" && in.mergeCommit != d.MergeCommit {
		return Contradiction, "names another merge commit than the operation's, " + short(d.MergeCommit), false
	}
	spec, known := f.Spec(row.State)
	if !known || row.FlowVersion > f.Version {
		return in.keptWith(row, d, "the operation is in a state that this instance does not know")
	}
	if slices.Contains(awaiting[in.kind], row.State) {
		if _, ok := spec.Edge(in.event); ok {
			return Applied, fmt.Sprintf("awaited in %s", row.State), false
		}
	}
	if decided := decidedAs(in, d, row); decided != "" {
		if decided == string(in.event) {
			return Stale, "this was decided already", false
		}
		return Contradiction, "the opposite was decided already: " + decided, false
	}
	if ahead(f, row.State, awaiting[in.kind]) {
		return in.keptWith(row, d, fmt.Sprintf("kept until it is awaited; the operation is in %s", row.State))
	}
	return Stale, fmt.Sprintf("nothing awaits it in %s", row.State), false
}

// decidedAs is what the operation's own record says was decided about the thing
// that the callback is about; empty when nothing was.
func decidedAs(in incoming, d Data, row saga.Row) string {
	if in.kind == kindApproval {
		switch {
		case d.CloseAs == string(ApprovalRejected) || row.State == ApprovalRejected:
			return string(EvRejected)
		case d.CloseAs == string(ApprovalWithdrawn) || row.State == ApprovalWithdrawn:
			return string(EvWithdrawn)
		case d.InputsApproved || d.approved():
			return string(EvApproved)
		}
		return ""
	}
	switch row.State {
	case CalledBack:
		return string(EvLive)
	case DeployFailed:
		return string(EvDeployFailed)
	}
	return ""
}

// ahead says that one of the states can still be reached without a person's
// retry of something else: it lies ahead of this one.
func ahead(f *saga.Flow, from saga.State, want []saga.State) bool {
	spec, ok := f.Spec(from)
	if !ok || spec.Kind == saga.Final {
		return false
	}
	seen := map[saga.State]bool{from: true}
	queue := []saga.State{from}
	for len(queue) > 0 {
		spec, ok := f.Spec(queue[0])
		queue = queue[1:]
		if !ok {
			continue
		}
		for _, e := range spec.Edges() {
			for _, t := range e.To {
				if slices.Contains(want, t.State) {
					return true
				}
				if t.State != saga.FailedStep && !seen[t.State] {
					seen[t.State] = true
					queue = append(queue, t.State)
				}
			}
		}
	}
	return false
}

// approvalIncoming translates an approval callback.
func approvalIncoming(decision approval.Decision, approvalID, by, reason string, ext map[string]any) (incoming, *Invalid) {
	in := incoming{kind: kindApproval, approvalID: approvalID}
	if id := canonical(approvalID); id != "" {
		in.approvalID = id
	}
	switch decision {
	case approval.Approved:
		in.event = EvApproved
	case approval.Rejected:
		in.event = EvRejected
	case approval.Withdrawn:
		in.event = EvWithdrawn
	default:
		return in, &Invalid{Fields: []FieldError{{"decision", "must be approved, rejected or withdrawn"}}}
	}
	if v, named := ext["mrId"]; named && v != nil {
		in.hasMR = true
		switch n := v.(type) {
		case float64:
			in.mrIID = int64(n)
		case json.Number:
			in.mrIID, _ = n.Int64()
		case string:
			_, _ = fmt.Sscan(n, &in.mrIID)
		}
	}
	in.ev = saga.Event{Name: in.event, Actor: saga.Clean(by, 200), Detail: saga.Clean(reason, 1000)}
	return in, nil
}

// decidedData is what an approval adds to the saga: the content that is
// approved from now on. Until there is a merge request that is the inputs.
func decidedData(d Data, in incoming) json.RawMessage {
	patch := map[string]any{"decidedBy": in.ev.Actor, "reason": in.ev.Detail, "round": d.round(), "asked": d.content()}
	if in.event == EvApproved {
		if d.Digest == "" {
			patch["inputsApproved"] = true
		} else {
			patch["approvedDigest"] = d.Digest
		}
	}
	return saga.Patch(patch)
}
