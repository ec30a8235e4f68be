package change_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func TestBothOrdersGoTheirWay(t *testing.T) {
	t.Parallel()
	for order, want := range map[saga.Order][]saga.State{
		change.ApprovalFirst: {"APPROVAL_SENDING", "APPROVAL_SENT", "CREATE_STARTED", "CREATE_CHECKING", "CREATE_SUCCEEDED", "HANDLE_STARTED", "HANDLE_APPROVED", "HANDLE_MERGED", "CALLED_BACK"},
		change.MRFirst:       {"CREATE_STARTED", "CREATE_CHECKING", "CREATE_SUCCEEDED", "APPROVAL_SENDING", "APPROVAL_SENT", "HANDLE_STARTED", "HANDLE_APPROVED", "HANDLE_MERGED", "CALLED_BACK"},
	} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{Reviewers: []string{"rita", "rob"}})
			op := r.submit("a.yaml", order)
			r.approve(op, 1) // the callback is lost: the self-check finds the decision by asking
			r.env.set(op)
			r.until(op, change.CalledBack)
			if got := r.states(op); !slices.Equal(got, want) && !slices.Equal(got, slices.DeleteFunc(slices.Clone(want), func(s saga.State) bool { return s == "APPROVAL_SENT" })) {
				t.Errorf("%v", got)
			}
			if r.merges() != 1 {
				t.Errorf("%d merges", r.merges())
			}
			p, err := r.db.PullByIID(t.Context(), "default", "app", 1)
			if err != nil {
				t.Fatal(err)
			}
			as, err := r.db.MRApprovals(t.Context(), p.ID)
			if err != nil || len(as) != 2 {
				t.Errorf("approvals %+v %v", as, err)
			}
		})
	}
}

func TestTheApproverIsDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	r.approver.set(&approval.Error{Status: 503, Detail: "down", Transient: true})
	op := r.submit("a.yaml", change.ApprovalFirst)
	row := r.until(op, change.ApprovalSendFailed)
	if f := row.Failure; f.Step != change.ApprovalSending || f.Kind != saga.Transient || !strings.Contains(f.Error, "503") {
		t.Errorf("%+v", f)
	}
	r.approver.set(nil)
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "it is back", "ops"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.ApprovalSent)
	if len(r.approver.sent) != 1 || r.approver.sent[0].ApprovalID != change.ApprovalID(op, 1) {
		t.Errorf("%+v", r.approver.sent)
	}
}

// A base that moved is no failure by itself.
func TestTheBaseMovesAfterSubmit(t *testing.T) {
	t.Parallel()
	t.Run("elsewhere", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.ApprovalFirst)
		r.until(op, change.ApprovalSent)
		tip := r.commit("main", "other.yaml", "y: 1\n")
		r.approve(op, 1)
		r.until(op, change.HandleMerged)
		r.git("fetch", "-q", "origin")
		if base := r.git("rev-parse", "origin/main^2^"); base != tip {
			t.Errorf("built on %s, not on the current base %s", base, tip)
		}
	})
	t.Run("in the same file", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.ApprovalFirst)
		r.until(op, change.ApprovalSent)
		r.commit("main", "a.yaml", "limit: 1\n")
		r.approve(op, 1)
		row := r.until(op, change.CreateFailed)
		if f := row.Failure; f.Kind != saga.Deterministic || !strings.Contains(f.Error, "a.yaml") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("to the same content", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.ApprovalFirst)
		r.until(op, change.ApprovalSent)
		r.commit("main", "a.yaml", "limit: 200\n")
		r.approve(op, 1)
		// The file changed since submit: that it says the same now is luck, and said so.
		if row := r.until(op, change.CreateFailed, change.CreateNoChange); row.State == change.CreateFailed && !strings.Contains(row.Failure.Error, "a.yaml") {
			t.Errorf("%+v", row.Failure)
		}
	})
}

