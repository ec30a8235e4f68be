package proof

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

func TestMain(m *testing.M) {
	code := m.Run()
	cluster.RemoveBinary()
	os.Exit(code)
}

const (
	// matrixLease is the lease of the matrix's processes: what a dead one holds
	// is taken over after it.
	matrixLease = time.Second
	lanesAtOnce = 4
	laneLength  = 8 // cells at most
	// limit bounds every wait; only a fault uses it up.
	limit = 60 * time.Second
)

// The kinds of fault. Each meets each place, once.
const (
	killed    = "killed"          // the process dies; inside git, its git too
	orphaned  = "git-orphaned"    // inside git: the process dies, its git goes on
	frozen    = "frozen"          // the process stands still beyond its lease, and goes on while its successor is at work
	frozenFor = "frozen-for-long" // it goes on when its successor has finished
	failed    = "error"           // the place answers an error; inside git, git dies
	cutBefore = "cut-before"      // the next commit's connection breaks before the server hears of it
	cutAfter  = "cut-answer-lost" // it has committed, and the answer is lost
)

// The slow ones first: they end together with the others.
var allKinds = []string{frozen, frozenFor, killed, failed, cutBefore, cutAfter, orphaned}

// lane is a row of cells on one database and one repository, one after the
// other, over processes that take each other's place.
type lane struct {
	s        scenario
	database string
	kind     string
	number   int
	places   []string

	c    *cluster.Cluster
	d    *cluster.Director
	wire *cluster.Wire
	ps   []*cluster.Process
	ops  []string
}

// turns are the lanes that may run now, of all matrices.
var turns = make(chan struct{}, lanesAtOnce)

// Every fault point × every kind of fault × both databases. At each the process
// dies, freezes, fails or loses its database; afterwards the operation has
// ended as it should, as if nothing had been, and whoever comes late changes nothing.
func TestEachFaultAtEachPoint(t *testing.T) {
	t.Parallel()
	matrix(t, newPullScenario, allKinds)
}

// The same for flow change: the way to live, and the end of a rejected change.
// An ordinary run leaves out the kinds that take long or are much like others;
// `make proof` has all.
func TestEachFaultAtEachPointOfAChange(t *testing.T) {
	t.Parallel()
	kinds := []string{killed, orphaned, cutAfter}
	if everything() {
		kinds = allKinds
	}
	for _, fresh := range []func() scenario{newLiveScenario, newClosedScenario} {
		matrix(t, fresh, kinds)
	}
}

// everything is asked for by `make proof`.
func everything() bool { return os.Getenv("MERGEFLOW_TEST_PROOF") != "" }

func matrix(t *testing.T, fresh func() scenario, kinds []string) {
	places := placesOf(t, fresh())
	var lanes []*lane
	cells := 0
	for _, database := range cluster.Databases {
		for _, kind := range kinds {
			if database == "sqlite" && (kind == cutBefore || kind == cutAfter || kind == frozenFor) {
				continue // there is no connection, and no successor
			}
			rows := slices.Collect(slices.Chunk(places, laneLength))
			if kind == orphaned {
				rows = nil
			}
			if fresh().merges() && kind != frozenFor {
				rows = append(rows, cluster.GitPlaces)
			}
			for n, row := range rows {
				if kind == frozenFor {
					row = slices.DeleteFunc(slices.Clone(row), locks) // nobody finishes before it
				}
				lanes = append(lanes, &lane{s: fresh(), database: database, kind: kind, number: n + 1, places: row})
				cells += len(row)
			}
		}
	}
	var all sync.WaitGroup
	for _, l := range lanes {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			t.Run(fmt.Sprintf("%s/%s/%s/%d", l.s.name(), l.database, l.kind, l.number), l.run)
		})
	}
	all.Wait()
	t.Logf("counted: %d cells of %s (%s)", cells, fresh().name(), strings.Join(kinds, ", "))
}

