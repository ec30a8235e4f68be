package postgres

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// writes gathers what the decisions of one transaction write, column by column,
// so that each table is written by one statement whatever the number of sagas.
// No saga is in it twice.
type writes struct {
	now      time.Time
	sagas    sagaSet
	moves    moveSet
	notes    noteSet
	pulls    []pullRow
	bindings bindingSet
	refs     refSet
	applied  []pgtype.UUID // early callbacks that were applied now
	fresh    commandSet    // inserted
	changed  commandSet    // updated in place
	gone     []pgtype.UUID
	witness  witness
	newSagas []saga.Row
}

func (w *writes) empty() bool {
	return len(w.sagas.id)+len(w.moves.id)+len(w.notes.id)+len(w.pulls)+len(w.fresh.id)+len(w.changed.id)+len(w.gone)+len(w.newSagas)+
		len(w.bindings.operation)+len(w.refs.id)+len(w.applied) == 0
}

// add takes one saga's decision and answers what its caller is told. before is
// the locked row, out has passed refused.
func (w *writes) add(id pgtype.UUID, before saga.Row, out store.Writes) store.Result {
	d := normal(out.Decision)
	r := store.Result{Decision: d}
	if touched(before, d.Row) {
		w.sagas.add(id, before.Version, d.Row)
	}
	w.history(id, d)
	if p := out.Outward.Pull; p != nil {
		pull, _ := idOf(p.PullID) // refused has looked
		w.pulls = append(w.pulls, pullRow{id: pull, operation: id, PullWrite: *p})
	}
	if b := out.Outward.Binding; b != nil {
		w.bindings.add(id, b.Status)
	}
	w.refs.add(id, before, d.Row)
	for _, a := range d.Applied {
		callback, _ := idOf(a) // refused has looked
		w.applied = append(w.applied, callback)
	}
	if d.KeepCommand {
		r.Decision.Row.Command = before.Command
		return r
	}
	c := d.Row.Command
	var took taken
	if k := out.Keep; k != nil {
		took, r.Kept = keep(c, d.Row, *k, w.now)
	}
	switch {
	case c == nil && before.Command != nil:
		w.gone = append(w.gone, id)
	case c == nil:
	case before.Command == nil:
		w.fresh.add(id, c, took)
	case *c != *before.Command:
		w.changed.add(id, c, took)
	}
	if before.Command != nil && before.Command.LeaseToken != "" && (c == nil || c.LeaseToken != before.Command.LeaseToken) {
		w.witness.consider(witness{rank: byToken, saga: id, token: before.Command.LeaseToken})
	}
	return r
}

// start takes a new saga.
func (w *writes) start(d saga.Decision) saga.Row {
	d = normal(d)
	id, _ := idOf(d.Row.ID) // refusedStart has looked
	w.newSagas = append(w.newSagas, d.Row)
	w.refs.add(id, saga.Row{}, d.Row)
	w.history(id, d)
	if d.Row.Command != nil {
		w.fresh.add(id, d.Row.Command, taken{})
	}
	return d.Row
}

func (w *writes) history(id pgtype.UUID, d saga.Decision) {
	for _, m := range d.Moves {
		w.moves.add(id, m, d.Row.UpdatedAt)
		w.witness.consider(witness{rank: byMove, saga: id, move: m, at: d.Row.UpdatedAt})
	}
	for _, n := range d.Notes {
		w.notes.add(id, d.Row.Version, n, w.now)
		w.witness.consider(witness{rank: byNote, saga: id, move: saga.Move{Seq: d.Row.Version, Event: n.Event, Detail: n.Detail}, at: w.now})
	}
}

// touched says whether the saga's own row changes. A mere requeue writes the command alone.
func touched(a, b saga.Row) bool {
	if a.State != b.State || a.Version != b.Version || a.Pending != b.Pending || len(a.Early) != len(b.Early) || !bytes.Equal(a.Data, b.Data) ||
		!a.WaitingSince.Equal(b.WaitingSince) || !a.UpdatedAt.Equal(b.UpdatedAt) || !a.ClosedAt.Equal(b.ClosedAt) {
		return true
	}
	if a.Failure == nil || b.Failure == nil {
		return a.Failure != b.Failure
	}
	return *a.Failure != *b.Failure
}

