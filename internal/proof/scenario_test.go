package proof

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// scenario is one way through a flow, as the fault matrix asks for it. It says
// what it passes, and how people and the outside behave while processes die.
type scenario interface {
	// name is that of the flow, or of the way through it.
	name() string
	// config is more configuration, at the top level.
	config() string
	// passes lists what an operation is carried by: its commands, in their
	// order, and the fault points beside the engine's own.
	passes() (commands []saga.Command, places []string)
	// quiet lists the places after which nothing is written any more but claims.
	quiet() []string
	// merges says that it merges in git.
	merges() bool
	// prepare makes what n operations need.
	prepare(p *cluster.Process, n int)
	// begin asks for the i-th operation, from 1, and answers its id.
	begin(t *testing.T, p *cluster.Process, i int) string
	// nudge does what people would do about the operation as it is now.
	nudge(ctx context.Context, p *cluster.Process, o httpapi.Operation)
	// end is the state in which it ends as it should.
	end() saga.State
	// audit asks git, the receivers and the history what became of it. It is
	// asked again when everything is over.
	audit(t *testing.T, c *cluster.Cluster, p *cluster.Process, op string)
	// total checks what all operations together have left.
	total(t *testing.T, c *cluster.Cluster, p *cluster.Process, ops []string)
}

// placesOf are the names of the fault points that a scenario passes, the
// engine's ones for each of its commands.
func placesOf(t *testing.T, s scenario) []string {
	t.Helper()
	commands, own := s.passes()
	var out []string
	for _, name := range cluster.FaultPoints(t) {
		head, starred := strings.CutSuffix(name, "*")
		switch {
		case !strings.HasPrefix(name, "engine."):
		case starred:
			for _, c := range commands {
				out = append(out, head+string(c))
			}
		default:
			out = append(out, name)
		}
	}
	return append(out, own...)
}

// await does what people do until the operation has ended as it should.
func await(t *testing.T, s scenario, p *cluster.Process, op string) {
	t.Helper()
	p.In(t).Await(op, string(s.end()), func(o httpapi.Operation) bool {
		if o.State == string(s.end()) {
			return true
		}
		s.nudge(t.Context(), p, o)
		return false
	})
}

// transitions are the states that an operation entered, oldest first.
func transitions(t *testing.T, p *cluster.Process, op string) []string {
	t.Helper()
	var out []string
	for e, err := range p.Client.History(t.Context(), op) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == "transition" {
			out = append(out, e.To)
		}
	}
	return out
}

// oneDeliveryEach checks that each watcher of an operation was told under one
// id, however often.
func oneDeliveryEach(t *testing.T, c *cluster.Cluster, op string, watchers ...string) {
	t.Helper()
	told := map[string][]string{}
	for _, d := range c.Receiver.Deliveries() {
		if d.OperationID == op && !slices.Contains(told[d.Watcher], d.DeliveryID) {
			told[d.Watcher] = append(told[d.Watcher], d.DeliveryID)
		}
	}
	for _, w := range watchers {
		if len(told[w]) != 1 {
			t.Errorf("%s was told under the ids %v, expected one", w, told[w])
		}
	}
	if len(told) != len(watchers) {
		t.Errorf("told were %v, expected %v", told, watchers)
	}
}

// count is how often a value is in a list.
func count(list []string, value string) (n int) {
	for _, v := range list {
		if v == value {
			n++
		}
	}
	return n
}
