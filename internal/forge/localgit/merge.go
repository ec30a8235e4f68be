package localgit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// maxTries bounds how often a merge is made anew because the target moved
// meanwhile. Each try that fails means that somebody else's move succeeded.
const maxTries = 100

// The places where tests make a merge fail.
const (
	pointBefore  = fault.MergeBefore // nothing is written yet
	pointMarked  = fault.MergeMarked // the marker is set, the branch has not moved
	pointSwapped = fault.MergeDone   // the branch has moved, the database does not know
)

// Merge lands in.HeadSHA on the target once; see the package's description.
func (h *Host) Merge(ctx context.Context, in forge.MergeInput) (string, error) {
	const op = "merge"
	if err := checkInput(op, in); err != nil {
		return "", err
	}
	l, err := h.look(ctx, op, in.Ref)
	for try := 0; err == nil; try++ {
		if l.merged != "" {
			return l.merged, nil
		}
		var again bool
		if again, err = l.attempt(ctx, op, in); err != nil || !again {
			break
		}
		if try == maxTries {
			return "", &forge.Error{Op: op, Kind: forge.KindTransient, Detail: "the target branch kept moving for " + fmt.Sprint(maxTries) + " tries"}
		}
		pause(ctx, try)
		// The row too: a merge that was recorded and pushed away since is still one.
		l, err = h.look(ctx, op, in.Ref)
	}
	if err != nil {
		return "", err
	}
	l.record(ctx)
	return l.merged, nil
}

// pause spreads out those who met at one branch; it ends early with ctx, which
// the next git call then reports.
func pause(ctx context.Context, try int) {
	limit := min(time.Duration(try+1)*4*time.Millisecond, 40*time.Millisecond)
	select {
	case <-ctx.Done():
	case <-time.After(rand.N(limit)):
	}
}

func checkInput(op string, in forge.MergeInput) error {
	switch {
	case !git.IsSHA(in.HeadSHA):
		return invalid(op, "sha", "%.60q is no full commit id", in.HeadSHA)
	case in.OperationID == "" || checkLine(in.OperationID, maxPerson) != nil || strings.ContainsRune(in.OperationID, ' '):
		return invalid(op, "operationId", "the operation's id must be one word")
	case in.When.Unix() < 0:
		return invalid(op, "when", "a merge can't be dated before 1970")
	}
	return nil
}

// attempt makes one merge for the target as it was seen. again says that a
// reference moved meanwhile and nothing landed.
func (l *look) attempt(ctx context.Context, op string, in forge.MergeInput) (again bool, err error) {
	m, err := l.mergeCommit(ctx, op, in)
	if err != nil {
		return false, err
	}
	if err := l.host.point(pointBefore); err != nil {
		return false, notApplied(op, err)
	}
	notClosed := git.Guard{Ref: l.closedRef(), Value: git.Zero}
	if l.marker != m {
		mark := git.Swap{Ref: l.markerRef(), Old: orZero(l.marker), New: m}
		err := l.repo.UpdateRef(ctx, mark, git.Guard{Ref: l.targetRef(), Value: l.target}, notClosed)
		if errors.Is(err, git.ErrMoved) {
			return true, nil
		}
		if err != nil {
			return false, notApplied(op, err) // the branch has not moved
		}
	}
	if err := l.host.point(pointMarked); err != nil {
		return false, notApplied(op, err)
	}
	land := git.Swap{Ref: l.targetRef(), Old: l.target, New: m}
	err = l.repo.UpdateRef(ctx, land, git.Guard{Ref: l.markerRef(), Value: m}, notClosed)
	if errors.Is(err, git.ErrMoved) {
		return true, nil
	}
	if locked, ok := errors.AsType[*git.LockError](err); ok {
		return false, notApplied(op, locked)
	}
	if err == nil {
		err = l.host.point(pointSwapped)
	}
	if err != nil {
		return false, unclear(op, err)
	}
	l.merged = m
	return false, nil
}

func orZero(sha string) string {
	if sha == "" {
		return git.Zero
	}
	return sha
}

