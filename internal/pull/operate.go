package pull

import (
	"context"
	"errors"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Close ends a pull request without a merge. One that has a live saga is closed
// through it; a merged one is refused. Closing a closed one is a no-op.
func (s *Service) Close(ctx context.Context, pullID, reason, actor string) (View, error) {
	p, err := s.Store.Pull(ctx, pullID)
	if err != nil {
		return View{}, err
	}
	live, err := s.live(ctx, p)
	if err != nil {
		return View{}, err
	}
	if live != nil {
		if _, err := s.Operate(ctx, *live, saga.Close, reason, actor); err != nil {
			return View{}, err
		}
		return s.View(ctx, pullID)
	}
	mr, err := s.look(ctx, p)
	if err != nil {
		return View{}, err
	}
	switch mr.State {
	case forge.Merged:
		return View{}, &Refusal{Code: CodeAlreadyMerged, Detail: "the pull request is merged as " + short(mr.MergeCommit), OperationID: p.OperationID}
	case forge.Open:
		switch id, own, err := s.carrier(ctx, p); {
		case err != nil:
			return View{}, err
		case own:
			return View{}, carried(id)
		}
		if mr, err = s.closeOnForge(ctx, p, mr); err != nil {
			return View{}, err
		}
		if mr.State == forge.Merged {
			return View{}, &Refusal{Code: CodeAlreadyMerged, Detail: "the pull request is merged as " + short(mr.MergeCommit), OperationID: p.OperationID}
		}
	}
	return s.View(ctx, pullID)
}

// closer is a forge on which a close and a merge exclude each other. Whoever
// closes there first can't be overtaken by a merge between look and commit.
type closer interface {
	CloseMergeRequest(ctx context.Context, ref forge.Ref) error
}

func (s *Service) closer(p store.Pull) (closer, bool) {
	f, ok := s.Forges(p.Forge)
	if !ok {
		return nil, false
	}
	c, ok := f.(closer)
	return c, ok
}

// closeOnForge closes an open merge request and answers what became of it: a
// merge may have come first.
func (s *Service) closeOnForge(ctx context.Context, p store.Pull, mr forge.MergeRequest) (forge.MergeRequest, error) {
	c, ok := s.closer(p)
	if !ok {
		if p.Forge != LocalForge {
			return mr, nil // the saga's row is all that can be closed from here
		}
		return mr, s.Store.SetForgeState(ctx, p.ID, "closed", "")
	}
	if err := c.CloseMergeRequest(ctx, mr.Ref); err != nil && forge.KindOf(err) != forge.KindInvalid {
		return mr, err
	}
	return s.look(ctx, p)
}

// Operate sends an operator's event to a saga of this flow. What is refused is
// a *saga.Refusal. A close looks at the forge first: what git has merged can't
// be closed, and goes on instead. A forge that can't be read keeps only a
// failed saga from being closed.
func (s *Service) Operate(ctx context.Context, row saga.Row, event saga.Name, reason, actor string) (saga.Decision, error) {
	ev := saga.Event{Name: event, Actor: actor, Detail: reason}
	if event == saga.Close && closable(row.State) {
		p, err := s.Store.Pull(ctx, row.AggregateID)
		if err != nil {
			return saga.Decision{}, err
		}
		d, err := dataOf(row)
		if err != nil {
			return saga.Decision{}, err
		}
		mr, err := s.look(ctx, p)
		if err != nil && row.State == MergeFailed {
			return saga.Decision{}, err
		}
		if _, exclusive := s.closer(p); exclusive && err == nil && mr.State == forge.Open && d.MergeCommit == "" {
			if mr, err = s.closeOnForge(ctx, p, mr); err != nil {
				return saga.Decision{}, err
			}
		}
		// Of a running saga only somebody else's merge is missed where the forge
		// can't be read: what its own step did is looked for before it is closed.
		if d.MergeCommit != "" || mr.State == forge.Merged {
			if d.MergeCommit == "" {
				// While it is merging its own step finds the merge.
				if _, err := s.foundMerged(ctx, row.ID, mr); err != nil && !errors.Is(err, saga.ErrAlreadyAdvanced) && !errors.Is(err, saga.ErrIllegalTransition) {
					return saga.Decision{}, err
				}
			}
			return saga.Decision{}, &Refusal{Code: CodeRetryInstead, Detail: "git has merged; what is merged can't be closed", OperationID: row.ID}
		}
		if row.State == MergeFailed {
			ev.Version = row.Version // nothing may have begun since the look
		}
	}
	return s.Engine.Send(ctx, row.ID, ev)
}

func closable(state saga.State) bool {
	spec, ok := Table.Spec(state)
	if !ok {
		return false
	}
	_, ok = spec.Edge(saga.Close)
	return ok
}

func (s *Service) look(ctx context.Context, p store.Pull) (forge.MergeRequest, error) {
	f, ok := s.Forges(p.Forge)
	if !ok {
		return forge.MergeRequest{}, &forge.Error{Op: "look", Kind: forge.KindTransient, Detail: "forge " + p.Forge + " is not configured"}
	}
	return f.MergeRequest(ctx, forge.Ref{Project: p.Repo, IID: p.IID})
}
