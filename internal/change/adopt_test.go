package change_test

import (
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

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
