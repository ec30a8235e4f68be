package change

import (
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func held(state saga.State, d Data) *store.Locked {
	return &store.Locked{Held: true, Row: saga.Row{ID: "op", Flow: Table.Name, FlowVersion: Table.Version, State: state, Version: 3, Data: saga.Patch(d)}}
}

// withEarly keeps callbacks as if they had come early.
func withEarly(l *store.Locked, ins ...incoming) *store.Locked {
	for _, in := range ins {
		l.Row.Early = append(l.Row.Early, saga.Event{Name: in.event, Data: saga.Patch(in.kept())})
	}
	return l
}

// The ledger's rules, in their order.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	first := ApprovalID("op", 1)
	approve := func(id string, ext map[string]any) incoming {
		in, bad := approvalIncoming(approval.Approved, id, "ann", "", ext)
		if bad != nil {
			t.Fatal(bad)
		}
		return in
	}
	reject, _ := approvalIncoming(approval.Rejected, first, "ann", "", nil)
	live := incoming{kind: kindDeploy, event: EvLive}
	failed := incoming{kind: kindDeploy, event: EvDeployFailed}
	second := Data{Round: 1, Asked: "d1", Digest: "d2"} // other content than the first round asked for
	for name, c := range map[string]struct {
		in   incoming
		s    store.CallbackState
		want string
	}{
		"seen":                           {approve(first, nil), store.CallbackState{Seen: true, SameHash: true, Saga: held(ApprovalSent, Data{}), Owner: true}, Duplicate},
		"seen with another payload":      {approve(first, nil), store.CallbackState{Seen: true, Saga: held(ApprovalSent, Data{}), Owner: true}, Contradiction},
		"no such operation":              {approve(first, nil), store.CallbackState{}, Unknown},
		"no owner":                       {approve(first, nil), store.CallbackState{Saga: held(ApprovalSent, Data{})}, Stale},
		"awaited":                        {approve(first, nil), store.CallbackState{Saga: held(ApprovalSent, Data{}), Owner: true}, Applied},
		"before sent":                    {approve(first, nil), store.CallbackState{Saga: held(ApprovalSending, Data{}), Owner: true}, Applied},
		"no id in the first round":       {approve("", nil), store.CallbackState{Saga: held(ApprovalSent, Data{}), Owner: true}, Applied},
		"no id in the second round":      {approve("", nil), store.CallbackState{Saga: held(ApprovalSent, second), Owner: true}, Stale},
		"first id in the second round":   {approve(first, nil), store.CallbackState{Saga: held(ApprovalSent, second), Owner: true}, Stale},
		"the second round's id":          {approve(ApprovalID("op", 2), nil), store.CallbackState{Saga: held(ApprovalSent, second), Owner: true}, Applied},
		"another merge request":          {approve(first, map[string]any{"mrId": 9.0}), store.CallbackState{Saga: held(ApprovalSent, Data{MRIID: 7}), Owner: true}, Contradiction},
		"the merge request":              {approve(first, map[string]any{"mrId": 7.0}), store.CallbackState{Saga: held(ApprovalSent, Data{MRIID: 7}), Owner: true}, Applied},
		"approval ahead":                 {approve(first, nil), store.CallbackState{Saga: held(CreateChecking, Data{MRIID: 7, Digest: "d"}), Owner: true}, Early},
		"approved already":               {approve(first, nil), store.CallbackState{Saga: held(CreateChecking, Data{Round: 1, InputsApproved: true}), Owner: true}, Stale},
		"rejected after approval":        {reject, store.CallbackState{Saga: held(HandleApproved, Data{Round: 1, InputsApproved: true, Digest: "d", ApprovedDigest: "d"}), Owner: true}, Contradiction},
		"approved after rejection":       {approve(first, nil), store.CallbackState{Saga: held(ApprovalRejected, Data{Round: 1}), Owner: true}, Contradiction},
		"live, awaited":                  {live, store.CallbackState{Saga: held(HandleMerged, Data{}), Owner: true}, Applied},
		"live, ahead":                    {live, store.CallbackState{Saga: held(HandleApproved, Data{}), Owner: true}, Early},
		"live after all":                 {live, store.CallbackState{Saga: held(DeployFailed, Data{}), Owner: true}, Applied},
		"live again":                     {live, store.CallbackState{Saga: held(CalledBack, Data{}), Owner: true}, Stale},
		"failed after live":              {failed, store.CallbackState{Saga: held(CalledBack, Data{}), Owner: true}, Contradiction},
		"live of a closed one":           {live, store.CallbackState{Saga: held(CloseSucceeded, Data{}), Owner: true}, Stale},
		"another merge commit":           {incoming{kind: kindDeploy, event: EvLive, mergeCommit: "other"}, store.CallbackState{Saga: held(HandleMerged, Data{MergeCommit: "c"}), Owner: true}, Contradiction},
		"the merge commit":               {incoming{kind: kindDeploy, event: EvLive, mergeCommit: "c"}, store.CallbackState{Saga: held(HandleMerged, Data{MergeCommit: "c"}), Owner: true}, Applied},
		"another project":                {incoming{kind: kindDeploy, event: EvLive, project: "other"}, store.CallbackState{Saga: held(HandleMerged, Data{}), Owner: true}, Contradiction},
		"approved early, again":          {approve("", nil), store.CallbackState{Saga: withEarly(held(CreateChecking, Data{}), approve(first, nil)), Owner: true}, Stale},
		"rejected after early approval":  {reject, store.CallbackState{Saga: withEarly(held(CreateChecking, Data{}), approve(first, nil)), Owner: true}, Contradiction},
		"early, beside another round's":  {approve(ApprovalID("op", 2), nil), store.CallbackState{Saga: withEarly(held(CreateChecking, second), approve(first, nil)), Owner: true}, Early},
		"live early, beside an approval": {live, store.CallbackState{Saga: withEarly(held(CreateChecking, Data{}), approve(first, nil)), Owner: true}, Early},
		"live after an early failure":    {live, store.CallbackState{Saga: withEarly(held(HandleApproved, Data{}), failed), Owner: true}, Early},
		"failed after an early live":     {failed, store.CallbackState{Saga: withEarly(held(HandleApproved, Data{}), live), Owner: true}, Contradiction},
		"failed early, again":            {failed, store.CallbackState{Saga: withEarly(held(HandleApproved, Data{}), failed), Owner: true}, Stale},
		"again in an unknown state":      {live, store.CallbackState{Saga: withEarly(held("FUTURE", Data{}), live), Owner: true}, Stale},
		"a state of a newer version":     {live, store.CallbackState{Saga: held("FUTURE", Data{}), Owner: true}, Early},
	} {
		got, rule, keep := judge(Table, c.in, c.s)
		if got != c.want || rule == "" || keep != (got == Early) {
			t.Errorf("%s: %s (%s, kept %v), want %s", name, got, rule, keep, c.want)
		}
	}
}

