package sim

import (
	"testing"

	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// edges lists the table's transitions as the checks count them, the creation
// and every retry of a failed step included.
func edges(t *testing.T) []string {
	t.Helper()
	out := []string{" —" + string(saga.Created) + "→ " + string(pull.Validating)}
	for i := range pull.Table.States {
		s := &pull.Table.States[i]
		for _, e := range s.Edges() {
			for _, to := range e.To {
				if to.State != saga.FailedStep {
					out = append(out, string(s.State)+" —"+string(e.Event)+"→ "+string(to.State))
					continue
				}
				for _, step := range []saga.State{pull.Validating, pull.Merging, pull.Notifying, pull.Indexing} {
					out = append(out, string(s.State)+" —"+string(e.Event)+"→ "+string(step))
				}
			}
		}
	}
	return out
}