// mergeCommit makes the commit that would land, or says why none can.
func (l *look) mergeCommit(ctx context.Context, op string, in forge.MergeInput) (string, error) {
	ref := fmt.Sprintf("%s!%d", l.pull.Repo, l.pull.IID)
	fact := func(kind forge.Kind, format string, args ...any) (string, error) {
		return "", &forge.Error{Op: op, Kind: kind, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case l.state() == forge.Closed:
		return fact(forge.KindClosed, "%s is closed", ref)
	case l.target == "":
		return fact(forge.KindNotFound, "the target branch %s is gone", l.pull.Target)
	case l.head == "":
		return fact(forge.KindHeadMoved, "the source branch %s is gone", l.pull.Source)
	case l.head != in.HeadSHA:
		return fact(forge.KindHeadMoved, "the source branch %s is at %s, not at %s", l.pull.Source, l.head, in.HeadSHA)
	}
	d, err := dryRun(ctx, l.repo, l.row, l.target, in.HeadSHA)
	switch {
	case errors.Is(err, git.ErrUnrelated):
		return fact(forge.KindConflict, "%s and %s have no commit in common", l.pull.Source, l.pull.Target)
	case err != nil:
		return "", fromGit(op, err)
	case d.NothingToDo:
		return fact(forge.KindNothingToMerge, "%s already holds everything of %s", l.pull.Target, l.pull.Source)
	case d.Behind && d.MustBeCurrent:
		return fact(forge.KindBehind, "%s does not hold the newest %s", l.pull.Source, l.pull.Target)
	case len(d.Conflicts) > 0:
		return fact(forge.KindConflict, "%s", conflictText(d.Conflicts))
	}
	c := git.NewCommit{
		Tree: d.tree, Parents: []string{l.target, in.HeadSHA},
		Name: in.Author.Name, Email: in.Author.Email, When: in.When, Message: message(l.pull, in, ""),
	}
	if l.row.MergeStyle == string(forge.SquashCommit) {
		c.Parents, c.Message = []string{l.target}, message(l.pull, in, in.HeadSHA)
	}
	sha, err := l.repo.CommitTree(ctx, c)
	if err != nil {
		return "", fromGit(op, err)
	}
	return sha, nil
}

func conflictText(paths []string) string {
	const shown = 10
	text := "conflicts in " + strings.Join(paths[:min(len(paths), shown)], ", ")
	if n := len(paths) - shown; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return saga.Clean(text, 1000)
}

// Mergeability dry-runs the merge of head into the target's tip.
func (h *Host) Mergeability(ctx context.Context, ref forge.Ref, head string) (forge.Mergeability, error) {
	const op = "try merge"
	if !git.IsSHA(head) {
		return forge.Mergeability{}, invalid(op, "sha", "%.60q is no full commit id", head)
	}
	l, err := h.look(ctx, op, ref)
	if err != nil {
		return forge.Mergeability{}, err
	}
	if l.target == "" {
		return forge.Mergeability{}, &forge.Error{Op: op, Kind: forge.KindNotFound, Detail: "the target branch " + l.pull.Target + " is gone"}
	}
	d, err := dryRun(ctx, l.repo, l.row, l.target, head)
	if errors.Is(err, git.ErrUnrelated) {
		return forge.Mergeability{}, &forge.Error{Op: op, Kind: forge.KindConflict, Detail: l.pull.Source + " and " + l.pull.Target + " have no commit in common"}
	}
	if err != nil {
		return forge.Mergeability{}, fromGit(op, err)
	}
	return d.Mergeability, nil
}

// merging is a merge that was computed and not recorded.
type merging struct {
	forge.Mergeability
	tree string
}

func dryRun(ctx context.Context, repo git.Repo, row store.Repo, target, head string) (merging, error) {
	d := merging{Mergeability: forge.Mergeability{MustBeCurrent: row.RequireUpToDate}}
	held, err := repo.IsAncestor(ctx, head, target)
	if err != nil {
		return d, err
	}
	current, err := repo.IsAncestor(ctx, target, head)
	if err != nil {
		return d, err
	}
	d.NothingToDo, d.Behind = held, !current
	if held {
		return d, nil
	}
	m, err := repo.MergeTree(ctx, target, head)
	if err != nil {
		return d, err
	}
	d.tree, d.Conflicts = m.Tree, m.Conflicts
	// What was squashed before is not in the target's history, only in its files.
	if row.MergeStyle == string(forge.SquashCommit) && len(m.Conflicts) == 0 {
		tree, err := repo.TreeOf(ctx, target)
		if err != nil {
			return d, err
		}
		d.NothingToDo = tree == m.Tree
	}
	return d, nil
}

// somethingToMerge refuses a merge request with nothing in it.
func (h *Host) somethingToMerge(ctx context.Context, op string, row store.Repo, repo git.Repo, target, head string) error {
	held, err := repo.IsAncestor(ctx, head, target)
	if err == nil && !held && row.MergeStyle == string(forge.SquashCommit) {
		var d merging
		d, err = dryRun(ctx, repo, row, target, head)
		held = d.NothingToDo
	}
	switch {
	case errors.Is(err, git.ErrUnrelated):
		return invalid(op, "source", "source and target have no commit in common")
	case err != nil:
		return fromGit(op, err)
	case held:
		return &forge.Error{Op: op, Kind: forge.KindNothingToMerge, Field: "source", Detail: "the target already holds everything of the source"}
	}
	return nil
}
