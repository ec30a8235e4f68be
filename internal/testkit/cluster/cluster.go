// Package cluster runs mergeflow as users do, in processes of its own over real
// databases and real repositories, for tests that kill, freeze and restart
// them. The binary is built with the tag `fault`, so that a process can be told
// where to die (package fault).
package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/testkit/indexer"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
	"github.com/mergeflow/mergeflow/internal/testkit/receiver"
)

// Databases are the two that mergeflow runs on.
var Databases = []string{"sqlite", "postgres"}

// patience bounds every wait of this package; it is only ever used up by a fault.
const patience = 60 * time.Second

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mergeflow-bin")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "mergeflow")
	cmd := exec.Command("go", "build", "-tags", "fault", "-o", path, "github.com/mergeflow/mergeflow/cmd/mergeflow")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// RemoveBinary removes what Binary built; call it at the end of TestMain.
func RemoveBinary() {
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
}

// Binary is the path of a mergeflow built for tests, once per test process.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs the binary with nothing but this environment and no arguments.
func run(t testing.TB, env ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.Command(Binary(t))
	cmd.Env = env
	return cmd.CombinedOutput()
}

// Cluster is a database, a data folder, an indexer and a notification receiver,
// and the processes over them.
type Cluster struct {
	t        testing.TB
	Dir      string
	Config   string
	Indexer  *indexer.Indexer
	Receiver *receiver.Receiver
	director *Director
	faultLog string
}

// Options changes a cluster from its defaults.
type Options struct {
	Database string        // "sqlite" or "postgres"
	DSN      string        // instead of a database of its own
	Lease    time.Duration // 0: 2 s
	Director *Director     // is told of each fault point; nil: nobody is
	IndexURL string        // instead of the cluster's own indexer (a proxy in front of it)
	Extra    string        // more YAML, at the top level
}

// New prepares a cluster; nothing runs yet but the indexer and the receiver.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t, Dir: t.TempDir(), director: o.Director}
	var err error
	if c.Indexer, err = indexer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Indexer.Close() })
	if c.Receiver, err = receiver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Receiver.Close() })
	database := "sqlite:" + filepath.Join(c.Dir, "mergeflow.db")
	switch {
	case o.DSN != "":
		database = o.DSN
	case o.Database == "postgres":
		database = pg.Database(t)
	}
	if o.Lease == 0 {
		o.Lease = 2 * time.Second
	}
	if o.IndexURL == "" {
		o.IndexURL = c.Indexer.URL()
	}
	c.Config, c.faultLog = filepath.Join(c.Dir, "mergeflow.yaml"), filepath.Join(c.Dir, "faults.log")
	text := fmt.Sprintf(`listen: 127.0.0.1:0
data_dir: %q
database: %q
search: {kind: http, url: %q}
notify: {webhook: {url: %q}}
engine: {lease: %s, poll: 100ms, attempts: 5, backoff: 20ms, backoff_max: 200ms}
%s
`, c.Dir, database, o.IndexURL, c.Receiver.URL(), o.Lease, o.Extra)
	if err := os.WriteFile(c.Config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// Doctor asks the product's own audit (`mergeflow doctor --data`) for what is
// wrong with the cluster's data; everything it finds fails the test.
func (c *Cluster) Doctor(t testing.TB) {
	t.Helper()
	cmd := exec.Command(Binary(t), "doctor", "--data", "--config", c.Config)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("mergeflow doctor --data: %v\n%s", err, out)
	}
}

// Process is one running mergeflow.
type Process struct {
	t      testing.TB
	cmd    *exec.Cmd
	URL    string
	Client *httpapi.Client
	ended  chan struct{}
	log    *tail
}

