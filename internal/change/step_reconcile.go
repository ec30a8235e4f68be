package change

import (
	"context"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// reconcile is the self-check of "merged, waiting until it is live". An exact
// callback needs none of it; this finds what a lost callback would have said,
// and lets a driver that deploys by itself do so.
func (s *Steps) reconcile(ctx context.Context, run engine.Run) saga.Outcome {
	out := s.lookLive(ctx, run)
	if out.Settles() {
		return out
	}
	d, err := dataOf(run.Row)
	if err != nil {
		return saga.FailWith(saga.Deterministic, err.Error(), "the saga's data can't be read; please report it")
	}
	if err := s.Deployer.Deploy(ctx, release(run.Row, d)); err != nil {
		return saga.NotYet("deploying: " + saga.Clean(err.Error(), 300))
	}
	// Whoever deployed calls back; where that is lost, the next look finds it.
	return saga.NotYet("not live yet")
}

func release(row saga.Row, d Data) deploy.Release {
	return deploy.Release{Project: row.About.Project, Branch: d.Base, MRIID: d.MRIID, OperationID: row.ID, MergeCommit: d.MergeCommit}
}

// lookLive asks in this order: the environment, then the watermark where the
// project's deploys run in order.
func (s *Steps) lookLive(ctx context.Context, run engine.Run) saga.Outcome {
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	state, err := s.Deployer.Look(ctx, release(run.Row, o.d))
	if err != nil {
		return saga.NotYet("asking the environment: " + saga.Clean(err.Error(), 300))
	}
	if state == deploy.Live {
		return saga.Moved(EvLive, "the environment holds "+short(o.d.MergeCommit), map[string]string{"liveBy": "environment"})
	}
	if o.conf.InOrder && o.d.MRIID != 0 {
		highest, err := s.Store.HighestLive(ctx, run.Row.About.Project, o.d.Base, run.Row.WaitingSince)
		if err != nil {
			return saga.NotYet("reading the deploy callbacks: " + saga.Clean(err.Error(), 300))
		}
		if o.d.MRIID <= highest {
			return saga.Moved(EvLive, fmt.Sprintf("inferred: merge request %d went live later, and deploys run in order", highest), map[string]string{"liveBy": "inferred"})
		}
	}
	return saga.NotYet("not live yet")
}
