package change

import (
	"context"
	"errors"

	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
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
	err = s.Deployer.Deploy(ctx, release(run.Row, d))
	if r, ok := errors.AsType[*deploy.Refused](err); ok {
		return saga.FailAs(EvDeployFailed, saga.NeedsHuman, saga.Clean(r.Cause, 1000), r.Hint)
	}
	if err != nil {
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

// watermark finds a merge that went live and contains this one, whenever we heard
// of it: before a retry, or before our own merge was recorded. Git says what
// contains what: a merge request's number is given when it is opened, and says
// nothing about when it was merged.
func (s *Steps) watermark(ctx context.Context, o opened) (by string, err error) {
	project := o.row.About.Project
	live, err := s.Store.LiveSince(ctx, project, o.d.Base, o.row.CreatedAt, watermarkDepth)
	if err != nil || o.d.MergeCommit == "" {
		return "", err
	}
	for _, r := range live {
		commit, err := s.commitOf(ctx, r)
		if err != nil {
			return "", err
		}
		if commit == "" {
			continue
		}
		fork, err := o.forge.MergeBase(ctx, project, o.d.MergeCommit, commit)
		switch k := forge.KindOf(err); {
		case err != nil && k != forge.KindNotFound && k != forge.KindConflict:
			return "", err
		case err == nil && fork == o.d.MergeCommit:
			return short(commit), nil
		}
	}
	return "", nil
}

// commitOf is the merge that a record is about. A callback that came early is
// recorded by its merge request, and counts once its operation is live.
func (s *Steps) commitOf(ctx context.Context, r store.DeployRecord) (string, error) {
	if r.MergeCommit != "" || r.MRIID == 0 {
		return r.MergeCommit, nil
	}
	id, err := s.Store.OperationOf(ctx, r.Project, "", r.MRIID)
	if err == nil {
		var row saga.Row
		if row, err = s.Store.Saga(ctx, id); err == nil && row.State == CalledBack {
			d, err := dataOf(row)
			return d.MergeCommit, err
		}
	}
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return "", err
}