// Start starts a process and waits until it serves. faults is MERGEFLOW_FAULT's
// value; empty for none. env is more of its environment. The process is killed
// with the test.
func (c *Cluster) Start(faults string, env ...string) *Process {
	c.t.Helper()
	p := &Process{t: c.t, ended: make(chan struct{}), log: &tail{}}
	p.cmd = exec.Command(Binary(c.t), "serve", "--config", c.Config)
	p.cmd.Env = append(os.Environ(), "MERGEFLOW_FAULT="+faults, "MERGEFLOW_FAULT_LOG="+c.faultLog)
	if c.director != nil {
		p.cmd.Env = append(p.cmd.Env, "MERGEFLOW_FAULT_DIRECTOR="+c.director.listener.Addr().String())
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() {
		// Pdeathsig follows the thread that starts the process, so this one stays.
		runtime.LockOSThread()
		started <- p.cmd.Start()
		<-p.ended
	}()
	if err := <-started; err != nil {
		c.t.Fatal(err)
	}
	first := make(chan string, 1)
	go func() {
		r := bufio.NewReader(out)
		line, _ := r.ReadString('\n')
		first <- line
		_, _ = io.Copy(io.Discard, r)
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	c.t.Cleanup(func() {
		p.Signal(syscall.SIGKILL)
		p.Signal(syscall.SIGCONT)
		<-p.ended
	})
	select {
	case line := <-first:
		url, ok := strings.CutPrefix(strings.TrimSpace(line), "serving on ")
		if !ok {
			c.t.Fatalf("the first line is %q; its log:\n%s", line, p.log)
		}
		p.URL = url
	case <-time.After(patience):
		c.t.Fatalf("no process after %s; its log:\n%s", patience, p.log)
	}
	p.Client = &httpapi.Client{BaseURL: p.URL}
	return p
}

// In is the same process for a part of the test it was started for, which is
// then the one that fails.
func (p *Process) In(t testing.TB) *Process {
	part := *p
	part.t = t
	return &part
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// AwaitFrozen waits until the process is stopped by a signal.
func (p *Process) AwaitFrozen() {
	p.t.Helper()
	for end := time.Now().Add(patience); ; {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		// The state comes after the name, which is in parentheses.
		if _, rest, ok := strings.Cut(string(b), ") "); err == nil && ok && strings.HasPrefix(rest, "T") {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("the process is not stopped after %s; its log:\n%s", patience, p.log)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// Signal sends a signal to the process alone.
func (p *Process) Signal(s syscall.Signal) {
	if p.cmd.Process != nil {
		_ = p.cmd.Process.Signal(s)
	}
}

// Stop ends the process gracefully and waits for it.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	p.AwaitEnd()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("a graceful stop ended with %d; its log:\n%s", code, p.log)
	}
}

// Kill ends the process with SIGKILL and waits for it.
func (p *Process) Kill() {
	p.t.Helper()
	p.Signal(syscall.SIGKILL)
	p.AwaitEnd()
}

// AwaitEnd waits until the process has ended, by whatever hand.
func (p *Process) AwaitEnd() {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("the process did not end within %s; its log:\n%s", patience, p.log)
	}
}

// PeakMemory is the most memory that the process ever held, in bytes; 0 where
// the system doesn't say.
func (p *Process) PeakMemory() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}

// Log is the end of what the process logged.
func (p *Process) Log() string { return p.log.String() }

// Faults are the fault points that processes of this cluster acted at, in order.
func (c *Cluster) Faults() []string {
	b, err := os.ReadFile(c.faultLog)
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}

// Await polls an operation until cond holds.
func (p *Process) Await(id, what string, cond func(httpapi.Operation) bool) httpapi.Operation {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var last httpapi.Operation
	var err error
	for {
		if last, err = p.Client.Operation(ctx, id); err == nil && cond(last) {
			return last
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			p.t.Fatalf("%s: not within %s: %+v, %v; the log:\n%s", what, patience, last, err, p.log)
		}
	}
}

// AwaitState waits until an operation is in a state.
func (p *Process) AwaitState(id, state string) httpapi.Operation {
	p.t.Helper()
	return p.Await(id, state, func(o httpapi.Operation) bool { return o.State == state })
}

// tail keeps the end of a log.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - 1<<16; over > 0 {
		t.buf = append([]byte(nil), t.buf[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
