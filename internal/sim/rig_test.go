package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// What every sequence is set up with.
const (
	lease     = time.Minute
	attempts  = 3
	instances = 3
	mostPulls = 6
	project   = "team/app"
)

var (
	// Short deadlines and few looks: a sequence is about orders, not about hours.
	settings = saga.Settings{
		Attempts: attempts, Queued: 10 * time.Minute,
		Deadlines: map[saga.State]time.Duration{pull.Validating: 5 * time.Minute},
		Polls:     map[saga.State]saga.Poll{pull.Validating: {Short: 5 * time.Second, ShortTries: 2, Long: time.Minute}},
	}
	start    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	watchers = []string{"ann", "bo"}
)

// instance is a process. An older one lacks a command that newer ones know.
type instance struct {
	name  string
	kinds []store.ClaimKind
}

func (i *instance) knows(typ string) bool {
	return slices.ContainsFunc(i.kinds, func(k store.ClaimKind) bool { return k.Type == typ })
}

// rig is one sequence as it runs.
type rig struct {
	db      *sqlite.DB
	time    time.Time
	turn    int // counts actions
	steps   *pull.Steps
	flow    *engine.Flow
	table   *saga.Flow // the model: what the checks compare with
	service *pull.Service
	world   *world

	instances  []*instance
	running    []*execution
	executions int

	pulls    []string // ids
	sagas    []string // ids, as they were accepted
	states   map[string]*state
	broken   *failure
	writing  bool   // a transaction is open
	bad      string // the saga that a refused write of the next commit is about
	ignored  map[string]bool
	trace    []string
	taken    map[string]int // edges of the table
	recorded map[string]int // faults and actions that had an effect

	// The decisions under test; plants put wrappers around them.
	settle  func(*engine.Flow, store.Locked, string, saga.Outcome, saga.Execution) (store.Writes, error)
	receive func(*engine.Flow, store.Locked, saga.Event) (store.Writes, error)
}

// failure is a broken invariant.
type failure struct {
	invariant string
	detail    string
	trace     string
}

func (f *failure) String() string {
	return f.invariant + " does not hold: " + f.detail + "\n" + f.trace
}

// stop ends a sequence at once.
type stop struct{}

// breaks records the first invariant that doesn't hold. It may be called from
// a coroutine: the sequence ends after the action.
func (r *rig) breaks(invariant, format string, a ...any) {
	if r.broken == nil && !r.ignored[invariant] {
		r.broken = &failure{invariant: invariant, detail: r.names(fmt.Sprintf(format, a...))}
	}
}

// must ends the sequence on an error that no invariant foresees.
func (r *rig) must(err error) {
	if err != nil {
		r.breaks("unexpected", "%v", r.names(err.Error()))
		panic(stop{})
	}
}

// log adds a line to the trace.
func (r *rig) log(format string, a ...any) {
	r.trace = append(r.trace, fmt.Sprintf("%3d  %s  %s", r.turn, r.time.Sub(start).Round(time.Millisecond), r.names(fmt.Sprintf(format, a...))))
}

// names writes short names for ids, which differ from run to run.
func (r *rig) names(text string) string {
	for i, id := range r.sagas {
		text = strings.ReplaceAll(text, id, fmt.Sprintf("s%d", i+1))
	}
	for i, id := range r.pulls {
		text = strings.ReplaceAll(text, id, fmt.Sprintf("p%d", i+1))
	}
	return text
}

func (r *rig) called(id string) string { return r.names(id) }

// outsideOnly: I4, nothing outside is reached while a transaction is open.
func (r *rig) outsideOnly(call string) {
	if r.writing {
		r.breaks("I4", "%q is called inside a transaction", call)
	}
}

// newRig sets a sequence up: a database, a world with pull requests, instances.
func newRig(pulls int) *rig {
	r := &rig{time: start, table: pull.Table, states: map[string]*state{}, taken: map[string]int{}, recorded: map[string]int{}, ignored: map[string]bool{}}
	ctx := context.Background()
	var err error
	r.db, err = sqlite.Open(ctx, sqlite.Options{Path: sqlite.Memory, Clock: func() time.Time { return r.time }})
	r.must(err)
	r.world = &world{r: r, delivered: map[string]map[string]int{}, covered: map[string]bool{}}
	forges := func(string) (forge.Forge, bool) { return fakeForge{r.world}, true }
	r.steps = &pull.Steps{Forges: forges, Notifier: people{r.world}, Index: index{r.world}, Store: receipts{r.world}}
	flow := r.steps.Flow()
	r.flow = &flow
	r.service = &pull.Service{Store: r.db, Forges: forges, Engine: door{r}}
	r.settle = func(f *engine.Flow, l store.Locked, token string, o saga.Outcome, x saga.Execution) (store.Writes, error) {
		return f.Settle(l, token, o, x, settings)
	}
	r.receive = func(f *engine.Flow, l store.Locked, ev saga.Event) (store.Writes, error) {
		return f.Receive(l, ev, settings)
	}

	for range pulls {
		r.propose()
	}
	for i := range instances {
		r.instances = append(r.instances, &instance{name: fmt.Sprintf("i%d", i+1), kinds: kindsOf(&flow, i == instances-1)})
	}
	return r
}

