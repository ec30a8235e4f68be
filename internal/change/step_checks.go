package change

import (
	"context"
	"fmt"
	"strings"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// awaitChecks reads the checks of exactly the head that is being carried. It
// serves the checking states and the pending ones after them, and only reads.
//
// A close that waits needs none of it: nothing was begun here, and the close
// looks for itself whether anybody has merged.
func (s *Steps) awaitChecks(ctx context.Context, run engine.Run) saga.Outcome {
	if run.Row.Pending != nil {
		return saga.NotDone("the checks were only read")
	}
	o, bad := s.open(run)
	if bad != nil {
		return *bad
	}
	if _, out := o.lookMR(ctx); out != nil {
		return *out
	}
	c, err := o.forge.Checks(ctx, o.row.About.Project, o.d.HeadSHA)
	if err != nil {
		return readFailed(err)
	}
	switch c.State {
	case forge.ChecksPassed:
		return saga.Done("checks of "+short(o.d.HeadSHA)+" passed", nil)
	case forge.ChecksFailed:
		return saga.FailAs(EvRed, saga.Deterministic, "checks of "+short(o.d.HeadSHA)+" failed: "+describe(c, "failure", "error"), "")
	}
	return saga.NotYet("checks of " + short(o.d.HeadSHA) + " are not finished: " + describe(c, "pending", "missing"))
}

func describe(c forge.Checks, states ...string) string {
	var out []string
	for _, x := range c.Checks {
		for _, s := range states {
			if x.Required && x.State == s {
				out = append(out, fmt.Sprintf("%s (%s)", x.Context, x.State))
			}
		}
	}
	if len(out) > 10 {
		out = append(out[:10], fmt.Sprintf("and %d more", len(out)-10))
	}
	return strings.Join(out, ", ")
}
