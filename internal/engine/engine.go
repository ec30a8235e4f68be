// Package engine carries sagas forward: it claims due commands, performs their
// steps with no transaction open, and commits each outcome with the state,
// status, history and next command in one transaction.
//
//	claim ─► perform ─► settle ─► decide + commit (many sagas a transaction)
//	  ▲                                 │
//	  └────────── next command ◄────────┘ kept by this worker, or due for anyone
//
// Nothing here knows a flow by name: a flow is a table (saga.Flow), its steps,
// and the projection on its outward row. A step's result, a callback, an
// operator's click and a deadline all end in the same place, commit.go.
//
// An instance may die at any line. What it held is claimed again when its lease
// ends, and the step looks before it acts.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Step performs a command.
type Step struct {
	// Perform looks at the remote state, acts if that is still needed, and
	// looks again when an answer was unclear. A waiting state's self-check may
	// have none; then Look is run.
	Perform func(ctx context.Context, run Run) saga.Outcome
	// Look only reads: it runs for a waiting state's self-check, before a
	// deadline is applied, and while a person's close waits. It answers a move
	// that the remote state proves, NotDone where the effect is surely absent,
	// NotYet where it is under way.
	Look func(ctx context.Context, run Run) saga.Outcome
	// Cap is how many of this command run at once in this instance; 0: all workers.
	Cap int
}

// Run is what a step is given: the saga's row as it was claimed.
type Run struct {
	Row saga.Row
	// Look is true when the engine asks for a look only.
	Look bool
}

// Flow is a table with its steps.
type Flow struct {
	Table *saga.Flow
	Steps map[saga.Command]Step
	// Outward projects a decision on the row that users see. It is pure.
	Outward func(before saga.Row, d saga.Decision) store.Outward
}

// Observer is told what happened, after it was committed. Its methods are
// quick, never block and are safe for concurrent use.
type Observer interface {
	Transition(flow, from, to, event string)
	Step(flow, command, outcome string, took time.Duration)
	Commit(batch int, took time.Duration)
	Claimed(n int)
	LeaseLost()
	Late()
	Panic(command string)
}

// Options are what an engine is made of. Store and Flows are required.
type Options struct {
	Store    store.Sagas
	Flows    []Flow
	Settings func() saga.Settings // read at each use; nil: the tables' defaults
	Observer Observer             // nil: nobody is told
	Log      *slog.Logger         // nil: discarded
	Workers  int                  // steps at once; 0: 16
	Lease    time.Duration        // 0: 60 s
	Poll     time.Duration        // the floor under wake-ups; 0: 1 s
	Batch    int                  // sagas a transaction at most; 0: 200
	Grace    time.Duration        // how long a cancelled step may take to return; 0: 5 s
}

// Engine runs in one process beside equals in others; the database is their
// only meeting point. Its methods are safe for concurrent use.
type Engine struct {
	o     Options
	flows map[flowKey]*Flow
	kinds []kind
	caps  map[string]*capacity // by type, nil where only the workers limit it

	passedBy     int       // the claim loop alone: rounds in a row that took nothing of what is due
	lookedBeside time.Time // the claim loop alone: when it last asked for what is overdue with all workers busy

	wake       chan struct{}
	commits    chan *commit
	commitDone chan struct{} // closed when no commit is answered any more
	hub        *hub

	workers *capacity
	beside  *capacity // looks at what is overdue, while all workers are busy

	mu      sync.Mutex
	running map[string]*execution // by lease token
	beat    time.Time             // last round of the claim loop that reached the database
	outage  time.Time             // when the database stopped answering; zero while it answers
	pause   time.Time             // deadlines are not applied before this
	lastTry time.Time             // no commit is tried again after this; zero before Stop cuts off
	started bool

	stopClaims context.CancelFunc
	claimDone  chan struct{}
	stopRest   context.CancelFunc
	rest       sync.WaitGroup // heartbeat, committer, listener
	steps      sync.WaitGroup // executions
	late       sync.WaitGroup // abandoned executions that have not come back
	closing    chan struct{}
	closeOnce  sync.Once
}

type flowKey struct {
	name    string
	version int
}

// kind is one type of command that this instance knows.
type kind struct {
	typ  string
	spec *saga.Spec
	look bool
	cap  int
}

// New checks the flows and makes an engine that isn't started yet. It does no I/O.
func New(o Options) (*Engine, error) {
	if o.Store == nil || len(o.Flows) == 0 {
		return nil, errors.New("engine: a store and at least one flow are required")
	}
	if o.Settings == nil {
		o.Settings = func() saga.Settings { return saga.Settings{} }
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Workers = positive(o.Workers, 16)
	o.Batch = positive(o.Batch, 200)
	o.Lease = positive(o.Lease, time.Minute)
	o.Poll = positive(o.Poll, time.Second)
	o.Grace = positive(o.Grace, 5*time.Second)
	e := &Engine{
		o: o, flows: map[flowKey]*Flow{}, caps: map[string]*capacity{},
		wake: make(chan struct{}, 1), commits: make(chan *commit, 4*o.Batch), commitDone: make(chan struct{}), hub: newHub(),
		workers: newCapacity(o.Workers), beside: newCapacity(max(1, o.Workers/4)), running: map[string]*execution{},
		claimDone: make(chan struct{}), closing: make(chan struct{}),
	}
	for i := range o.Flows {
		f := &o.Flows[i]
		if err := saga.Check(f.Table); err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
		e.flows[flowKey{f.Table.Name, f.Table.Version}] = f
		for j := range f.Table.States {
			spec := &f.Table.States[j]
			if spec.Kind != saga.Running && spec.Kind != saga.Waiting {
				continue
			}
			step, ok := f.Steps[spec.Command]
			if !ok && spec.Command != saga.DeadlineOnly {
				continue // a step that isn't built yet: its rows show as parked
			}
			typ := saga.TypeOf(f.Table.Name, f.Table.Version, spec.State, spec.Command)
			if fault.Without(typ) {
				continue
			}
			k := kind{
				typ: typ, spec: spec, look: spec.Kind == saga.Waiting, cap: o.Workers,
			}
			if step.Cap > 0 && step.Cap < o.Workers {
				k.cap = step.Cap
				e.caps[k.typ] = newCapacity(step.Cap)
			}
			e.kinds = append(e.kinds, k)
		}
	}
	return e, nil
}

func positive[T int | time.Duration](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}

// Start begins to claim. It returns at once.
func (e *Engine) Start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started {
		return
	}
	e.started, e.beat = true, time.Now()
	claims, stopClaims := context.WithCancel(context.Background())
	rest, stopRest := context.WithCancel(context.Background())
	e.stopClaims, e.stopRest = stopClaims, stopRest
	go func() {
		defer close(e.claimDone)
		e.claimLoop(claims, rest)
	}()
	for _, f := range []func(context.Context){e.commitLoop, e.beatLoop, e.expireLoop, e.listenLoop} {
		e.rest.Go(func() { f(rest) })
	}
}

