package pull

import (
	"context"
	"errors"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Steps are the four commands with what they need.
type Steps struct {
	Forges   func(name string) (forge.Forge, bool)
	Notifier notify.Notifier
	Index    search.Index
	Store    Receipts
}

// Receipts is what the notify step asks of the store.
type Receipts interface {
	Watchers(ctx context.Context, pullID string) ([]string, error)
	Receipts(ctx context.Context, sagaID string) (map[string]store.Receipt, error)
	AddReceipt(ctx context.Context, sagaID string, r store.Receipt) error
}

// Commands are the flow's steps by command.
func (s *Steps) Commands() map[saga.Command]engine.Step {
	return map[saga.Command]engine.Step{
		CmdValidate: {Perform: s.validate, Look: s.lookValidate},
		CmdMerge:    {Perform: s.merge, Look: s.lookMerge},
		CmdNotify:   {Perform: s.notify, Look: s.lookNotify},
		CmdIndex:    {Perform: s.index, Look: s.lookIndex},
	}
}

// Flow is the table with these steps, as the engine takes it.
func (s *Steps) Flow() engine.Flow {
	return engine.Flow{Table: Table, Steps: s.Commands(), Outward: Outward}
}

// open reads the saga's data and finds its forge.
func (s *Steps) open(run engine.Run) (Data, forge.Forge, *saga.Outcome) {
	d, err := dataOf(run.Row)
	if err != nil {
		o := saga.FailWith(saga.Deterministic, err.Error(), "the saga's data can't be read; please report it")
		return d, nil, &o
	}
	f, ok := s.Forges(d.Forge)
	if !ok {
		o := saga.FailWith(saga.NeedsHuman, "forge "+d.Forge+" is not configured on this instance", "put the forge back into the configuration, then retry")
		return d, nil, &o
	}
	return d, f, nil
}

// readFailed is the outcome of a read that failed: nothing was changed, so it
// is worth another try unless the forge says that it never will work.
func readFailed(err error) saga.Outcome {
	switch forge.KindOf(err) {
	case forge.KindNotFound:
		return saga.FailWith(saga.Deterministic, err.Error(), "the repository or the merge request is gone from the forge")
	case forge.KindInvalid:
		return saga.FailWith(saga.Deterministic, err.Error(), "")
	}
	return saga.FailWith(saga.Transient, err.Error(), "the forge could not be read; retry when it answers again")
}

// serviceFailed is the outcome of a call to an index or a notification service
// that may be repeated safely.
func serviceFailed(err error, hint string) saga.Outcome {
	kind := saga.Transient
	if e, ok := errors.AsType[*search.Error](err); ok && !e.Transient {
		kind = saga.Deterministic
	}
	if e, ok := errors.AsType[*notify.Error](err); ok && !e.Transient {
		kind = saga.Deterministic
	}
	return saga.FailWith(kind, saga.Clean(err.Error(), 1000), hint)
}
