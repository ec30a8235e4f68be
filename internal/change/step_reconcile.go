package change

import (
	"context"

	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
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
	if o.conf.InOrder {
		by, err := s.watermark(ctx, o)
		if err != nil {
			return saga.NotYet("reading the watermark: " + saga.Clean(err.Error(), 300))
		}
		if by != "" {
			return saga.Moved(EvLive, "inferred: "+by+" contains "+short(o.d.MergeCommit)+" and went live later, and deploys run in order", map[string]string{"liveBy": "inferred"})
		}
	}
	return saga.NotYet("not live yet")
}

// watermarkDepth is how many of the newest live deploys are compared with a
// merge. Where deploys run in order the newest contains the others; callbacks
// that overtake each other are few.
const watermarkDepth = 5

// watermark finds a merge that went live after this one was made, and contains
// it. Git says what contains what: a merge request's number is given when it is
// opened, and says nothing about when it was merged.
func (s *Steps) watermark(ctx context.Context, o opened) (by string, err error) {
	project := o.row.About.Project
	live, err := s.Store.LiveSince(ctx, project, o.d.Base, o.row.WaitingSince, watermarkDepth)
	if err != nil || o.d.MergeCommit == "" {
		return "", err
	}
	for _, r := range live {
		if r.MergeCommit == "" {
			continue
		}
		fork, err := o.forge.MergeBase(ctx, project, o.d.MergeCommit, r.MergeCommit)
		switch k := forge.KindOf(err); {
		case err != nil && k != forge.KindNotFound && k != forge.KindConflict:
			return "", err
		case err == nil && fork == o.d.MergeCommit:
			return short(r.MergeCommit), nil
		}
	}
	return "", nil
}
