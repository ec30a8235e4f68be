package pull

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// notify tells each watcher once. A receipt is written after each delivery, so
// that a retry skips those already reached; a crash between delivery and
// receipt sends once more under the same id, which the receiver can drop. One
// recipient that fails does not keep the others from being told.
func (s *Steps) notify(ctx context.Context, run engine.Run) saga.Outcome {
	d, reached, missing, bad := s.recipients(ctx, run)
	if bad != nil {
		return *bad
	}
	var failed []error
	for _, r := range missing {
		m := notify.Message{
			DeliveryID: DeliveryID(run.Row.ID, r.Key), Watcher: r.Watcher, Event: "merged", Repo: d.Repo, Pull: d.IID,
			OperationID: run.Row.ID, MergeCommit: d.MergeCommit,
			Text: fmt.Sprintf("%s!%d %q was merged into %s as %s", d.Repo, d.IID, d.Title, d.Target, short(d.MergeCommit)),
		}
		if err := s.Notifier.Send(ctx, r, m); err != nil {
			failed = append(failed, err)
			if ctx.Err() != nil {
				break
			}
			continue
		}
		err := fault.Point(fault.NotifyDone)
		if err == nil {
			err = s.Store.AddReceipt(ctx, run.Row.ID, store.Receipt{Recipient: r.Key, DeliveryID: m.DeliveryID})
		}
		if err != nil {
			return saga.FailWith(saga.Transient, "recording a delivery: "+err.Error(), "")
		}
		reached++
	}
	if len(failed) > 0 {
		// One deterministic refusal must not end the tries for those that may
		// still be reached, so any transient failure makes the whole transient.
		out := serviceFailed(failed[0], "the merge is done; retry tells only the watchers that were not reached yet")
		for _, err := range failed {
			if !deterministic(err) {
				out = serviceFailed(err, "the merge is done; retry tells only the watchers that were not reached yet")
			}
		}
		return out
	}
	return saga.Done(fmt.Sprintf("%d recipients told", reached), nil)
}

func deterministic(err error) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return ok && !e.Transient
}

// DeliveryID is the same for a saga and a recipient on every try.
func DeliveryID(sagaID, recipient string) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("mergeflow:"+sagaID+":"+recipient)).String()
}

func (s *Steps) recipients(ctx context.Context, run engine.Run) (d Data, reached int, missing []notify.Recipient, bad *saga.Outcome) {
	fail := func(o saga.Outcome) (Data, int, []notify.Recipient, *saga.Outcome) { return d, 0, nil, &o }
	d, err := dataOf(run.Row)
	if err != nil {
		return fail(saga.FailWith(saga.Deterministic, err.Error(), "the saga's data can't be read; please report it"))
	}
	watchers, err := s.Store.Watchers(ctx, d.PullID)
	if err != nil {
		return fail(saga.FailWith(saga.Transient, "reading the watchers: "+err.Error(), ""))
	}
	have, err := s.Store.Receipts(ctx, run.Row.ID)
	if err != nil {
		return fail(saga.FailWith(saga.Transient, "reading the receipts: "+err.Error(), ""))
	}
	for _, r := range s.Notifier.Recipients(watchers) {
		if _, ok := have[r.Key]; ok {
			reached++
			continue
		}
		missing = append(missing, r)
	}
	return d, reached, missing, nil
}

// lookNotify asks the receipts: a delivery without one counts as not made.
func (s *Steps) lookNotify(ctx context.Context, run engine.Run) saga.Outcome {
	_, reached, missing, bad := s.recipients(ctx, run)
	switch {
	case bad != nil:
		return *bad
	case len(missing) == 0:
		return saga.Done(fmt.Sprintf("%d recipients told", reached), nil)
	}
	return saga.NotDone(fmt.Sprintf("%d of %d recipients not reached", len(missing), len(missing)+reached))
}
