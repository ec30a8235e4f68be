package change_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/engine"
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

// Somebody else's branch of that name is not adopted.
func TestSomebodyElsesBranch(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	op := r.submit("a.yaml", change.ApprovalFirst)
	r.until(op, change.ApprovalSent)
	head := r.commit("mergeflow/"+op, "mine.yaml", "z: 1\n")
	r.approve(op, 1)
	row := r.until(op, change.CreateFailed)
	if f := row.Failure; f.Kind != saga.NeedsHuman || !strings.Contains(f.Error, "not this operation's") {
		t.Errorf("%+v", f)
	}
	r.git("fetch", "-q", "origin")
	if now := r.git("rev-parse", "origin/mergeflow/"+op); now != head {
		t.Errorf("the branch moved from %s to %s", head, now)
	}
}

// A branch that came into the way after the door had looked is told, and the
// change goes on without it.
func TestABranchThatCameIntoTheWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	release := r.forge.hold()
	op := r.submit("a.yaml", change.ApprovalFirst)
	r.git("push", "-q", "origin", "main:mergeflow")
	r.approve(op, 1)
	release()
	row := r.until(op, change.CreateFailed)
	if f := row.Failure; f.Kind != saga.NeedsHuman || !strings.Contains(f.Error, "mergeflow/"+op) || !strings.Contains(f.Hint, "in the way") {
		t.Errorf("%+v", f)
	}
	r.git("push", "-q", "origin", ":mergeflow")
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "it is gone", "ops"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.HandleMerged)
}

// A branch that only claims to be the operation's, by the marker that anybody
// may write, is not adopted, and nobody's approval is put on it.
func TestAForgedBranch(t *testing.T) {
	t.Parallel()
	for name, forgeIt := range map[string]func(r *rig, op, marker string){
		"other files": func(r *rig, op, marker string) {
			r.write("evil.yaml", "x: 1\n")
			r.git("commit", "-q", "-m", "change\n\n"+marker)
		},
		"its files and one more": func(r *rig, op, marker string) {
			r.write("a.yaml", "limit: 200\n")
			r.write("evil.yaml", "x: 1\n")
			r.git("commit", "-q", "-m", "change\n\n"+marker)
		},
		"its files on a commit that main does not have": func(r *rig, op, marker string) {
			r.write("evil.yaml", "x: 1\n")
			r.git("commit", "-q", "-m", "before")
			r.write("a.yaml", "limit: 200\n")
			r.git("commit", "-q", "-m", "change\n\n"+marker)
		},
		"nothing, on an old commit that says the same": func(r *rig, op, marker string) {
			r.git("checkout", "-q", "-b", "old", "main~1")
			r.git("commit", "-q", "--allow-empty", "-m", "change\n\n"+marker)
		},
		"its files in a history of their own": func(r *rig, op, marker string) {
			r.git("checkout", "-q", "--orphan", "own")
			r.git("commit", "-q", "-m", "root")
			r.write("a.yaml", "limit: 200\n")
			r.git("commit", "-q", "-m", "change\n\n"+marker)
		},
	} {
		for _, order := range []saga.Order{change.ApprovalFirst, change.MRFirst} {
			t.Run(name+", "+string(order), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, forge.Repository{})
				r.commit("main", "a.yaml", "limit: 200\n")
				r.commit("main", "a.yaml", "limit: 100\n")
				release := r.forge.hold() // the branch is there before the step looks
				op := r.submit("a.yaml", order)
				r.git("checkout", "-q", "-b", "forged")
				forgeIt(r, op, "Mergeflow-Operation: "+op)
				r.git("push", "-q", "origin", "HEAD:mergeflow/"+op)
				release()
				r.approve(op, 1)
				row := r.until(op, change.CreateFailed)
				if f := row.Failure; f.Kind != saga.NeedsHuman || !strings.Contains(f.Error, "marker") {
					t.Errorf("%+v", f)
				}
				if r.merges() != 0 {
					t.Error("it was merged")
				}
				// Without it the change goes its way.
				r.git("push", "-q", "origin", ":mergeflow/"+op)
				if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "the branch is gone", "ops"); err != nil {
					t.Fatal(err)
				}
				r.until(op, change.HandleMerged)
				if got := r.merges(); got != 1 || r.git("show", "origin/main:a.yaml") != "limit: 200" {
					t.Errorf("%d merges, main says %q", got, r.git("show", "origin/main:a.yaml"))
				}
			})
		}
	}
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