// Stop ends claiming, lets running steps finish while ctx lasts, then cancels
// them, commits what they answer (a cut-off step goes back as "outcome
// unknown"), and returns when nothing of the engine runs any more but steps
// that ignore their context.
//
// After ctx it takes two Graces at most, whatever the store does: a commit is
// tried again for one of them, its call is cancelled half a Grace later, and a
// store that doesn't come back from that is left behind. What it may still write
// is found by the next claim, as after a crash.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	if !e.started {
		e.mu.Unlock()
		return nil
	}
	e.mu.Unlock()
	e.closeOnce.Do(func() { close(e.closing) })
	e.stopClaims()
	done := make(chan struct{})
	go func() {
		<-e.claimDone // before: it may still begin steps
		e.steps.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = ctx.Err()
		e.cutOff()
		within(done, e.o.Grace+e.o.Grace/2)
	}
	e.stopRest()
	ended := make(chan struct{})
	go func() {
		<-done
		e.rest.Wait()
		close(ended)
	}()
	if !within(ended, e.o.Grace/2) {
		e.o.Log.Error("the database or a step did not let go and is left behind")
		err = errors.Join(err, errLeftBehind)
	}
	return err
}

var errLeftBehind = errors.New("a call of the database or of a step did not end and is left behind")

// cutOff cancels all steps, those that begin from now on included, and lets
// their outcomes be tried for a Grace.
func (e *Engine) cutOff() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lastTry.IsZero() {
		e.lastTry = time.Now().Add(e.o.Grace)
	}
	for _, x := range e.running {
		x.cancel(errStopping)
	}
}

// within says whether c was closed in that time.
func within(c <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

// Stopping is closed when Stop begins: readiness goes red before work ends.
func (e *Engine) Stopping() <-chan struct{} { return e.closing }

func (e *Engine) stopping() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

// Wake makes this instance look for due commands now, and tells the others.
func (e *Engine) Wake(ctx context.Context) {
	e.wakeHere()
	if err := e.o.Store.Wake(ctx); err != nil {
		e.o.Log.Debug("wake-up of other instances failed; their poll will find it", "error", err)
	}
}

func (e *Engine) wakeHere() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Settings are the ones in force now.
func (e *Engine) Settings() saga.Settings { return e.o.Settings() }

// Kinds lists the types of command that this instance performs.
func (e *Engine) Kinds() []string {
	out := make([]string, len(e.kinds))
	for i, k := range e.kinds {
		out[i] = k.typ
	}
	return out
}

// Flow finds a registered flow; ok is false for one this instance doesn't know.
func (e *Engine) Flow(name string, version int) (*Flow, bool) {
	f, ok := e.flows[flowKey{name, version}]
	return f, ok
}

// Healthy is nil while the claim loop turns: it has reached the database within
// a lease. It says nothing about the steps.
func (e *Engine) Healthy() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.started {
		return errors.New("the worker loop is not started")
	}
	if e.stopping() {
		return errStopping
	}
	if since := time.Since(e.beat); since > max(e.o.Lease, 5*e.o.Poll) {
		return fmt.Errorf("the worker loop has not reached the database for %s", since.Round(time.Second))
	}
	return nil
}

// Busy is how many steps run here now.
func (e *Engine) Busy() int { return e.workers.taken() }

// turned notes a round of the claim loop.
func (e *Engine) turned() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.beat = time.Now()
}

// reached notes that the database answered, and says how long deadlines still
// pause: an outage longer than a lease pauses them for one lease, since nobody
// could do anything about them. They are looked at all the same (saga.Settle
// says what becomes of a command that is overdue then).
func (e *Engine) reached() (pause time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if !e.outage.IsZero() {
		if out := now.Sub(e.outage); out > e.o.Lease {
			e.pause = now.Add(e.o.Lease)
			e.o.Log.Warn("the database is back; deadlines pause for one lease", "outage", out.Round(time.Second))
		}
		e.outage = time.Time{}
	}
	return e.pause.Sub(now)
}

func (e *Engine) missed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.outage.IsZero() {
		e.outage = time.Now()
	}
}

func jitter() float64 { return rand.Float64() }

type nobody struct{}

func (nobody) Transition(_, _, _, _ string)         {}
func (nobody) Step(_, _, _ string, _ time.Duration) {}
func (nobody) Commit(int, time.Duration)            {}
func (nobody) Claimed(int)                          {}
func (nobody) LeaseLost()                           {}
func (nobody) Late()                                {}
func (nobody) Panic(string)                         {}
