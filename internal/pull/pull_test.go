package pull_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
)

func TestAPullRequestIsMergedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo()
	head := w.push("f", "f.txt", "x")
	p := r.pull("f", "ann", "bob")
	if p.Status() != "open" || p.HeadSHA != head {
		t.Fatalf("%+v", p)
	}
	op := r.merge(p.ID)
	row := r.until(op, pull.Merged)
	v := r.view(p.ID)
	if v.Status() != "merged" || v.MergeCommit == "" || v.OperationID != op || r.merges() != 1 {
		t.Errorf("%+v, %d merges", v, r.merges())
	}
	if row.ClosedAt.IsZero() || row.About.Project != "app" || row.About.Title != "Add f" {
		t.Errorf("%+v", row)
	}
	for _, who := range []string{"ann", "bob"} {
		if d := r.told.deliveries(who); len(d) != 1 {
			t.Errorf("%s was told %d times", who, len(d))
		}
	}
	r.refused(second(r.svc.Merge(t.Context(), p.ID, "", "ann")), pull.CodeAlreadyMerged)
	r.refused(second(r.svc.Close(t.Context(), p.ID, "", "ann")), pull.CodeAlreadyMerged)
}

func second[T any](_ T, err error) error { return err }

func TestIndexDownThenRetryOnlyIndexes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo()
	w.push("f", "f.txt", "x")
	p := r.pull("f", "ann")
	r.index.set(&search.Error{Op: "index", Status: 500, Detail: "down", Transient: true})
	op := r.merge(p.ID)
	row := r.until(op, pull.MergeFailed)
	if f := row.Failure; f.Step != pull.Indexing || f.Kind != saga.Transient || !strings.Contains(f.Error, "500") || f.Hint == "" {
		t.Errorf("%+v", f)
	}
	v := r.view(p.ID)
	if v.Status() != "merge-failed" || v.MergeCommit == "" {
		t.Errorf("the merge commit is shown all along: %+v", v)
	}
	refusal := r.refused(second(r.svc.Merge(t.Context(), p.ID, "", "ann")), pull.CodeRetryInstead)
	if refusal.OperationID != op {
		t.Errorf("%+v", refusal)
	}
	r.refused(second(r.svc.Close(t.Context(), p.ID, "", "ann")), pull.CodeRetryInstead)
	r.index.set(nil)
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "index is back", "ops"); err != nil {
		t.Fatal(err)
	}
	r.until(op, pull.Merged)
	if n := r.merges(); n != 1 {
		t.Errorf("%d merges", n)
	}
	if d := r.told.deliveries("ann"); len(d) != 1 {
		t.Errorf("ann was told %d times", len(d))
	}
}

func TestRetryTellsOnlyThoseNotReached(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo()
	w.push("f", "f.txt", "x")
	p := r.pull("f", "ann", "bob", "cid")
	r.told.fail("bob", &notify.Error{Recipient: "bob", Status: 400, Detail: "no such user"})
	op := r.merge(p.ID)
	row := r.until(op, pull.MergeFailed)
	if row.Failure.Step != pull.Notifying || row.Failure.Kind != saga.Deterministic {
		t.Errorf("%+v", row.Failure)
	}
	if len(r.told.deliveries("ann")) != 1 || len(r.told.deliveries("cid")) != 1 {
		t.Error("one watcher that can't be reached kept the others from being told")
	}
	r.told.fail("bob", nil)
	if _, err := r.svc.Operate(t.Context(), row, saga.Retry, "", "ops"); err != nil {
		t.Fatal(err)
	}
	r.until(op, pull.Merged)
	for _, who := range []string{"ann", "bob", "cid"} {
		if d := r.told.deliveries(who); len(d) != 1 || d[0] != pull.DeliveryID(op, "webhook:"+who) {
			t.Errorf("%s: %v", who, d)
		}
	}
}