// A close takes the merge request, the branch and the approver's request with it.
// Whatever an operation waits for, a close ends it: a look that settles nothing
// holds nothing up, not even where nobody can look.
func TestACloseEndsEveryWait(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order saga.Order
		in    saga.State
		ready func(r *rig)
	}{
		"checks":                       {change.MRFirst, change.CreateChecking, func(*rig) {}},
		"checks, the forge is down":    {change.MRFirst, change.CreateChecking, func(r *rig) { r.forge.fail(errors.New("down")) }},
		"checks before the merge":      {change.MRFirst, change.HandleChecking, func(*rig) {}},
		"approval":                     {change.ApprovalFirst, change.ApprovalSent, func(*rig) {}},
		"approval, looking takes long": {change.ApprovalFirst, change.ApprovalSent, func(r *rig) { r.approver.hang() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
			op := r.submit("a.yaml", c.order)
			if c.in == change.HandleChecking {
				row := r.until(op, change.CreateChecking)
				r.status(row, "success")
				r.until(op, change.ApprovalSent)
				r.status(row, "pending") // it runs again
				r.approve(op, 1)
			}
			row := r.until(op, c.in)
			c.ready(r)
			if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
				t.Fatal(err)
			}
			r.until(op, change.CloseStarted, change.CloseSucceeded, change.CloseFailed)
			r.forge.fail(nil)
			if row := r.until(op, change.CloseSucceeded, change.CloseFailed); row.State == change.CloseFailed {
				if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "it is back", "sue"); err != nil {
					t.Fatal(err)
				}
			}
			r.until(op, change.CloseSucceeded)
		})
	}
}

// A close deletes its own commit's branch, and nobody's work.
func TestACloseLeavesWhatOthersPushed(t *testing.T) {
	t.Parallel()
	for name, push := range map[string]func(r *rig, op string){
		"onto its branch": func(r *rig, op string) {
			r.until(op, change.CreateChecking)
			r.git("fetch", "-q", "origin")
			r.git("checkout", "-q", "-b", "theirs", "origin/mergeflow/"+op)
			r.write("theirs.yaml", "x: 1\n")
			r.git("commit", "-q", "--amend", "--no-edit") // the marker stays
		},
		"a branch of its name": func(r *rig, op string) {
			r.until(op, change.ApprovalSent)
			r.git("checkout", "-q", "-b", "theirs")
			r.write("theirs.yaml", "x: 1\n")
			r.git("commit", "-q", "-m", "theirs\n\nMergeflow-Operation: "+op)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
			order := change.MRFirst
			if name == "a branch of its name" {
				order = change.ApprovalFirst
			}
			op := r.submit("a.yaml", order)
			push(r, op)
			r.git("push", "-q", "-f", "origin", "theirs:mergeflow/"+op)
			row, err := r.db.Saga(t.Context(), op)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
				t.Fatal(err)
			}
			r.until(op, change.CloseSucceeded)
			if got, want := r.git("ls-remote", "origin", "refs/heads/mergeflow/"+op), r.git("rev-parse", "theirs"); !strings.HasPrefix(got, want) {
				t.Errorf("their branch is %q, not at %s", got, want)
			}
			if !strings.Contains(r.history(op), "stays") {
				t.Errorf("the history does not say that it stays:\n%s", r.history(op))
			}
		})
	}
}

// A close that knows of no merge request looks for its own, and never takes a
// look that failed, or somebody else's merge request, for the answer.
func TestACloseFindsItsMergeRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(r *rig, op string) error
		want   forge.State
		out    string
	}{
		"alone":        {func(*rig, string) error { return nil }, forge.Closed, "ok"},
		"a look fails": {func(r *rig, _ string) error { r.forge.fail(errors.New("down")); return nil }, forge.Open, "failed_transient"},
		"beside somebody else's": {func(r *rig, op string) error {
			_, err := r.host.CreateMergeRequest(r.t.Context(), forge.NewMergeRequest{Project: "app", Source: "mergeflow/" + op, Target: "main", Title: "mine"})
			return err
		}, forge.Closed, "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{})
			op := r.submit("a.yaml", change.MRFirst)
			row := r.until(op, change.ApprovalSent)
			if err := c.before(r, op); err != nil {
				t.Fatal(err)
			}
			// As a process leaves it that dies between opening and recording.
			data, err := saga.MergeData(row.Data, []byte(`{"mrIid":null,"headSha":null,"branch":null,"digest":null,"url":null}`))
			if err != nil {
				t.Fatal(err)
			}
			row.Data, row.State = data, change.CloseStarted
			out := r.steps.Commands()[change.CmdClose].Perform(t.Context(), engine.Run{Row: row})
			mr, err := r.host.MergeRequest(t.Context(), forge.Ref{Project: "app", IID: 1})
			if err != nil || mr.State != c.want || out.Label() != c.out {
				t.Errorf("%s; it is %s, %v", out, mr.State, err)
			}
		})
	}
}

