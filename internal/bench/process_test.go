package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// asProcess makes this binary an instance; its value is the options.
const asProcess = "MERGEFLOW_BENCH_PROCESS"

// options of an instance. Zero values are the engine's defaults, which are
// those of production.
type options struct {
	Driver  string
	DSN     string
	Workers int
	Batch   int
}

// report is what an instance tells when asked. Transitions, times and claims
// count from the last "begin".
type report struct {
	Transitions int
	First, Last time.Time       // begin of the first claim that found something, end of the last commit
	Claims      []time.Duration // those that found something
	CPU         time.Duration   // of the process, since it began
	Heap        uint64          // bytes in live objects and free space among them, after a collection
	RSS         uint64          // bytes
	Goroutines  int
	Files       int // open descriptors
}

// counters is the engine's observer and what its claims go through.
type counters struct {
	store.Store
	mu sync.Mutex
	r  report
}

func (c *counters) Claim(ctx context.Context, in store.Claim) ([]store.Claimed, error) {
	began := time.Now()
	got, err := c.Store.Claim(ctx, in)
	if len(got) > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.r.First.IsZero() {
			c.r.First = began
		}
		c.r.Claims = append(c.r.Claims, time.Since(began))
	}
	return got, err
}

func (c *counters) Transition(_, _, _, _ string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.r.Transitions++
	c.r.Last = time.Now()
}

func (c *counters) Step(_, _, _ string, _ time.Duration) {}
func (c *counters) Commit(int, time.Duration)            {}
func (c *counters) Claimed(int)                          {}
func (c *counters) LeaseLost()                           {}
func (c *counters) Late()                                {}
func (c *counters) Panic(string)                         {}

// instance is the life of such a process: it answers each line of in with one
// of out, and ends with in.
func instance(o options, in io.Reader, out io.Writer) error {
	ctx := context.Background()
	lines, answer := bufio.NewScanner(in), json.NewEncoder(out)
	before := look()
	db, err := o.open(ctx)
	if err != nil {
		return err
	}
	c := &counters{Store: db}
	e, err := engine.New(engine.Options{Store: c, Flows: flows(), Observer: c, Workers: o.Workers, Batch: o.Batch})
	if err != nil {
		return err
	}
	e.Start()
	for lines.Scan() {
		c.mu.Lock()
		r := c.r
		c.mu.Unlock()
		switch lines.Text() {
		case "begin":
			c.mu.Lock()
			c.r = report{}
			c.mu.Unlock()
		case "wake":
			e.Wake(ctx)
		case "count":
			r.Claims = nil
		case "cpu":
			r = report{CPU: spent()}
		case "report":
			now := look()
			r.CPU, r.Heap, r.RSS, r.Goroutines, r.Files = now.CPU, now.Heap, now.RSS, now.Goroutines, now.Files
		}
		if err := answer.Encode(r); err != nil {
			return err
		}
	}
	if err := e.Stop(ctx); err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	after := look()
	for end := time.Now().Add(5 * time.Second); after.Goroutines > before.Goroutines && time.Now().Before(end); after = look() {
		runtime.Gosched() // what was told to end ends soon
	}
	after.Goroutines -= before.Goroutines
	after.Files -= before.Files
	return answer.Encode(after)
}

func (o options) open(ctx context.Context) (store.Store, error) {
	if o.Driver == onSQLite {
		return sqlite.Open(ctx, sqlite.Options{Path: o.DSN})
	}
	return postgres.Open(ctx, postgres.Options{DSN: o.DSN, Notify: true})
}

// look reads what the process costs now.
func look() report {
	r := report{CPU: spent(), Goroutines: runtime.NumGoroutine()}
	runtime.GC()
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}}
	metrics.Read(sample)
	r.Heap = sample[0].Value.Uint64() + sample[1].Value.Uint64()
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		pages, _ := strconv.ParseUint(strings.Fields(string(b))[1], 10, 64)
		r.RSS = pages * uint64(os.Getpagesize())
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		r.Files = len(fds)
	}
	return r
}

// spent is the processor time that this process has had.
func spent() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // can't fail for oneself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// process is an instance as its parent sees it.
type process struct {
	tb  testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// start starts an instance. It ends with the benchmark at the latest.
func start(tb testing.TB, d *database, o options) *process {
	tb.Helper()
	o.Driver = d.driver
	if o.DSN == "" {
		o.DSN = d.dsn
	}
	spec, err := json.Marshal(o)
	if err != nil {
		tb.Fatal(err)
	}
	p := &process{tb: tb, cmd: exec.CommandContext(tb.Context(), os.Args[0])}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), asProcess+"="+string(spec)), os.Stderr
	p.in, err = p.cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p.out = json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p.ask("report") // it is up
	return p
}

func (p *process) ask(what string) (r report) {
	p.tb.Helper()
	if _, err := fmt.Fprintln(p.in, what); err != nil {
		p.tb.Fatalf("%s: %v", what, err)
	}
	if err := p.out.Decode(&r); err != nil {
		p.tb.Fatalf("%s: %v", what, err)
	}
	return r
}

// stop ends the instance in order. Goroutines and Files of its answer are what
// it leaves behind.
func (p *process) stop() (r report) {
	p.tb.Helper()
	if err := p.in.Close(); err != nil {
		p.tb.Fatal(err)
	}
	if err := p.out.Decode(&r); err != nil {
		p.tb.Fatalf("stop: %v", err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.tb.Fatalf("stop: %v", err)
	}
	return r
}

// measured is one round of work.
type measured struct {
	rate   float64 // transitions per second, from the first claim to the last commit
	claims []time.Duration
	cpu    time.Duration // a transition, of instances and database together
}

// roundLimit bounds a round; it takes a second or two.
const roundLimit = 5 * time.Minute

// work feeds sagas that are due and measures until they are finished.
func work(d *database, s shape, n int, ps ...*process) measured {
	d.tb.Helper()
	for _, p := range ps {
		p.ask("begin")
	}
	d.feed(s, n)
	cpu := func() (sum time.Duration) {
		for _, p := range ps {
			sum += p.ask("cpu").CPU
		}
		return sum + d.serverTime()
	}
	before := cpu()
	for _, p := range ps {
		p.ask("wake")
	}
	m := await(d.tb, n*steps, ps...)
	m.cpu = (cpu() - before) / time.Duration(n*steps)
	return m
}

// await measures until the processes have made so many transitions since they began.
func await(tb testing.TB, transitions int, ps ...*process) measured {
	tb.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(roundLimit); ; {
		sum := 0
		for _, p := range ps {
			sum += p.ask("count").Transitions
		}
		if sum >= transitions {
			break
		}
		if time.Now().After(end) {
			tb.Fatalf("%d of %d transitions within %s", sum, transitions, roundLimit)
		}
		<-tick.C
	}
	var m measured
	var first, last time.Time
	for _, p := range ps {
		r := p.ask("report")
		m.claims = append(m.claims, r.Claims...)
		if first.IsZero() || !r.First.IsZero() && r.First.Before(first) {
			first = r.First
		}
		if r.Last.After(last) {
			last = r.Last
		}
	}
	m.rate = float64(transitions) / last.Sub(first).Seconds()
	return m
}