// Only a callback that proves the operation's own merge live is kept for the
// watermark, and as the operation knows itself.
func TestWhatTheWatermarkIsTold(t *testing.T) {
	t.Parallel()
	d := Data{Base: "main", MRIID: 7, MergeCommit: "c"}
	own := &store.DeployRecord{Project: "app", Base: "main", MRIID: 7, MergeCommit: "c", Result: "live"}
	for name, c := range map[string]struct {
		in    incoming
		state saga.State
		want  *store.DeployRecord
	}{
		"applied":                 {incoming{event: EvLive}, HandleMerged, own},
		"live again":              {incoming{event: EvLive}, CalledBack, own},
		"failed":                  {incoming{event: EvDeployFailed}, HandleMerged, nil},
		"early":                   {incoming{event: EvLive}, HandleApproved, own},
		"closed":                  {incoming{event: EvLive}, CloseSucceeded, nil},
		"another merge commit":    {incoming{event: EvLive, mergeCommit: "x"}, HandleMerged, nil},
		"another merge request":   {incoming{event: EvLive, hasMR: true, mrIID: 99}, HandleMerged, nil},
		"another commit, live":    {incoming{event: EvLive, mergeCommit: "x"}, CalledBack, nil},
		"another project's claim": {incoming{event: EvLive, project: "other"}, HandleMerged, nil},
	} {
		c.in.kind, c.in.ev.Name = kindDeploy, c.in.event
		l := held(c.state, d)
		l.Row.About.Project = "app"
		got, err := decideCallback(c.in, store.CallbackState{Saga: l, Owner: true, Now: time.Unix(1, 0)}, saga.Settings{})
		if err != nil || (got.Deploy == nil) != (c.want == nil) || got.Deploy != nil && *got.Deploy != *c.want {
			t.Errorf("%s: %+v %v (%s)", name, got.Deploy, err, got.Verdict)
		}
		if moved := got.Writes != nil && len(got.Writes.Decision.Moves) > 0; moved != (got.Verdict == Applied) {
			t.Errorf("%s: %s, and moved %v", name, got.Verdict, moved)
		}
	}
}