// An approver who will not or can't take a request back keeps nothing open.
func TestACloseAndTheApprover(t *testing.T) {
	t.Parallel()
	t.Run("refuses", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.MRFirst)
		row := r.until(op, change.ApprovalSent)
		r.approver.refuseWithdrawals(&approval.Error{Status: 409, Detail: "decided already"})
		if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
			t.Fatal(err)
		}
		r.until(op, change.CloseSucceeded)
		if h := r.history(op); !strings.Contains(h, "not taken back") || !strings.Contains(h, "decided already") {
			t.Errorf("%s", h)
		}
	})
	t.Run("rejects", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.MRFirst)
		r.until(op, change.ApprovalSent)
		r.approver.refuseWithdrawals(&approval.Error{Status: 503, Detail: "down", Transient: true})
		r.approver.answer(change.ApprovalID(op, 1), approval.Rejected)
		r.until(op, change.ApprovalRejected) // whoever rejects is not asked to take it back
	})
	t.Run("is down for good", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		op := r.submit("a.yaml", change.MRFirst)
		row := r.until(op, change.ApprovalSent)
		r.approver.refuseWithdrawals(&approval.Error{Status: 503, Detail: "down", Transient: true})
		if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
			t.Fatal(err)
		}
		r.until(op, change.CloseSucceeded)
		if h := r.history(op); !strings.Contains(h, "attempt 1 of 2") || !strings.Contains(h, "not taken back") {
			t.Errorf("%s", h)
		}
	})
}

func TestACloseTakesAllWithIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	op := r.submit("a.yaml", change.MRFirst)
	row := r.until(op, change.ApprovalSent)
	if _, err := r.svc.Operate(t.Context(), row, saga.Close, "not needed", "sue"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.CloseSucceeded)
	mr, err := r.host.MergeRequest(t.Context(), forge.Ref{Project: "app", IID: 1})
	if err != nil || mr.State != forge.Closed || mr.HeadSHA != "" {
		t.Errorf("%+v %v", mr, err)
	}
	if !slices.Contains(r.approver.withdrawn, change.ApprovalID(op, 1)) {
		t.Errorf("withdrawn: %v", r.approver.withdrawn)
	}
	if _, err := r.svc.Submit(t.Context(), r.submission("a.yaml"), nil, "sue"); err != nil {
		t.Errorf("asked for again: %v", err)
	}
}

// Where deploys run in merge order, a later one that is live makes an earlier one live.
func TestTheWatermark(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{true, false} {
		r := newRig(t, forge.Repository{})
		r.project.InOrder = inOrder
		first, second := r.submit("a.yaml", change.MRFirst), ""
		r.approve(first, 1)
		r.until(first, change.HandleMerged)
		second = r.submit("b.yaml", change.MRFirst)
		r.approve(second, 1)
		r.until(second, change.HandleMerged)
		if v, err := r.svc.Deployed(t.Context(), change.DeployCallback{RequestID: "1", OperationID: second, Result: "live", Raw: []byte(`{}`)}); err != nil || v.Verdict != change.Applied {
			t.Fatalf("%+v %v", v, err)
		}
		r.until(second, change.CalledBack)
		if !inOrder {
			if row, _ := r.db.Saga(t.Context(), first); row.State != change.HandleMerged {
				t.Errorf("inferred without being allowed to: %s", row.State)
			}
			continue
		}
		row := r.until(first, change.CalledBack)
		if !strings.Contains(string(row.Data), `"liveBy":"inferred"`) {
			t.Errorf("%s", row.Data)
		}
	}
}

// Merge requests are numbered when they are opened. One that was merged before
// this one says nothing about it, whatever its number and whenever it went live.
func TestTheWatermarkFollowsTheMerges(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	r.project.InOrder = true
	live := func(id, op string) {
		t.Helper()
		if v, err := r.svc.Deployed(t.Context(), change.DeployCallback{RequestID: id, OperationID: op, Result: "live", Raw: []byte(`{}`)}); err != nil || v.Verdict != change.Applied {
			t.Fatalf("%+v %v", v, err)
		}
		r.until(op, change.CalledBack)
	}
	one := r.submit("a.yaml", change.MRFirst)
	r.until(one, change.ApprovalSent)
	two := r.submit("b.yaml", change.MRFirst)
	r.approve(two, 1)
	r.until(two, change.HandleMerged) // number 2, merged first
	r.approve(one, 1)
	row := r.until(one, change.HandleMerged)
	live("1", two)
	checks := r.untilRow(one, func(now saga.Row) bool { return now.Command == nil || now.Command.Checks > row.Command.Checks+2 })
	if checks.State != change.HandleMerged {
		t.Fatalf("%s: inferred from a merge that does not hold it\n%s", checks.State, r.history(one))
	}
	three := r.submit("c.yaml", change.MRFirst)
	r.approve(three, 1)
	r.until(three, change.HandleMerged)
	live("2", three)
	if row := r.until(one, change.CalledBack); !strings.Contains(string(row.Data), `"liveBy":"inferred"`) {
		t.Errorf("%s", row.Data)
	}
}

