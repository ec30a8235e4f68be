package pull

import (
	"context"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
)

// index makes the merge commit searchable. Running it again is harmless, so an
// unclear answer is simply tried again.
func (s *Steps) index(ctx context.Context, run engine.Run) saga.Outcome {
	d, err := dataOf(run.Row)
	if err != nil {
		return saga.FailWith(saga.Deterministic, err.Error(), "the saga's data can't be read; please report it")
	}
	t := target(d, run.Row.ID)
	covered, err := s.Index.Covers(ctx, t)
	if err == nil && covered {
		return saga.Done(short(d.MergeCommit)+" is covered", nil)
	}
	if err = s.Index.Index(ctx, t); err == nil {
		err = fault.Point(fault.IndexDone)
	}
	if err != nil {
		return serviceFailed(err, "the merge is done; when the index works again, retry runs only this step")
	}
	return saga.Done(short(d.MergeCommit)+" is searchable", nil)
}

func (s *Steps) lookIndex(ctx context.Context, run engine.Run) saga.Outcome {
	d, err := dataOf(run.Row)
	if err != nil {
		return saga.FailWith(saga.Deterministic, err.Error(), "the saga's data can't be read; please report it")
	}
	covered, err := s.Index.Covers(ctx, target(d, run.Row.ID))
	switch {
	case err != nil:
		return serviceFailed(err, "")
	case covered:
		return saga.Done(short(d.MergeCommit)+" is covered", nil)
	}
	return saga.NotDone("the index does not hold " + short(d.MergeCommit))
}

func target(d Data, operationID string) search.Target {
	return search.Target{Repo: d.Repo, Branch: d.Target, Commit: d.MergeCommit, OperationID: operationID}
}