// taken is what a lease at birth did to the command.
type taken struct{ counted, dated bool }

// keep leases a new command at its birth, as a claim would. A command that is
// overdue is left to the claim, whose answer says so.
func keep(c *saga.CommandRow, r saga.Row, k store.Keep, now time.Time) (taken, bool) {
	if c == nil || c.AvailableAt.After(now) || c.Leased(now) || !c.DeadlineAt.IsZero() && !c.DeadlineAt.After(now) {
		return taken{}, false
	}
	var t taken
	if t.counted = !k.Look && r.Pending == nil; t.counted {
		c.Attempt++
	}
	if t.dated = k.Deadline > 0 && c.DeadlineAt.IsZero(); t.dated {
		c.DeadlineAt = stored(now.Add(k.Deadline))
	}
	c.LeaseToken, c.LeaseUntil, c.HeldFor = k.Token, stored(now.Add(k.Lease)), ""
	return t, true
}

// sagaSet is UPDATE saga_instances.
type sagaSet struct {
	id                           []pgtype.UUID
	old, version                 []int64
	state, step, kind, err, hint []string
	pending, early               []pgtype.Text
	data                         []string
	waiting, updated             []time.Time
	closed                       []pgtype.Timestamptz
}

func (x *sagaSet) add(id pgtype.UUID, old int64, r saga.Row) {
	f := failureOf(r)
	x.id, x.old, x.version = append(x.id, id), append(x.old, old), append(x.version, r.Version)
	x.state, x.step, x.kind = append(x.state, string(r.State)), append(x.step, string(f.Step)), append(x.kind, string(f.Kind))
	x.err, x.hint = append(x.err, f.Error), append(x.hint, f.Hint)
	x.pending, x.data = append(x.pending, pendingOf(r)), append(x.data, string(r.Data))
	x.early = append(x.early, earlyOf(r))
	x.waiting, x.updated, x.closed = append(x.waiting, r.WaitingSince), append(x.updated, r.UpdatedAt), append(x.closed, optionalTime(r.ClosedAt))
}

func failureOf(r saga.Row) saga.Failure {
	if r.Failure == nil {
		return saga.Failure{}
	}
	return *r.Failure
}

// pendingOf can't fail: an event's data was checked, or came from a row.
func pendingOf(r saga.Row) pgtype.Text {
	if r.Pending == nil {
		return pgtype.Text{}
	}
	b, err := json.Marshal(r.Pending)
	return pgtype.Text{String: string(b), Valid: err == nil}
}

// earlyOf can't fail either.
func earlyOf(r saga.Row) pgtype.Text {
	if len(r.Early) == 0 {
		return pgtype.Text{}
	}
	b, err := json.Marshal(r.Early)
	return pgtype.Text{String: string(b), Valid: err == nil}
}

var updateSagas = `
UPDATE saga_instances s SET state = t.state, version = t.version, failed_step = t.step, error_kind = t.kind, last_error = t.err,
	hint = t.hint, pending_event = t.pending::json, data = t.data::json, waiting_since = t.waiting, updated_at = t.updated, closed_at = t.closed,
	early = t.early::json
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
	$11::timestamptz[], $12::timestamptz[], $13::timestamptz[], $14::text[])
	AS t(id, old, version, state, step, kind, err, hint, pending, data, waiting, updated, closed, early)
WHERE ` + lookUp("s.saga_id", "t.id") + ` AND s.version = t.old`

// moveSet is INSERT INTO saga_history.
type moveSet struct {
	id                             []pgtype.UUID
	seq                            []int64
	event, from, to, actor, detail []string
	at                             []time.Time
}

func (x *moveSet) add(id pgtype.UUID, m saga.Move, at time.Time) {
	x.id, x.seq, x.event = append(x.id, id), append(x.seq, m.Seq), append(x.event, string(m.Event))
	x.from, x.to, x.actor = append(x.from, string(m.From)), append(x.to, string(m.To)), append(x.actor, m.Actor)
	x.detail, x.at = append(x.detail, m.Detail), append(x.at, at)
}

