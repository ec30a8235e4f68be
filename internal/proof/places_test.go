package proof

import (
	"slices"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// Every fault point that the binary has is met by some scenario of the matrix,
// or by the test of callbacks.
func TestEachPlaceIsProven(t *testing.T) {
	t.Parallel()
	var proven []string
	for _, s := range []scenario{newPullScenario(), newLiveScenario(), newClosedScenario()} {
		proven = append(proven, placesOf(t, s)...)
	}
	for _, name := range cluster.FaultPoints(t) {
		if strings.HasPrefix(name, "callback.") {
			continue // TestKilledWhileItTakesACallback
		}
		head, starred := strings.CutSuffix(name, "*")
		if !slices.ContainsFunc(proven, func(p string) bool { return p == name || starred && strings.HasPrefix(p, head) }) {
			t.Errorf("no scenario passes %s", name)
		}
	}
}