func TestAsksAtTheDoor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo("ci")
	head := w.push("f", "f.txt", "x")
	p := r.pull("f")
	r.refused(second(r.svc.Merge(t.Context(), p.ID, strings.Repeat("0", 40), "ann")), pull.CodeHeadMoved)
	op := r.merge(p.ID) // waits for ci
	if refusal := r.refused(second(r.svc.Merge(t.Context(), p.ID, "", "ann")), pull.CodeInProgress); refusal.OperationID != op {
		t.Errorf("%+v", refusal)
	}
	row := r.until(op, pull.Validating)
	if x := saga.Explain(pull.Table, row, r.settle); !strings.Contains(x.Summary, head[:10]) {
		t.Errorf("%+v", x)
	}
	if _, err := r.svc.Close(t.Context(), p.ID, "changed my mind", "ann"); err != nil {
		t.Fatal(err)
	}
	r.until(op, pull.PullClosed)
	if v := r.view(p.ID); v.Status() != "closed" || v.ForgeState != "closed" {
		t.Errorf("%+v", v.Pull)
	}
	r.refused(second(r.svc.Merge(t.Context(), p.ID, "", "ann")), pull.CodeClosed)
	if _, err := r.svc.Close(t.Context(), p.ID, "again", "ann"); err != nil {
		t.Errorf("closing twice is a no-op: %v", err)
	}
	if r.merges() != 0 {
		t.Error("a closed pull request was merged")
	}
}

// Missing and pending checks are waited for; only this head's green counts.
func TestChecksOfThisHead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo("ci", "lint")
	old := w.push("f", "f.txt", "x")
	status := func(sha, ctx, state string) {
		t.Helper()
		if err := r.host.SetStatus(t.Context(), forge.Status{Project: "app", SHA: sha, Context: ctx, State: state}); err != nil {
			t.Fatal(err)
		}
	}
	status(old, "ci", "success")
	status(old, "lint", "success")
	head := w.push("f", "g.txt", "y")
	p := r.pull("f")
	status(head, "ci", "success")
	op := r.merge(p.ID)
	waitEvidence(t, r, op, "lint (missing)")
	status(head, "lint", "pending")
	waitEvidence(t, r, op, "lint (pending)")
	status(head, "lint", "success")
	r.until(op, pull.Merged)
}

func waitEvidence(t *testing.T, r *rig, op, want string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		row, err := r.db.Saga(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		if row.Command != nil && strings.Contains(row.Command.Evidence, want) {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-limit:
			t.Fatalf("no evidence %q: %+v", want, row)
		}
	}
}

// What can't be merged fails visibly; a fixing push and a new request end the
// failed saga and start one for the new head.
func TestAFixingPushStartsANewSaga(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo()
	w.push("f", "same.txt", "mine")
	w.push("main", "same.txt", "theirs")
	p := r.pull("f")
	op := r.merge(p.ID)
	row := r.until(op, pull.MergeFailed)
	if f := row.Failure; f.Step != pull.Validating || f.Kind != saga.Deterministic || !strings.Contains(f.Error, "same.txt") {
		t.Errorf("%+v", f)
	}
	r.git(w.dir, "checkout", "-q", "f")
	r.git(w.dir, "merge", "-q", "-s", "ours", "main", "-m", "resolve")
	r.git(w.dir, "push", "-q", "origin", "f")
	next := r.merge(p.ID)
	if next == op {
		t.Fatal("the same operation")
	}
	r.until(op, pull.Superseded)
	r.until(next, pull.Merged)
	if v := r.view(p.ID); v.Status() != "merged" || v.OperationID != next || r.merges() != 2 {
		t.Errorf("%+v, %d on the first-parent line", v.Pull, r.merges())
	}
}