// A merge that contains this one proves it live whenever we heard of it: before
// a retry, and before our own merge was recorded.
func TestTheWatermarkIsNeverTooEarly(t *testing.T) {
	t.Parallel()
	say := func(r *rig, id, op, result string) {
		r.t.Helper()
		if v, err := r.svc.Deployed(r.t.Context(), change.DeployCallback{RequestID: id, OperationID: op, Result: result, Raw: []byte(`{}`)}); err != nil || v.Verdict != change.Applied {
			r.t.Fatalf("%+v %v", v, err)
		}
	}
	t.Run("a retry", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		r.project.InOrder = true
		one := r.submit("a.yaml", change.MRFirst)
		r.approve(one, 1)
		r.until(one, change.HandleMerged)
		say(r, "1", one, "failed")
		row := r.until(one, change.DeployFailed)
		two := r.submit("b.yaml", change.MRFirst)
		r.approve(two, 1)
		r.until(two, change.HandleMerged)
		say(r, "2", two, "live")
		if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "repaired", "ops"); err != nil {
			t.Fatal(err)
		}
		if row := r.until(one, change.CalledBack); row.Failure != nil {
			t.Errorf("live, and it shows %+v", row.Failure)
		}
	})
	t.Run("a callback that comes early", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		r.project.InOrder = true
		one := r.submit("a.yaml", change.MRFirst)
		r.approve(one, 1)
		r.until(one, change.HandleMerged)
		two := r.submit("b.yaml", change.MRFirst)
		r.until(two, change.ApprovalSent)
		if v, err := r.svc.Deployed(t.Context(), change.DeployCallback{RequestID: "1", OperationID: two, Result: "live", Raw: []byte(`{}`)}); err != nil || v.Verdict != change.Early {
			t.Fatalf("%+v %v", v, err)
		}
		if row := r.untilRow(one, func(row saga.Row) bool { return row.Command == nil || row.Command.Checks > 3 }); row.State != change.HandleMerged {
			t.Fatalf("inferred from what is not merged: %s", r.history(one))
		}
		r.approve(two, 1)
		r.until(two, change.CalledBack)
		r.until(one, change.CalledBack)
	})
	t.Run("an answer that comes late", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, forge.Repository{})
		r.project.InOrder = true
		merged, gate := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(gate) })
		t.Cleanup(release) // before the engine's stop, which waits for the step
		var second atomic.Bool
		r.forge.set(func(ctx context.Context, in forge.MergeInput) (string, error) {
			commit, err := r.host.Merge(ctx, in)
			if !second.Swap(true) {
				close(merged)
				<-gate
			}
			return commit, err
		})
		one := r.submit("a.yaml", change.MRFirst)
		r.approve(one, 1)
		<-merged
		two := r.submit("b.yaml", change.MRFirst)
		r.approve(two, 1)
		r.until(two, change.HandleMerged)
		say(r, "1", two, "live")
		release()
		r.until(one, change.CalledBack)
	})
}

// A deploy that no repeat can help fails visibly; one that may work later is
// tried again.
func TestADeployThatIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	r.env.fail(errors.New("the disk is full"))
	op := r.submit("a.yaml", change.MRFirst)
	r.approve(op, 1)
	r.untilRow(op, func(row saga.Row) bool {
		return row.State == change.HandleMerged && row.Command.Checks > 2 && strings.Contains(row.Command.Evidence, "disk is full")
	})
	r.env.fail(&deploy.Refused{Cause: "no folder holds it", Hint: "delete the file"})
	row := r.until(op, change.DeployFailed)
	if f := row.Failure; f.Kind != saga.NeedsHuman || f.Error != "no folder holds it" || f.Hint != "delete the file" {
		t.Errorf("%+v", f)
	}
	r.env.fail(nil)
	r.env.set(op)
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "deleted", "ops"); err != nil {
		t.Fatal(err)
	}
	r.until(op, change.CalledBack)
}

// Live after a failure is live: no failure is shown any more.
func TestLiveAfterAll(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	op := r.submit("a.yaml", change.MRFirst)
	r.approve(op, 1)
	r.until(op, change.HandleMerged)
	for i, result := range []string{"failed", "live"} {
		// Ids are the same in any case of their letters.
		c := change.DeployCallback{RequestID: fmt.Sprint(i), OperationID: strings.ToUpper(op), Result: result, Raw: []byte(`{}`)}
		if v, err := r.svc.Deployed(t.Context(), c); err != nil || v.Verdict != change.Applied {
			t.Fatalf("%+v %v", v, err)
		}
	}
	if row := r.until(op, change.CalledBack); row.Failure != nil {
		t.Errorf("%+v", row.Failure)
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
