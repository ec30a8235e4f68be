package saga_test

import (
	"testing"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
)

var flows = []*saga.Flow{pull.Table, change.Table}

// A product table that breaks a rule must not ship.
func TestProductTablesHold(t *testing.T) {
	t.Parallel()
	for _, f := range flows {
		if err := saga.Check(f); err != nil {
			t.Errorf("%v", err)
		}
	}
}