func TestRedAndMovedAndNothing(t *testing.T) {
	t.Parallel()
	t.Run("red", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		w := r.repo("ci")
		head := w.push("f", "f.txt", "x")
		p := r.pull("f")
		if err := r.host.SetStatus(t.Context(), forge.Status{Project: "app", SHA: head, Context: "ci", State: "failure"}); err != nil {
			t.Fatal(err)
		}
		row := r.until(r.merge(p.ID), pull.MergeFailed)
		if !strings.Contains(row.Failure.Error, "ci (failure)") {
			t.Errorf("%+v", row.Failure)
		}
	})
	t.Run("moved while it waited", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		w := r.repo("ci")
		w.push("f", "f.txt", "x")
		p := r.pull("f")
		op := r.merge(p.ID)
		moved := w.push("f", "f.txt", "y")
		row := r.until(op, pull.MergeFailed)
		if !strings.Contains(row.Failure.Error, "moved") || !strings.Contains(row.Failure.Error, moved[:10]) {
			t.Errorf("%+v", row.Failure)
		}
	})
	t.Run("nothing to merge any more", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		w := r.repo()
		w.push("f", "f.txt", "x")
		p := r.pull("f")
		r.git(w.dir, "merge", "-q", "f")
		r.git(w.dir, "push", "-q", "origin", "main")
		r.refused(second(r.svc.Merge(t.Context(), p.ID, "", "ann")), pull.CodeNothingToMerge)
		if v := r.view(p.ID); v.OperationID != "" {
			t.Errorf("a refusal stored an operation: %+v", v.Pull)
		}
	})
}

// Both faults of a merge call: failed and not applied, failed but applied.
func TestAMergeWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	lost := &forge.Error{Op: "merge", Kind: forge.KindUnclear, Detail: "connection reset"}
	for name, merge := range map[string]func(r *rig) func(context.Context, forge.MergeInput) (string, error){
		"but applied": func(r *rig) func(context.Context, forge.MergeInput) (string, error) {
			return func(ctx context.Context, in forge.MergeInput) (string, error) {
				if _, err := r.host.Merge(ctx, in); err != nil {
					t.Error(err)
				}
				return "", lost
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
			r := newRig(t)
			w := r.repo()
			w.push("f", "f.txt", "x")
			p := r.pull("f")
			r.forge.set(merge(r))
			r.until(r.merge(p.ID), pull.Merged)
			if n := r.merges(); n != 1 {
				t.Errorf("%d merges", n)
			}
		})
	}
}

// A merge whose outcome stayed unknown, and was done: asking again goes on with
// the steps after it and merges nothing twice.
func TestUnknownMergeIsFoundByTheNextRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo()
	w.push("f", "f.txt", "x")
	p := r.pull("f", "ann")
	r.forge.set(func(context.Context, forge.MergeInput) (string, error) {
		return "", &forge.Error{Op: "merge", Kind: forge.KindUnclear, Detail: "timeout"}
	})
	op := r.merge(p.ID)
	row := r.until(op, pull.MergeFailed)
	if row.Failure.Kind != saga.UnknownOutcome {
		t.Errorf("%+v", row.Failure)
	}
	head := r.view(p.ID).HeadSHA
	if _, err := r.host.Merge(t.Context(), forge.MergeInput{Ref: forge.Ref{Project: "app", IID: p.IID}, HeadSHA: head, OperationID: op, Title: "t", When: time.Unix(1, 0)}); err != nil {
		t.Fatal(err)
	}
	refusal := r.refused(second(r.svc.Merge(t.Context(), p.ID, "", "ann")), pull.CodeInProgress)
	if refusal.OperationID != op {
		t.Errorf("%+v", refusal)
	}
	r.until(op, pull.Merged)
	if want := []saga.State{pull.Validating, pull.Merging, pull.MergeFailed, pull.Notifying, pull.Indexing, pull.Merged}; !slices.Equal(r.states(op), want) {
		t.Errorf("%v", r.states(op))
	}
	if r.merges() != 1 || len(r.told.deliveries("ann")) != 1 {
		t.Errorf("%d merges, %v", r.merges(), r.told.deliveries("ann"))
	}
}