// Hands on the forge: a push, a close, a merge, each while the flow waits for checks.
func TestForeignHandsOnTheForge(t *testing.T) {
	t.Parallel()
	waiting := func(t *testing.T) (*rig, string, saga.Row) {
		r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
		op := r.submit("a.yaml", change.MRFirst)
		row := r.until(op, change.CreateChecking)
		return r, op, row
	}
	ref := forge.Ref{Project: "app", IID: 1}
	t.Run("a push", func(t *testing.T) {
		t.Parallel()
		r, op, _ := waiting(t)
		r.git("fetch", "-q", "origin")
		r.git("checkout", "-q", "-b", "theirs", "origin/mergeflow/"+op)
		r.git("commit", "-q", "--allow-empty", "-m", "theirs")
		r.git("push", "-q", "origin", "theirs:mergeflow/"+op)
		row := r.until(op, change.HandleHeadMoved)
		if f := row.Failure; f.Step != change.CreateChecking || f.Kind != saga.NeedsHuman {
			t.Errorf("%+v", f)
		}
		if r.merges() != 0 {
			t.Error("somebody else's push was merged")
		}
	})
	t.Run("a close", func(t *testing.T) {
		t.Parallel()
		r, op, _ := waiting(t)
		if err := r.host.CloseMergeRequest(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		r.until(op, change.ClosedOutside)
	})
	t.Run("a merge", func(t *testing.T) {
		t.Parallel()
		r, op, _ := waiting(t)
		if err := r.mergeByHand(ref); err != nil {
			t.Fatal(err)
		}
		row := r.until(op, change.HandleMerged)
		if r.merges() != 1 || !strings.Contains(string(row.Data), "mergeCommit") {
			t.Errorf("%d merges, %s", r.merges(), row.Data)
		}
	})
}

// Other hands while people decide, and while the request can't even be sent.
func TestForeignHandsBeforeTheApproval(t *testing.T) {
	t.Parallel()
	ref := forge.Ref{Project: "app", IID: 1}
	for name, c := range map[string]struct {
		act  func(r *rig) error
		ends saga.State
		says string
	}{
		"a close": {func(r *rig) error { return r.host.CloseMergeRequest(r.t.Context(), ref) }, change.ClosedOutside, "closed on the forge"},
		"a merge": {func(r *rig) error { return r.mergeByHand(ref) }, change.HandleMerged, change.WithoutApproval},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{})
			op := r.submit("a.yaml", change.MRFirst)
			r.until(op, change.ApprovalSent)
			if err := c.act(r); err != nil {
				t.Fatal(err)
			}
			r.until(op, c.ends)
			if h := r.history(op); !strings.Contains(h, c.says) {
				t.Errorf("the history does not say %q:\n%s", c.says, h)
			}
		})
		t.Run(name+", the approver is down", func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{})
			r.approver.set(&approval.Error{Status: 503, Detail: "down", Transient: true})
			op := r.submit("a.yaml", change.MRFirst)
			row := r.until(op, change.ApprovalSendFailed)
			if err := c.act(r); err != nil {
				t.Fatal(err)
			}
			if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "", "ops"); err != nil {
				t.Fatal(err)
			}
			r.until(op, c.ends)
		})
	}
	t.Run("a push is seen, and settles nothing", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.MRFirst)
		r.until(op, change.ApprovalSent)
		r.git("fetch", "-q", "origin")
		r.git("checkout", "-q", "-b", "theirs", "origin/mergeflow/"+op)
		r.git("commit", "-q", "--allow-empty", "-m", "theirs")
		r.git("push", "-q", "origin", "theirs:mergeflow/"+op)
		r.untilRow(op, func(row saga.Row) bool {
			return row.Command != nil && strings.Contains(row.Command.Evidence, "mergeflow's head")
		})
		r.approve(op, 1)
		r.until(op, change.HandleHeadMoved)
	})
}