func (l *lane) run(t *testing.T) {
	l.d = cluster.NewDirector(t)
	o := cluster.Options{Database: l.database, Lease: matrixLease, Director: l.d, Extra: l.s.config()}
	if l.kind == cutBefore || l.kind == cutAfter {
		l.wire = cluster.NewWire(t, pg.Database(t))
		o.DSN = l.wire.DSN
	}
	l.c = cluster.New(t, o)
	l.ps = append(l.ps, l.c.Start(""))
	if (l.kind == frozen || l.kind == frozenFor) && l.database == "postgres" {
		l.ps = append(l.ps, l.c.Start("")) // who takes over
	}
	l.s.prepare(l.ps[0], len(l.places))
	if strings.HasPrefix(l.places[0], "git.") {
		l.c.GitHook("app")
	}
	for i, place := range l.places {
		t.Run(place, func(t *testing.T) { l.cell(t, i+1, place) })
	}
	for _, p := range l.ps {
		p.In(t).Stop()
	}
	last := l.c.Start("")
	for _, op := range l.ops {
		l.s.audit(t, l.c, last, op)
	}
	l.s.total(t, l.c, last, l.ops)
	last.Stop()
	l.c.Doctor(t)
}

// cell begins one operation and lets the fault happen to it.
func (l *lane) cell(t *testing.T, i int, place string) {
	trap := l.trap(place)
	l.d.Direct(trap.decide)
	defer l.d.Direct(nil)
	defer trap.end()

	op := l.s.begin(t, l.ps[0].In(t), i)
	l.ops = append(l.ops, op)
	close(trap.begun)
	l.nudgeUntil(t, l.ps[0], trap.sprung, op, "a passing of "+place, false)
	at := slices.IndexFunc(l.ps, func(p *cluster.Process) bool { return p.Pid() == trap.who.Pid })
	if at < 0 {
		t.Fatalf("an unknown process %d passed %s", trap.who.Pid, place)
	}
	victim := l.ps[at].In(t)
	switch l.kind {
	case killed, orphaned:
		victim.AwaitEnd()
		l.ps[at] = l.c.Start("")
		if l.kind == orphaned {
			// Its git waits in its transaction until the successor is about to look.
			l.nudgeUntil(t, l.ps[at], trap.taken, op, "a successor", false)
			close(trap.thaw)
		}
	case frozen, frozenFor:
		defer victim.Signal(syscall.SIGCONT)
		victim.AwaitFrozen()
		if len(l.ps) > 1 {
			l.overtake(t, trap, at, op)
			break
		}
		<-time.After(matrixLease + matrixLease/4)
		close(trap.thaw)
		victim.Signal(syscall.SIGCONT)
	case cutBefore, cutAfter:
		l.nudgeUntil(t, l.ps[0], trap.cut.Done, op, "a commit that can be cut", false)
	}
	await(t, l.s, l.ps[0], op)
	l.s.audit(t, l.c, l.ps[0].In(t), op)
}

// overtake lets the other process take over, the victim go on, and end. It
// changes nothing, neither under the successor's hands nor after it.
func (l *lane) overtake(t *testing.T, trap *trap, at int, op string) {
	t.Helper()
	victim, other := l.ps[at].In(t), l.ps[1-at].In(t)
	if l.kind == frozen {
		l.nudgeUntil(t, other, trap.taken, op, "a successor", true) // it is held there
		close(trap.thaw)
	} else {
		await(t, l.s, other, op)
	}
	before := transitions(t, other, op)
	turns, _ := l.d.Passed(victim.Pid(), "engine.claim")
	victim.Signal(syscall.SIGCONT)
	l.awaitPassing(t, victim.Pid(), "engine.claim", turns)
	victim.Stop() // when it has ended, whatever was late has come
	if after := transitions(t, other, op); !slices.Equal(before, after) {
		t.Errorf("the late one changed %v to %v", before, after)
	}
	close(trap.goOn)
	l.ps[at] = l.c.Start("")
}

// nudgeUntil does what people do until done; orEnd: or until the operation has ended.
func (l *lane) nudgeUntil(t *testing.T, p *cluster.Process, done <-chan struct{}, op, what string, orEnd bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			t.Fatalf("%s never came; the log:\n%s", what, p.Log())
		case <-time.After(20 * time.Millisecond):
		}
		// It may be the one that is caught.
		short, cancel := context.WithTimeout(ctx, time.Second)
		o, err := p.Client.Operation(short, op)
		if err == nil {
			l.s.nudge(short, p, o)
		}
		cancel()
		if err == nil && orEnd && o.State == string(l.s.end()) {
			return
		}
	}
}

// awaitPassing waits until a process has passed a place more than n times.
func (l *lane) awaitPassing(t *testing.T, pid int, place string, n int) {
	t.Helper()
	end := time.After(limit)
	for {
		now, more := l.d.Passed(pid, place)
		if now > n {
			return
		}
		select {
		case <-more:
		case <-end:
			t.Fatalf("process %d does not pass %s", pid, place)
		}
	}
}
