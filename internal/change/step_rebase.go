package change

import (
	"context"
	"strings"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// rebase looks whether the head merges as it stands, after somebody has cleared
// a conflict on the target. It moves no branch: a head that must be rebased is
// a failed state for people.
func (s *Steps) rebase(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	if _, out := o.lookMR(ctx); out != nil {
		return *out
	}
	m, err := o.forge.Mergeability(ctx, o.ref, o.d.HeadSHA)
	switch {
	case forge.KindOf(err) == forge.KindConflict:
		return saga.FailAs(EvConflict, saga.Deterministic, err.Error(), "")
	case err != nil:
		return readFailed(err)
	case len(m.Conflicts) > 0:
		return saga.FailAs(EvConflict, saga.Deterministic, "conflicts in "+strings.Join(m.Conflicts, ", "), "")
	case m.Behind && m.MustBeCurrent:
		return saga.FailWith(saga.NeedsHuman, "the branch is behind its target, and the repository wants it up to date", "close and submit again on the current base")
	}
	return saga.Done("merges cleanly as it stands", nil)
}