func TestBadInputNamesTheField(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo()
	w.push("f", "f.txt", "x")
	in := func(change func(*forge.NewMergeRequest)) forge.NewMergeRequest {
		n := forge.NewMergeRequest{Project: "app", Source: "f", Target: "main", Title: "t"}
		change(&n)
		return n
	}
	for field, n := range map[string]forge.NewMergeRequest{
		"title":       in(func(n *forge.NewMergeRequest) { n.Title = "a\x00b" }),
		"description": in(func(n *forge.NewMergeRequest) { n.Description = "\xff" }),
		"source":      in(func(n *forge.NewMergeRequest) { n.Source = "--upload-pack=x" }),
		"target":      in(func(n *forge.NewMergeRequest) { n.Target = "" }),
		"watchers[1]": in(func(n *forge.NewMergeRequest) { n.Watchers = []string{"ann", " "} }),
		"repo":        in(func(n *forge.NewMergeRequest) { n.Project = "gone" }),
	} {
		_, err := r.svc.Create(t.Context(), n)
		var bad *pull.Invalid
		var fe *forge.Error
		switch {
		case errors.As(err, &bad) && bad.Field == field:
		case errors.As(err, &fe) && fe.Field == field:
		default:
			t.Errorf("%s: %v", field, err)
		}
	}
}

// The door's limit is the forge's: what passes one passes the other.
func TestTheLongestDescriptionIsTheForges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo()
	w.push("f", "f.txt", "x")
	in := forge.NewMergeRequest{Project: "app", Source: "f", Target: "main", Title: "t", Description: strings.Repeat("ä", forge.MaxDescription/2)}
	if _, err := r.svc.Create(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	in.Description += "x"
	_, err := r.svc.Create(t.Context(), in)
	if bad, ok := errors.AsType[*pull.Invalid](err); !ok || bad.Field != "description" || !strings.Contains(bad.Detail, "65536 bytes") {
		t.Errorf("%v", err)
	}
}

// What somebody merged on the forge is not closed, whatever the saga is doing;
// a forge that can't be read keeps nobody from closing what has not begun.
func TestCloseLooksAtTheForge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo("ci")
	w.push("f", "f.txt", "x")
	p := r.pull("f")
	op := r.merge(p.ID) // waits for ci
	row := r.until(op, pull.Validating)
	away := &elsewhere{Forge: r.host}
	svc := *r.svc
	svc.Forges = func(string) (forge.Forge, bool) { return away, true }

	away.mr = &forge.MergeRequest{State: forge.Merged, MergeCommit: strings.Repeat("c", 40)}
	r.refused(second(svc.Operate(t.Context(), row, saga.Close, "no", "ann")), pull.CodeRetryInstead)
	if got := r.until(op, pull.Merged); !strings.Contains(string(got.Data), strings.Repeat("c", 40)) {
		t.Errorf("%s", got.Data)
	}

	w.push("g", "g.txt", "y")
	q := r.pull("g")
	op = r.merge(q.ID)
	row = r.until(op, pull.Validating)
	away.mr = nil
	if _, err := svc.Operate(t.Context(), row, saga.Close, "no", "ann"); err != nil {
		t.Fatal(err)
	}
	r.until(op, pull.PullClosed)
}

// A merge that lands between a close's look and its commit is impossible: the
// close is the forge's first, and the merge that comes after it is refused.
func TestACloseExcludesTheMerge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.repo()
	w.push("f", "f.txt", "x")
	p := r.pull("f")
	entered, release := make(chan struct{}), make(chan struct{})
	r.forge.set(func(ctx context.Context, in forge.MergeInput) (string, error) {
		close(entered)
		<-release // a merge that is under way while a person closes, and ignores being cancelled
		return r.host.Merge(context.WithoutCancel(ctx), in)
	})
	op := r.merge(p.ID)
	<-entered
	if _, err := r.svc.Close(t.Context(), p.ID, "wrong", "ann"); err != nil {
		t.Fatal(err)
	}
	close(release)
	r.until(op, pull.PullClosed)
	if n := r.merges(); n != 0 {
		t.Errorf("%d merges of a closed pull request", n)
	}
	if v := r.view(p.ID); v.Status() != "closed" || v.MergeCommit != "" {
		t.Errorf("%+v", v.Pull)
	}
}