// A verdict "applied" is one that the table takes: no state of the table makes
// the decision fail after the ledger has said so.
func TestAppliedIsAlwaysPossible(t *testing.T) {
	t.Parallel()
	at := time.Unix(1, 0)
	for i := range Table.States {
		spec := &Table.States[i]
		for _, in := range []incoming{{kind: kindApproval, event: EvApproved}, {kind: kindApproval, event: EvRejected}, {kind: kindApproval, event: EvWithdrawn},
			{kind: kindDeploy, event: EvLive}, {kind: kindDeploy, event: EvDeployFailed}} {
			l := held(spec.State, Data{})
			verdict, rule, _ := judge(Table, in, store.CallbackState{Saga: l, Owner: true})
			if verdict != Applied {
				continue
			}
			if _, err := saga.Decide(Table, l.Row, saga.Event{Name: in.event, At: at}, saga.Settings{}); err != nil {
				t.Errorf("%s in %s is applied (%s), and the table refuses it: %v", in.event, spec.State, rule, err)
			}
		}
	}
}

func TestWhoMayApplyAgain(t *testing.T) {
	t.Parallel()
	for _, spec := range Table.States {
		want := spec.Status == StatusRejected || spec.Status == StatusClosed || spec.State == CreateRefused
		if got := MayApplyAgain(spec.Status, spec.State, true); got != want {
			t.Errorf("exclusive: %s: %v", spec.State, got)
		}
		if got := MayApplyAgain(spec.Status, spec.State, false); got != (want || spec.Status == StatusValidated) {
			t.Errorf("%s: %v", spec.State, got)
		}
	}
}

func TestRoundsFollowTheContent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		d    Data
		want int
	}{
		"nothing asked yet":                    {Data{}, 1},
		"asked for the inputs":                 {Data{Round: 1, Asked: contentInputs}, 1},
		"built from approved inputs":           {Data{Round: 1, Asked: contentInputs, InputsApproved: true, Digest: "d", ApprovedDigest: "d"}, 1},
		"other content than approved":          {Data{Round: 1, Asked: contentInputs, InputsApproved: true, Digest: "e", ApprovedDigest: "d"}, 2},
		"asked for that content":               {Data{Round: 2, Asked: "e", Digest: "e", ApprovedDigest: "d"}, 2},
		"asked for it, and it changed again":   {Data{Round: 2, Asked: "e", Digest: "f", ApprovedDigest: "d"}, 3},
		"mr first, nothing asked yet":          {Data{Digest: "d"}, 1},
		"approved content, whatever was asked": {Data{Round: 2, Asked: "x", Digest: "e", ApprovedDigest: "e"}, 2},
	} {
		if got := c.d.round(); got != c.want {
			t.Errorf("%s: round %d, want %d", name, got, c.want)
		}
	}
}
