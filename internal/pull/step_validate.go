package pull

import (
	"context"
	"fmt"
	"strings"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// validate proves, for exactly the head that was named: the merge request is
// open, there is something to merge, the required checks of that head are
// green, and nothing conflicts. It only reads.
func (s *Steps) validate(ctx context.Context, run engine.Run) saga.Outcome {
	d, f, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	mr, err := f.MergeRequest(ctx, forge.Ref{Project: d.Repo, IID: d.IID})
	if err != nil {
		return readFailed(err)
	}
	switch mr.State {
	case forge.Merged:
		return saga.Moved(saga.Found, "merged on the forge already", Data{}.learnt(mr.MergeCommit))
	case forge.Closed:
		return saga.FailWith(saga.Deterministic, "the pull request is closed on the forge", "reopen it, or ask again with a new one")
	case forge.Locked:
		return saga.NotYet("the forge is merging it right now")
	}
	if mr.HeadSHA != d.HeadSHA {
		return saga.FailWith(saga.Deterministic, headMoved(d.HeadSHA, mr.HeadSHA), "ask again to merge: a new request takes the branch's current head")
	}
	m, err := f.Mergeability(ctx, mr.Ref, d.HeadSHA)
	if err != nil {
		return readFailed(err)
	}
	switch {
	case len(m.Conflicts) > 0:
		return saga.FailWith(saga.Deterministic, "conflicts in "+list(m.Conflicts, 10), "merge or rebase the source branch, push, then ask again to merge")
	case m.NothingToDo:
		return saga.FailWith(saga.Deterministic, "nothing to merge: the target already holds it", "close the pull request")
	case m.Behind && m.MustBeCurrent:
		return saga.FailWith(saga.Deterministic, "the source branch is behind its target and the repository requires it up to date", "rebase the source branch, push, then ask again to merge")
	}
	checks, err := f.Checks(ctx, d.Repo, d.HeadSHA)
	if err != nil {
		return readFailed(err)
	}
	switch checks.State {
	case forge.ChecksFailed:
		return saga.FailWith(saga.Deterministic, "required checks of "+short(d.HeadSHA)+" are red: "+describe(checks, "failure", "error"), "fix the cause and push, then ask again to merge; or run the checks again and retry")
	case forge.ChecksPending:
		return saga.NotYet("required checks of " + short(d.HeadSHA) + " are not finished: " + describe(checks, "pending", "missing"))
	}
	return saga.Done(short(d.HeadSHA)+" can be merged", nil)
}

// lookValidate runs before a deadline or a close is applied: merged meanwhile
// is the only thing that would beat them; a validation itself has no effect
// that could be half done.
func (s *Steps) lookValidate(ctx context.Context, run engine.Run) saga.Outcome {
	if run.Row.Pending == nil {
		return s.validate(ctx, run)
	}
	d, f, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	mr, err := f.MergeRequest(ctx, forge.Ref{Project: d.Repo, IID: d.IID})
	switch {
	case err != nil:
		return readFailed(err)
	case mr.State == forge.Merged:
		return saga.Moved(saga.Found, "merged on the forge already", Data{}.learnt(mr.MergeCommit))
	case mr.State == forge.Locked:
		return saga.NotYet("the forge is merging it right now")
	}
	return saga.NotDone("not merged")
}

// learnt is the data that a merge adds.
func (Data) learnt(commit string) any {
	return map[string]string{"mergeCommit": commit}
}

func headMoved(want, have string) string {
	if have == "" {
		return "the source branch is gone; " + short(want) + " was to be merged"
	}
	return fmt.Sprintf("the source branch moved: %s was to be merged, it is at %s now", short(want), short(have))
}

func short(sha string) string {
	if len(sha) > 10 {
		return sha[:10]
	}
	return sha
}

func list(items []string, limit int) string {
	if len(items) > limit {
		return strings.Join(items[:limit], ", ") + fmt.Sprintf(" and %d more", len(items)-limit)
	}
	return strings.Join(items, ", ")
}

func describe(c forge.Checks, states ...string) string {
	var out []string
	for _, x := range c.Checks {
		for _, s := range states {
			if x.Required && x.State == s {
				out = append(out, x.Context+" ("+x.State+")")
			}
		}
	}
	return list(out, 10)
}
