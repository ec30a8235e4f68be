package change

import (
	"encoding/json"
	"slices"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// kept is what an early callback's event carries until its state is entered.
// What it does is decided then, by what the operation knows then.
type kept struct {
	ApprovalID  string `json:"approvalId,omitempty"`
	MergeCommit string `json:"mergeCommit,omitempty"`
}

func (in incoming) kept() kept {
	return kept{ApprovalID: in.approvalID, MergeCommit: in.mergeCommit}
}

var eventsOf = map[string][]saga.Name{
	kindApproval: {EvApproved, EvRejected, EvWithdrawn},
	kindDeploy:   {EvLive, EvDeployFailed},
}

// keptWith is the verdict on a callback that is to be kept, beside those that
// are kept already: each thing is decided once, whenever it is decided. A deploy
// that failed may still go live, as after DEPLOY_FAILED.
func (in incoming) keptWith(row saga.Row, d Data, rule string) (verdict, why string, keep bool) {
	for _, e := range row.Early {
		if !slices.Contains(eventsOf[in.kind], e.Name) {
			continue
		}
		if _, dropped := recall(row, d, e); dropped != "" {
			continue
		}
		switch {
		case e.Name == in.event:
			return Stale, "the same is kept already, until it is awaited", false
		case in.event != EvLive:
			return Contradiction, "another decision is kept already: " + string(e.Name), false
		}
	}
	return Early, rule, true
}

// applyKept is the flow's word on an early event whose state is entered.
func applyKept(row saga.Row, ev saga.Event) (saga.Event, string) {
	d, err := dataOf(row)
	if err != nil {
		return ev, "the operation's data can't be read"
	}
	return recall(row, d, ev)
}

// recall makes an event that was kept into the one that it is now, or says why
// it is none any more.
func recall(row saga.Row, d Data, ev saga.Event) (now saga.Event, dropped string) {
	var k kept
	if json.Unmarshal(ev.Data, &k) != nil {
		return ev, "what it was about can't be read"
	}
	if slices.Contains(eventsOf[kindApproval], ev.Name) {
		first := ApprovalID(row.ID, 1)
		if k.ApprovalID == "" {
			k.ApprovalID = first
		}
		if k.ApprovalID != ApprovalID(row.ID, d.round()) {
			return ev, "it belongs to another approval round"
		}
		ev.Data = decidedData(d, incoming{event: ev.Name, ev: ev})
		return ev, ""
	}
	if k.MergeCommit != "" && d.MergeCommit != "" && k.MergeCommit != d.MergeCommit {
		return ev, "it names another merge commit than the operation's"
	}
	ev.Data = nil
	if ev.Name == EvLive {
		ev.Data = saga.Patch(map[string]string{"liveBy": byCallback})
	}
	return ev, ""
}