// An operation's branch is its own from the moment it is made to the operation's
// end, and so is the merge request that carries its marker.
func TestWhoseMergeRequestItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	op := r.submit("a.yaml", change.MRFirst)
	row := r.until(op, change.ApprovalSent)
	early := r.submit("b.yaml", change.ApprovalFirst)
	r.until(early, change.ApprovalSent) // it has neither branch nor merge request
	branch, marker := "mergeflow/"+op, "words\n\nMergeflow-Operation: "
	for name, c := range map[string]struct {
		p    store.Pull
		want string
		own  bool
	}{
		"its own":                          {store.Pull{Repo: "app", IID: 1, Source: branch}, op, true},
		"another one of its branch":        {store.Pull{Repo: "app", IID: 9, Source: branch}, op, false},
		"with its marker, and not its own": {store.Pull{Repo: "app", IID: 9, Source: branch, Description: marker + op}, op, false},
		"opened, and not recorded":         {store.Pull{Repo: "app", IID: 9, Source: "mergeflow/" + early, Description: marker + early}, early, true},
		"of another branch":                {store.Pull{Repo: "app", IID: 9, Source: "fix", Description: marker + op}, "", false},
		"of a branch that is named so":     {store.Pull{Repo: "app", IID: 9, Source: "other/" + op}, "", false},
		"of another project":               {store.Pull{Repo: "other", IID: 1, Source: branch}, "", false},
		"of no operation":                  {store.Pull{Repo: "app", IID: 9, Source: "mergeflow/00000000-0000-7000-8000-000000000000"}, "", false},
	} {
		if got, own, err := r.svc.Carrier(t.Context(), c.p); err != nil || got != c.want || own != c.own {
			t.Errorf("%s: %q, own %v, %v", name, got, own, err)
		}
	}
	if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.CloseSucceeded)
	if got, _, err := r.svc.Carrier(t.Context(), store.Pull{Repo: "app", IID: 1, Source: branch}); err != nil || got != "" {
		t.Errorf("ended: %q %v", got, err)
	}
}

// Both faults of the merge call.
func TestAMergeWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	lost := &forge.Error{Op: "merge", Kind: forge.KindUnclear, Detail: "connection reset"}
	for name, merge := range map[string]func(r *rig) func(context.Context, forge.MergeInput) (string, error){
		"but applied": func(r *rig) func(context.Context, forge.MergeInput) (string, error) {
			return func(ctx context.Context, in forge.MergeInput) (string, error) {
				_, err := r.host.Merge(ctx, in)
				return "", errors.Join(err, lost)
			}
		},
		"not applied": func(r *rig) func(context.Context, forge.MergeInput) (string, error) {
			return func(context.Context, forge.MergeInput) (string, error) {
				r.forge.set(nil)
				return "", lost
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{})
			r.forge.set(merge(r))
			op := r.submit("a.yaml", change.ApprovalFirst)
			r.approve(op, 1)
			r.until(op, change.HandleMerged)
			if r.merges() != 1 {
				t.Errorf("%d merges", r.merges())
			}
		})
	}
}

// What comes early does, when its turn has come, what it would do if it came
// then: in mr_first it approves the content that was built meanwhile.
func TestEarlyDecisions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		decision string
		ends     saga.State
	}{
		"approved":  {"approved", change.HandleMerged},
		"rejected":  {"rejected", change.ApprovalRejected},
		"withdrawn": {"withdrawn", change.ApprovalWithdrawn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
			release := r.forge.hold()
			op := r.submit("a.yaml", change.MRFirst)
			n := 0
			say := func(decision, id, want string) {
				t.Helper()
				n++
				v, err := r.svc.Approval(t.Context(), change.ApprovalCallback{RequestID: fmt.Sprint(n), OperationID: op, ApprovalID: id, Decision: decision, By: "ann", Raw: []byte(`{}`)})
				if err != nil || v.Verdict != want {
					t.Errorf("%s: %+v %v, want %s", decision, v, err, want)
				}
			}
			say(c.decision, change.ApprovalID(op, 1), change.Early)
			say(c.decision, "", change.Stale)
			say(map[bool]string{true: "rejected", false: "approved"}[c.decision == "approved"], "", change.Contradiction)
			release()
			row := r.until(op, change.CreateChecking)
			say(c.decision, "", change.Stale)
			r.status(row, "success")
			row = r.until(op, c.ends)
			if got := len(row.Early); got != 0 {
				t.Errorf("%d events are kept still", got)
			}
			if want := map[bool]int{true: 1}[c.ends == change.HandleMerged]; r.merges() != want {
				t.Errorf("%d merges, want %d", r.merges(), want)
			}
		})
	}
}

