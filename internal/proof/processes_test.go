package proof

import (
	"bufio"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// Three processes on one PostgreSQL under load: one is killed, one frozen
// beyond its lease and continued.
func TestThreeProcessesOneKilledOneFrozen(t *testing.T) {
	t.Parallel()
	l := newLoad(t, cluster.New(t, cluster.Options{Database: "postgres", Lease: matrixLease}), 3, 3, 20)
	victim, sleeper := l.ps[1], l.ps[2]
	l.start()
	l.await(5)
	victim.Kill()
	l.leave(victim)
	l.await(10)
	sleeper.Signal(syscall.SIGSTOP)
	sleeper.AwaitFrozen()
	<-time.After(2 * matrixLease)
	sleeper.Signal(syscall.SIGCONT)
	l.finish()
}

// PostgreSQL is ended in the middle (immediate shutdown, as by a power cut) and
// started again on its data, twice.
func TestPostgresCrashesUnderLoad(t *testing.T) {
	t.Parallel()
	dsn, server := pg.Crashable(t)
	l := newLoad(t, cluster.New(t, cluster.Options{DSN: dsn, Lease: matrixLease}), 2, 2, 15)
	l.start()
	for _, merged := range []int{4, 12} {
		l.await(merged)
		server.Crash()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l.finish()
}

// Each process is replaced by a fresh one, one by one, under load.
func TestRollingRestartUnderLoad(t *testing.T) {
	t.Parallel()
	l := newLoad(t, cluster.New(t, cluster.Options{Database: "postgres"}), 3, 3, 12)
	l.start()
	for i, old := range append([]*cluster.Process(nil), l.ps...) {
		l.await(4 + 8*i)
		l.join(l.c.Start(""))
		l.leave(old)
		old.Stop()
	}
	l.finish()
}

// An older build beside the new one: it knows neither a command nor its state,
// shows what is in it as it is, leaves the command alone and counts it as
// parked; the newer one performs it.
func TestOlderBuildBesideTheNewOne(t *testing.T) {
	t.Parallel()
	const unknown = "engine.claimed." + string(pull.CmdIndex)
	d := cluster.NewDirector(t)
	c := cluster.New(t, cluster.Options{Database: "postgres", Director: d})
	older := c.Start("", "MERGEFLOW_FAULT_WITHOUT=pull/1/INDEXING/IndexRepository")
	older.Repository("app", 6)
	first := older.Merge(older.Pull("app", 1, pullWatchers...))
	older.AwaitState(first, string(pull.Indexing))
	turns, _ := d.Passed(older.Pid(), "engine.claim")
	for end := time.After(limit); ; {
		now, more := d.Passed(older.Pid(), "engine.claim")
		if now >= turns+5 {
			break
		}
		select {
		case <-more:
		case <-end:
			t.Fatal("the older build claims nothing any more")
		}
	}
	if o := older.AwaitState(first, string(pull.Indexing)); o.Explain.Summary == "" || o.Code != 0 || len(o.Actions) != 0 {
		t.Errorf("the state that it does not know is shown as %+v", o)
	}
	page, err := http.Get(older.URL + "/operations/" + first)
	if err != nil {
		t.Fatal(err)
	}
	page.Body.Close()
	if page.StatusCode != http.StatusOK {
		t.Errorf("its page: %s", page.Status)
	}
	if n := metric(t, older, "mergeflow_commands_parked"); n != "1" {
		t.Errorf("%s commands are parked, expected 1", n)
	}

	newer := c.Start("")
	ops := []string{first}
	for i := 2; i <= 6; i++ {
		ops = append(ops, older.Merge(older.Pull("app", i, pullWatchers...)))
	}
	for _, op := range ops {
		newer.AwaitState(op, string(pull.Merged))
	}
	if n, _ := d.Passed(older.Pid(), unknown); n != 0 {
		t.Errorf("the older build performed what it does not know %d times", n)
	}
	if n, _ := d.Passed(newer.Pid(), unknown); n != len(ops) {
		t.Errorf("the newer build performed %d commands that the older one left, expected %d", n, len(ops))
	}
	for end := time.Now().Add(limit); metric(t, older, "mergeflow_commands_parked") != "0"; <-time.After(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("commands are still parked") // the figure may lag, not stay
		}
	}
	for _, op := range ops {
		if n := count(c.MergesInGit("app", "main"), op); n != 1 {
			t.Errorf("git has %d merges of %s", n, op)
		}
		oneDeliveryEach(t, c, op, pullWatchers...)
	}
	older.Stop()
	newer.Stop()
	c.Doctor(t)
}

// metric is the value of a metric without labels.
func metric(t *testing.T, p *cluster.Process, name string) string {
	t.Helper()
	resp, err := http.Get(p.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return value
		}
	}
	t.Fatalf("there is no metric %s", name)
	return ""
}