// propose opens a pull request and answers its id. The forge locks every other
// one while it merges.
func (r *rig) propose() string {
	n := len(r.pulls) + 1
	p, err := r.db.CreatePull(context.Background(), store.Pull{Repo: project, IID: int64(n), Source: "topic", Target: "main", Title: "change"}, watchers)
	r.must(err)
	r.pulls = append(r.pulls, p.ID)
	r.world.requests = append(r.world.requests, &mergeRequest{
		ref: forge.Ref{Project: project, IID: p.IID}, pullID: p.ID, pushes: 100 * n, checks: forge.ChecksPassed, locks: n%2 == 1,
	})
	return p.ID
}

// kindsOf lists the commands an instance knows; an older one can't index.
func kindsOf(f *engine.Flow, older bool) []store.ClaimKind {
	var out []store.ClaimKind
	for i := range f.Table.States {
		s := &f.Table.States[i]
		if s.Kind != saga.Running || older && s.Command == pull.CmdIndex {
			continue
		}
		out = append(out, store.ClaimKind{Type: saga.TypeOf(f.Table.Name, f.Table.Version, s.State, s.Command), Deadline: settings.DeadlineOf(s)})
	}
	return out
}

// close lets go of all that a sequence holds.
func (r *rig) close() {
	for len(r.running) > 0 {
		r.running[0].end()
	}
	r.db.Close()
}

// play runs one sequence and answers what broke, or nil. plant, when set, may
// break the core first.
func play(p plan, plant func(*rig)) (f *failure, r *rig) {
	r = newRig(p.pulls)
	defer r.close()
	defer func() {
		switch v := recover().(type) {
		case nil, stop:
		default:
			r.breaks("unexpected", "panic: %v", v)
		}
		if r.broken != nil {
			r.broken.trace = strings.Join(r.trace, "\n")
		}
		f = r.broken
	}()
	if plant != nil {
		plant(r)
	}
	r.check()
	for _, a := range p.actions {
		r.turn++
		r.do(a)
		r.check()
	}
	r.ends()
	return r.broken, r
}

// apply is one transaction on one saga.
func (r *rig) apply(req store.Request, decide func(store.Locked) (store.Writes, error)) (store.Result, error) {
	rs, err := r.applyAll([]store.Request{req}, func(_ int, l store.Locked) (store.Writes, error) { return decide(l) })
	if err != nil {
		return store.Result{}, err
	}
	return rs[0], rs[0].Err
}

func (r *rig) applyAll(reqs []store.Request, decide func(int, store.Locked) (store.Writes, error)) ([]store.Result, error) {
	r.writing = true
	defer func() { r.writing = false }()
	return r.db.Apply(context.Background(), reqs, decide)
}

// door is the engine as the service sees it: the road of an outside event.
type door struct{ r *rig }

func (door) Wake(context.Context)    {}
func (door) Settings() saga.Settings { return settings }

// Send is engine.Send without its goroutines.
func (d door) Send(_ context.Context, id string, ev saga.Event) (saga.Decision, error) {
	r := d.r
	displaced := false
	res, err := r.apply(store.Request{SagaID: id}, func(l store.Locked) (store.Writes, error) {
		displaced = l.Row.Command.Leased(l.Now)
		return r.receive(r.flow, l, ev)
	})
	if err != nil {
		return saga.Decision{}, err
	}
	if displaced || res.Decision.KeepCommand && res.Decision.Row.Pending != nil {
		// The instance that took the event tells its own step at once; others
		// learn it from a heartbeat.
		for _, x := range r.running {
			if x.claimed.Row.ID == id && x.on == r.instances[0] {
				x.cancel()
			}
		}
	}
	return res.Decision, nil
}

// refusedBy says whether an error is a considered no.
func refusedBy(err error) bool {
	var a *saga.Refusal
	var b *pull.Refusal
	var c *forge.Error
	return errors.As(err, &a) || errors.As(err, &b) || errors.As(err, &c)
}
