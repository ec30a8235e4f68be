package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
)

// fault is how a call to the world ends.
type fault int

const (
	answered  fault = iota
	lost            // surely not applied, and the caller is told so
	unknown         // not applied, but the caller can't know
	swallowed       // applied, but the answer is lost
	flying          // a merge that is still under way when the caller gives up
	refused         // refused for good
	garbage         // refused in words that no database holds
	panics          // the driver has a fault of its own
)

func (f fault) String() string {
	return [...]string{"answered", "failed, not applied", "no answer, not applied", "applied, answer lost", "still under way when the caller gave up",
		"refused", "refused in words with NUL", "panicked"}[f]
}

// faults is what call actions choose from when a call goes wrong.
var faults = []fault{lost, lost, unknown, swallowed, flying, refused, garbage, panics}

// mergeRequest is one of the fake forge.
type mergeRequest struct {
	ref      forge.Ref
	pullID   string
	pushes   int // the head is a function of it
	closed   bool
	checks   forge.CheckState
	locks    bool // a merge under way shows as locked
	flying   []flight
	merges   int
	commit   string
	mergedAt int        // the action
	mergedBy *execution // nil: somebody on the forge
	raced    bool       // closed here while it was merged there
}

func (m *mergeRequest) head() string { return fmt.Sprintf("%06x%034x", 0xabc000+m.pushes, 0) }

// flight is a merge under way that nobody waits for any more.
type flight struct {
	head string
	by   *execution
}

// merge lands a head. It is all or nothing, like a real forge's.
func (w *world) merge(m *mergeRequest, head string, by *execution) error {
	switch {
	case m.closed || w.closedHere(m):
		return &forge.Error{Op: "merge", Kind: forge.KindClosed, Detail: "it is closed"}
	case head != m.head():
		return &forge.Error{Op: "merge", Kind: forge.KindHeadMoved, Detail: "the head is another"}
	}
	m.merges++
	m.commit = fmt.Sprintf("%06x%034x", 0xfed000+int(m.ref.IID)*16+m.merges, 0)
	m.mergedAt, m.mergedBy = w.r.turn, by
	return nil
}

// closedHere: the local forge's truth about "closed" is in the database.
func (w *world) closedHere(m *mergeRequest) bool {
	p, err := w.r.db.Pull(context.Background(), m.pullID)
	return err == nil && p.ForgeState == string(forge.Closed)
}

// world is everything outside: a forge, people who watch, a search index.
type world struct {
	r         *rig
	requests  []*mergeRequest
	delivered map[string]map[string]int // saga and recipient → delivery id → how often
	covered   map[string]bool           // merge commits
	direct    fault                     // of calls that no step makes
	down      fault                     // of calls that nothing else befalls: an outage
}

func (w *world) find(ref forge.Ref) (*mergeRequest, error) {
	for _, m := range w.requests {
		if m.ref == ref {
			return m, nil
		}
	}
	return nil, &forge.Error{Op: "look", Kind: forge.KindNotFound, Detail: "no such merge request"}
}

// reach is one call to the world: a step stops before it, and the next action
// on the execution says how it ends.
func reach[T any](ctx context.Context, w *world, name string, failure func(fault) error, do func() (T, error)) (T, error) {
	var none T
	w.r.outsideOnly(name)
	x := executionOf(ctx)
	if x == nil {
		if w.direct != answered {
			return none, failure(w.direct)
		}
		return do()
	}
	if x.dead || ctx.Err() != nil {
		return none, failure(lost)
	}
	x.effect = func() { _, _ = do() } // a crash may leave the effect behind
	if !x.yield(name) {
		return none, failure(lost)
	}
	f := x.fault
	if f == answered {
		f = w.down
	}
	if f == flying && name != "merge" {
		f = unknown
	}
	if ctx.Err() != nil && f != swallowed && f != flying {
		f = unknown // who is cut off learns nothing
	}
	w.r.recorded[name+": "+f.String()]++
	switch f {
	case answered:
		return do()
	case swallowed:
		_, _ = do()
	case flying:
		w.fly(x)
	case panics:
		panic("the driver of " + name + " has a fault")
	}
	return none, failure(f)
}

// fly leaves the merge that an execution asked for under way.
func (w *world) fly(x *execution) {
	for _, m := range w.requests {
		if m.pullID == x.claimed.Row.AggregateID {
			m.flying = append(m.flying, flight{x.asked, x})
		}
	}
}

// land ends merges that are under way: the first one wins if it still can.
func (w *world) land(m *mergeRequest) string {
	if len(m.flying) == 0 {
		return ""
	}
	f := m.flying[0]
	m.flying = m.flying[1:]
	if m.merges > 0 {
		return "the merge under way found it merged"
	}
	if err := w.merge(m, f.head, f.by); err != nil {
		return "the merge under way ended: " + err.Error()
	}
	return "the merge under way landed"
}

// fakeForge implements forge.Forge.
type fakeForge struct{ *world }

func (f fakeForge) Capabilities() forge.Capabilities {
	return forge.Capabilities{MergeLocks: true, ClosesWithSaga: true}
}

func forgeFailed(op string) func(fault) error {
	return func(f fault) error {
		switch f {
		case lost:
			return &forge.Error{Op: op, Kind: forge.KindTransient, Detail: "the forge is down"}
		case refused:
			return &forge.Error{Op: op, Kind: forge.KindInvalid, Detail: "the forge says no"}
		case garbage:
			return &forge.Error{Op: op, Kind: forge.KindInvalid, Detail: "no\x00 \xff"}
		}
		return &forge.Error{Op: op, Kind: forge.KindUnclear, Detail: "connection reset"}
	}
}