const insertMoves = `
INSERT INTO saga_history (saga_id, seq, event, from_state, to_state, actor, detail, at)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[])`

// noteSet is INSERT INTO saga_notes.
type noteSet struct {
	id                   []pgtype.UUID
	seq                  []int64
	event, actor, detail []string
	at                   []time.Time
}

func (x *noteSet) add(id pgtype.UUID, version int64, n saga.Note, at time.Time) {
	x.id, x.seq, x.event = append(x.id, id), append(x.seq, version), append(x.event, string(n.Event))
	x.actor, x.detail, x.at = append(x.actor, n.Actor), append(x.detail, n.Detail), append(x.at, at)
}

const insertNotes = `
INSERT INTO saga_notes (saga_id, seq, event, actor, detail, at)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::timestamptz[])`

// commandSet is INSERT INTO and UPDATE outbox_events.
type commandSet struct {
	id                      []pgtype.UUID
	typ, evidence           []string
	available, queued       []time.Time
	deadline, until         []pgtype.Timestamptz
	attempt, checks         []int32
	unclear, counted, dated []bool
	token, heldFor          []pgtype.UUID
}

func (x *commandSet) add(id pgtype.UUID, c *saga.CommandRow, t taken) {
	token, _ := optionalID(c.LeaseToken) // refused has looked at both
	held, _ := optionalID(c.HeldFor)
	x.id, x.typ, x.evidence = append(x.id, id), append(x.typ, c.Type), append(x.evidence, c.Evidence)
	x.available, x.queued = append(x.available, c.AvailableAt), append(x.queued, c.QueuedSince)
	x.deadline, x.until = append(x.deadline, optionalTime(c.DeadlineAt)), append(x.until, optionalTime(c.LeaseUntil))
	x.attempt, x.checks = append(x.attempt, int32(c.Attempt)), append(x.checks, int32(c.Checks))
	x.unclear, x.counted, x.dated = append(x.unclear, c.Unclear), append(x.counted, t.counted), append(x.dated, t.dated)
	x.token, x.heldFor = append(x.token, token), append(x.heldFor, held)
}

func (x *commandSet) args() []any {
	return []any{x.id, x.typ, x.available, x.queued, x.deadline, x.attempt, x.checks, x.unclear, x.evidence, x.token, x.until, x.heldFor,
		x.counted, x.dated}
}

const (
	commandArrays = `unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::int[], $7::int[],
	$8::bool[], $9::text[], $10::uuid[], $11::timestamptz[], $12::uuid[], $13::bool[], $14::bool[])`
	insertCommands = `
INSERT INTO outbox_events (saga_id, type, available_at, queued_since, deadline_at, attempt, checks, unclear, evidence, lease_token,
	lease_until, held_for, counted, dated)
SELECT * FROM ` + commandArrays
)

// A rewritten command that its worker goes on holding keeps what its claim did.
var updateCommands = `
UPDATE outbox_events o SET type = t.type, available_at = t.available, queued_since = t.queued, deadline_at = t.deadline,
	attempt = t.attempt, checks = t.checks, unclear = t.uncl, evidence = t.evidence, lease_token = t.token, lease_until = t.until,
	held_for = t.held, counted = t.counted OR o.counted AND coalesce(o.lease_token = t.token, false),
	dated = t.dated OR o.dated AND coalesce(o.lease_token = t.token, false)
FROM ` + commandArrays + `
	AS t(id, type, available, queued, deadline, attempt, checks, uncl, evidence, token, until, held, counted, dated)
WHERE ` + lookUp("o.saga_id", "t.id")

// pullRow is one row of UPDATE pull_requests.
type pullRow struct {
	id, operation pgtype.UUID
	store.PullWrite
}

var updatePulls = `
UPDATE pull_requests p SET
	saga_status = CASE WHEN t.status = '' THEN p.saga_status ELSE t.status END,
	merge_commit = CASE WHEN p.merge_commit = '' THEN t.merge_commit ELSE p.merge_commit END,
	forge_state = CASE WHEN t.merged THEN 'merged' WHEN t.close AND p.forge_state = 'open' THEN 'closed' ELSE p.forge_state END,
	updated_at = $7
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bool[], $6::bool[]) AS t(id, operation, status, merge_commit, close, merged)
WHERE ` + lookUp("p.pull_id", "t.id") + ` AND p.operation_id = t.operation`