func TestTheDoor(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	op := r.submit("a.yaml", change.ApprovalFirst)
	if _, err := r.svc.Submit(t.Context(), r.submission("a.yaml"), nil, "sue"); asRefusal(err) != change.CodeInProgress {
		t.Errorf("%v", err)
	}
	same := r.submission("base.yaml")
	same.Files[0].Content = "x: 1\n"
	if _, err := r.svc.Submit(t.Context(), same, nil, "sue"); asRefusal(err) != change.CodeNoChange {
		t.Errorf("%v", err)
	}
	plan, err := r.svc.Plan(t.Context(), r.submission("a.yaml"), "sue")
	if err != nil || plan.InTheWay != op || !strings.Contains(plan.Diff, "+limit: 200") {
		t.Errorf("%+v %v", plan, err)
	}
}

// The branch goes away after the merge where the project wants that, and is
// named as the project wants it.
func TestTheBranchIsNamedAndRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
	r.project.Branch, r.project.Title, r.project.RemoveSource = "config/{subject}/{target}-{operation}", "[{project}] {title}", true
	op := r.submit("dir/ä b.yaml", change.MRFirst)
	r.approve(op, 1)
	r.until(op, change.CreateChecking)
	mr, err := r.host.MergeRequest(t.Context(), forge.Ref{Project: "app", IID: 1})
	if err != nil || mr.Source != "config/team/dir---b-yaml-"+op || mr.Title != "[app] Change dir/ä b.yaml" {
		t.Errorf("%+v %v", mr, err)
	}
	if err := r.host.SetStatus(t.Context(), forge.Status{Project: "app", SHA: mr.HeadSHA, Context: "ci", State: "success"}); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.HandleMerged)
	if _, err := r.host.Branch(t.Context(), "app", mr.Source); forge.KindOf(err) != forge.KindNotFound {
		t.Errorf("the branch is still there: %v", err)
	}
	if r.merges() != 1 {
		t.Errorf("%d merges", r.merges())
	}
}

// A conflict is a failed state that a retry leads out of, and never into a
// state that nobody works on.
func TestAConflictCanBeRetried(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
	op := r.submit("a.yaml", change.MRFirst)
	r.approve(op, 1)
	r.until(op, change.CreateChecking)
	mr, err := r.host.MergeRequest(t.Context(), forge.Ref{Project: "app", IID: 1})
	if err != nil {
		t.Fatal(err)
	}
	before := r.git("rev-parse", "HEAD")
	r.commit("main", "a.yaml", "limit: 1\n")
	if err := r.host.SetStatus(t.Context(), forge.Status{Project: "app", SHA: mr.HeadSHA, Context: "ci", State: "success"}); err != nil {
		t.Fatal(err)
	}
	row := r.until(op, change.HandleRebaseConflict)
	if f := row.Failure; f.Kind != saga.Deterministic || !strings.Contains(f.Error, "a.yaml") {
		t.Errorf("%+v", f)
	}
	// Still in conflict: the retry says so again, visibly.
	version := row.Version
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "is it gone?", "ops"); err != nil {
		t.Fatal(err)
	}
	r.untilVersion(op, version+2)
	row = r.until(op, change.HandleRebaseConflict)
	// The target was put back: the retry goes on and merges.
	r.git("push", "-q", "--force", "origin", before+":main")
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "main is put back", "ops"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.HandleMerged)
	if n := r.merges(); n != 1 {
		t.Errorf("%d merges", n)
	}
}

// Whatever an operator may do leads into a state that this version works on.
func TestNoActionLeadsWhereNobodyWorks(t *testing.T) {
	t.Parallel()
	steps := (&change.Steps{}).Commands()
	for _, spec := range change.Table.States {
		for _, e := range spec.On {
			if !saga.IsOperator(e.Event) {
				continue
			}
			for _, to := range e.To {
				target, ok := change.Table.Spec(to.State)
				if !ok || target.Kind != saga.Running && target.Kind != saga.Waiting || target.Command == saga.DeadlineOnly {
					continue
				}
				if _, built := steps[target.Command]; !built {
					t.Errorf("%s of %s leads to %s, and nobody performs %s", e.Event, spec.State, to.State, target.Command)
				}
			}
		}
	}
}