func (f fakeForge) MergeRequest(ctx context.Context, ref forge.Ref) (forge.MergeRequest, error) {
	return reach(ctx, f.world, "look at the forge", forgeFailed("look"), func() (forge.MergeRequest, error) {
		m, err := f.find(ref)
		if err != nil {
			return forge.MergeRequest{}, err
		}
		if x := executionOf(ctx); x != nil {
			x.looked, x.lookedAt = true, f.r.turn
		}
		mr := forge.MergeRequest{Ref: ref, ID: m.pullID, State: forge.Open, HeadSHA: m.head(), MergeCommit: m.commit, Source: "topic", Target: "main"}
		switch {
		case m.merges > 0:
			mr.State = forge.Merged
		case m.closed || f.closedHere(m):
			mr.State = forge.Closed
		case m.locks && len(m.flying) > 0:
			mr.State = forge.Locked
		}
		return mr, nil
	})
}

func (f fakeForge) Mergeability(ctx context.Context, _ forge.Ref, _ string) (forge.Mergeability, error) {
	return reach(ctx, f.world, "try the merge", forgeFailed("mergeability"), func() (forge.Mergeability, error) { return forge.Mergeability{}, nil })
}

func (f fakeForge) Checks(ctx context.Context, project, sha string) (forge.Checks, error) {
	return reach(ctx, f.world, "ask for checks", forgeFailed("checks"), func() (forge.Checks, error) {
		for _, m := range f.requests {
			if m.ref.Project == project && m.head() == sha {
				state := map[forge.CheckState]string{forge.ChecksPassed: "success", forge.ChecksPending: "pending", forge.ChecksFailed: "failure"}[m.checks]
				return forge.Checks{State: m.checks, Checks: []forge.Check{{Context: "ci", Required: true, State: state}}}, nil
			}
		}
		return forge.Checks{State: forge.ChecksPending}, nil
	})
}

// Merge is guarded like a real forge's merge only for callers that looked: what
// protects the others is what the flow promises to do, and that is on trial.
func (f fakeForge) Merge(ctx context.Context, in forge.MergeInput) (string, error) {
	x := executionOf(ctx)
	x.asked = in.HeadSHA
	return reach(ctx, f.world, "merge", forgeFailed("merge"), func() (string, error) {
		m, err := f.find(in.Ref)
		if err != nil {
			return "", err
		}
		if !x.looked {
			f.r.breaks("I9", "%s merges without a look in the same execution", x.name)
		}
		if m.merges > 0 && x.looked {
			return m.commit, nil
		}
		if err := f.merge(m, in.HeadSHA, x); err != nil {
			return "", err
		}
		return m.commit, nil
	})
}

// people implement notify.Notifier: one webhook for each watcher.
type people struct{ *world }

func (people) Recipients(watchers []string) []notify.Recipient {
	var out []notify.Recipient
	for _, w := range watchers {
		out = append(out, notify.Recipient{Key: "webhook:" + w, Watcher: w})
	}
	return out
}

func (p people) Send(ctx context.Context, to notify.Recipient, m notify.Message) error {
	_, err := reach(ctx, p.world, "tell "+to.Watcher, func(f fault) error {
		switch f {
		case lost:
			return &notify.Error{Recipient: to.Key, Status: 503, Transient: true}
		case refused, garbage:
			return &notify.Error{Recipient: to.Key, Status: 410, Detail: "gone\x00"}
		}
		return errors.New("connection reset")
	}, func() (struct{}, error) {
		key := m.OperationID + " " + to.Watcher
		if p.delivered[key] == nil {
			p.delivered[key] = map[string]int{}
		}
		p.delivered[key][m.DeliveryID]++
		return struct{}{}, nil
	})
	return err
}

// index implements search.Index.
type index struct{ *world }

func indexFailed(f fault) error {
	switch f {
	case lost:
		return &search.Error{Op: "index", Status: 503, Transient: true}
	case refused, garbage:
		return &search.Error{Op: "index", Status: 422, Detail: "no\x00"}
	}
	return errors.New("connection reset")
}

func (i index) Covers(ctx context.Context, t search.Target) (bool, error) {
	return reach(ctx, i.world, "ask the index", indexFailed, func() (bool, error) { return i.covered[t.Commit], nil })
}

func (i index) Index(ctx context.Context, t search.Target) error {
	_, err := reach(ctx, i.world, "index", indexFailed, func() (struct{}, error) {
		i.covered[t.Commit] = true
		return struct{}{}, nil
	})
	return err
}

func (index) Search(context.Context, search.Query) ([]search.Hit, error) { return nil, nil }

// receipts are the store's, reached like the rest: the database can fail a step too.
type receipts struct{ *world }

func databaseFailed(fault) error { return errors.New("the database does not answer") }

func (r receipts) Watchers(ctx context.Context, pullID string) ([]string, error) {
	return reach(ctx, r.world, "read the watchers", databaseFailed, func() ([]string, error) { return r.r.db.Watchers(context.Background(), pullID) })
}

func (r receipts) Receipts(ctx context.Context, sagaID string) (map[string]store.Receipt, error) {
	return reach(ctx, r.world, "read the receipts", databaseFailed, func() (map[string]store.Receipt, error) {
		return r.r.db.Receipts(context.Background(), sagaID)
	})
}

func (r receipts) AddReceipt(ctx context.Context, sagaID string, e store.Receipt) error {
	_, err := reach(ctx, r.world, "write a receipt for "+strings.TrimPrefix(e.Recipient, "webhook:"), databaseFailed, func() (struct{}, error) {
		return struct{}{}, r.r.db.AddReceipt(context.Background(), sagaID, e)
	})
	return err
}