func (w *writes) queuePulls(b *pgx.Batch) {
	// Rows are locked in the order of the arrays.
	slices.SortFunc(w.pulls, func(a, b pullRow) int { return bytes.Compare(a.id.Bytes[:], b.id.Bytes[:]) })
	n := len(w.pulls)
	ids, operations := make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	status, commit := make([]string, n), make([]string, n)
	closes, merges := make([]bool, n), make([]bool, n)
	for i, p := range w.pulls {
		ids[i], operations[i], status[i], commit[i], closes[i], merges[i] = p.id, p.operation, p.Status, p.MergeCommit, p.CloseLocal, p.MergedLocal
	}
	b.Queue(updatePulls, ids, operations, status, commit, closes, merges, w.now)
}

const insertSaga = `
INSERT INTO saga_instances (saga_id, flow, flow_version, flow_order, aggregate_id, subject, target, project, title, created_at, state,
	version, failed_step, error_kind, last_error, hint, data, waiting_since, updated_at, closed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)`

// queue writes in the lock order: sagas and what only their holders write, pull
// requests, commands.
func (w *writes) queue(b *pgx.Batch) {
	if x := &w.sagas; len(x.id) > 0 {
		b.Queue(updateSagas, x.id, x.old, x.version, x.state, x.step, x.kind, x.err, x.hint, x.pending, x.data, x.waiting, x.updated, x.closed, x.early)
	}
	for _, r := range w.newSagas {
		id, _ := idOf(r.ID) // refusedStart has looked
		f := failureOf(r)
		b.Queue(insertSaga, id, r.Flow, r.FlowVersion, string(r.Order), r.AggregateID, r.About.Subject, r.About.Target, r.About.Project,
			r.About.Title, r.CreatedAt, string(r.State), r.Version, string(f.Step), string(f.Kind), f.Error, f.Hint, string(r.Data),
			r.WaitingSince, r.UpdatedAt, optionalTime(r.ClosedAt))
	}
	if x := &w.moves; len(x.id) > 0 {
		b.Queue(insertMoves, x.id, x.seq, x.event, x.from, x.to, x.actor, x.detail, x.at)
	}
	if x := &w.notes; len(x.id) > 0 {
		b.Queue(insertNotes, x.id, x.seq, x.event, x.actor, x.detail, x.at)
	}
	if x := &w.refs; len(x.id) > 0 {
		b.Queue(upsertRefs, x.id, x.project, x.iid, x.commit)
	}
	if len(w.applied) > 0 {
		b.Queue(`UPDATE callbacks SET applied_at = $2 WHERE callback_id = ANY($1)`, w.applied, w.now)
	}
	if len(w.pulls) > 0 {
		w.queuePulls(b)
	}
	if x := &w.bindings; len(x.operation) > 0 {
		b.Queue(updateBindings, x.operation, x.status, w.now)
	}
	if len(w.gone) > 0 {
		b.Queue(`DELETE FROM outbox_events WHERE saga_id = ANY($1)`, w.gone)
	}
	if len(w.changed.id) > 0 {
		b.Queue(updateCommands, w.changed.args()...)
	}
	if len(w.fresh.id) > 0 {
		b.Queue(insertCommands, w.fresh.args()...)
	}
}

// byMove and the others rank the traces that a transaction leaves, best last.
const (
	byNothing = iota
	byToken   // a lease that it took away
	byNote    // a note that it left
	byMove    // a history row that it wrote
)

// witness is one trace of a transaction, enough to learn whether it committed.
type witness struct {
	rank  int
	saga  pgtype.UUID
	pull  pgtype.UUID // locked instead of the saga, where the saga is new
	token string
	move  saga.Move
	at    time.Time
}

func (w *witness) consider(x witness) {
	if cmp.Compare(x.rank, w.rank) > 0 {
		x.pull = w.pull
		*w = x
	}
}
