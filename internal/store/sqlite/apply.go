package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// errRefused: the database refused a value or a constraint in a batch.
var errRefused = errors.New("a write in the batch was refused")

// Apply decides and writes a batch in one transaction. What the database would
// refuse is found before it is written (check); where a constraint refuses all
// the same, the batch is repeated with a savepoint for each saga, so that the
// refused one is undone alone. Savepoints are kept out of the usual case.
func (db *DB) Apply(ctx context.Context, reqs []store.Request, decide func(int, store.Locked) (store.Writes, error)) ([]store.Result, error) {
	if len(reqs) == 0 {
		return nil, nil
	}
	rs, err := db.apply(ctx, reqs, decide, false)
	if errors.Is(err, errRefused) {
		rs, err = db.apply(ctx, reqs, decide, true)
	}
	return rs, err
}

func (db *DB) apply(ctx context.Context, reqs []store.Request, decide func(int, store.Locked) (store.Writes, error), alone bool) ([]store.Result, error) {
	rs := make([]store.Result, len(reqs))
	err := db.write(ctx, "apply", func(s *session) error {
		now := db.now()
		ids := make([]string, len(reqs))
		for i, r := range reqs {
			ids[i] = r.SagaID
		}
		rows, unreadable, err := s.sagas(ids)
		if err != nil {
			return err
		}
		answered := make(map[string]bool, len(reqs))
		for i, r := range reqs {
			row, ok := rows[r.SagaID]
			switch {
			case unreadable[r.SagaID] != nil:
				rs[i].Err = fmt.Errorf("saga %s: %w: %w", r.SagaID, store.ErrConflict, unreadable[r.SagaID])
				continue
			case !ok:
				rs[i].Err = fmt.Errorf("saga %s: %w", r.SagaID, store.ErrNotFound)
				continue
			case answered[r.SagaID]:
				rs[i].Err = fmt.Errorf("saga %s twice in a batch: %w", r.SagaID, store.ErrBusy)
				continue
			}
			answered[r.SagaID] = true
			l := store.Locked{Row: row, Held: r.Token == "" || (row.Command != nil && row.Command.LeaseToken == r.Token), Now: now}
			w, err := decide(i, l)
			if err != nil {
				rs[i].Err = err
				continue
			}
			if rs[i], err = s.answer(l, w, alone); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rs, nil
}

// answer writes one saga's decision and says what became of it. Its error ends
// the whole batch.
func (s *session) answer(l store.Locked, w store.Writes, alone bool) (store.Result, error) {
	refused := func(err error) store.Result {
		return store.Result{Err: wrap("saga "+l.Row.ID, err)}
	}
	var m marks
	kept := false
	if l.Held {
		m, kept = keep(&w, l.Now)
	}
	if err := check(l.Row, w); err != nil {
		return refused(err), nil
	}
	if alone {
		if _, err := s.exec("SAVEPOINT saga"); err != nil {
			return store.Result{}, err
		}
	}
	if err := s.put(l, w, m); err != nil {
		if !isRefusal(err) {
			return store.Result{}, err
		}
		if !alone {
			return store.Result{}, errRefused
		}
		if _, undo := s.exec("ROLLBACK TO saga"); undo != nil {
			return store.Result{}, undo
		}
		if _, undo := s.exec("RELEASE saga"); undo != nil {
			return store.Result{}, undo
		}
		return refused(err), nil
	}
	if alone {
		if _, err := s.exec("RELEASE saga"); err != nil {
			return store.Result{}, err
		}
	}
	r := store.Result{Decision: w.Decision, Kept: kept}
	if !l.Held {
		r.Err = fmt.Errorf("saga %s: %w", l.Row.ID, store.ErrLeaseLost)
	}
	return r, nil
}

// keep leases the next command at its birth where it is due and in time.
func keep(w *store.Writes, now time.Time) (marks, bool) {
	r, k := &w.Decision.Row, w.Keep
	if k == nil || r.Command == nil || w.Decision.KeepCommand || r.Command.AvailableAt.After(now) || overdue(r.Command, now, 0) {
		return marks{}, false
	}
	return grant(r, store.Lease{SagaID: r.ID, Token: k.Token}, now.Add(k.Lease), k.Look, now, k.Deadline), true
}

// check finds what must not be written before anything is.
func check(old saga.Row, w store.Writes) error {
	d := w.Decision
	if d.Row.ID != old.ID {
		return fmt.Errorf("%w: the decision is about saga %q", store.ErrConflict, d.Row.ID)
	}
	return errors.Join(checkDecision(d), checkOutward(w.Outward))
}

func checkDecision(d saga.Decision) error {
	r := d.Row
	errs := []error{
		checkText("a saga", r.Flow, string(r.Order), r.AggregateID, string(r.State), r.About.Subject, r.About.Target, r.About.Project, r.About.Title),
		checkJSON("a saga's data", r.Data),
	}
	if f := r.Failure; f != nil {
		errs = append(errs, checkText("a failure", string(f.Step), string(f.Kind), f.Error, f.Hint))
	}
	if p := r.Pending; p != nil {
		errs = append(errs, checkText("a pending event", string(p.Name), p.Actor, p.Detail), checkJSON("a pending event's data", p.Data))
	}
	for _, e := range r.Early {
		errs = append(errs, checkText("an early event", e.ID, string(e.Name), e.Actor, e.Detail), checkJSON("an early event's data", e.Data))
	}
	if c := r.Command; c != nil && !d.KeepCommand {
		errs = append(errs, checkText("a command", c.Type, c.Evidence), checkID("a command's token", c.LeaseToken, c.HeldFor))
	}
	for _, m := range d.Moves {
		errs = append(errs, checkText("the history", string(m.Event), string(m.From), string(m.To), m.Actor, m.Detail))
	}
	for _, n := range d.Notes {
		errs = append(errs, checkNote(n))
	}
	return errors.Join(append(errs, checkID("an early callback's id", d.Applied...))...)
}

func checkNote(n saga.Note) error {
	return checkText("a note", string(n.Event), n.Actor, n.Detail)
}

func checkOutward(o store.Outward) error {
	var errs []error
	if o.Pull != nil {
		errs = append(errs, checkText("a pull request", o.Pull.Status, o.Pull.MergeCommit))
	}
	if o.Binding != nil {
		errs = append(errs, checkText("a binding", o.Binding.Status))
	}
	return errors.Join(errs...)
}

// put writes all that a decision holds. marks belong to a lease that the next
// command is born with.
func (s *session) put(l store.Locked, w store.Writes, m marks) error {
	d := w.Decision
	if err := s.putSaga(l.Row, d); err != nil {
		return err
	}
	if err := s.putTrail(d, l.Now); err != nil {
		return err
	}
	if !d.KeepCommand {
		if err := s.putCommand(l.Row, d.Row.Command, m); err != nil {
			return err
		}
	}
	if err := s.putApplied(d.Applied, l.Now); err != nil {
		return err
	}
	return s.putOutward(d.Row.ID, w.Outward, l.Now)
}

// putSaga updates the saga's row, unless the decision left it as it was.
func (s *session) putSaga(old saga.Row, d saga.Decision) error {
	r := d.Row
	pending, before := "", ""
	var err error
	if r.Pending != nil {
		if pending, err = toJSON(r.Pending); err != nil {
			return err
		}
	}
	if old.Pending != nil {
		if before, err = toJSON(old.Pending); err != nil {
			return err
		}
	}
	early, earlyBefore, err := earlyText(r, old)
	if err != nil {
		return err
	}
	if len(d.Moves) == 0 && pending == before && early == earlyBefore && dataText(r.Data) == dataText(old.Data) {
		return nil
	}
	f := failureOf(r)
	n, err := s.exec(`
UPDATE saga_instances
SET state = ?, version = ?, failed_step = ?, error_kind = ?, last_error = ?, hint = ?, pending_event = ?, data = ?,
    waiting_since = ?, updated_at = ?, closed_at = ?, early = ?
WHERE saga_id = ? AND version = ?`,
		string(r.State), r.Version, string(f.Step), string(f.Kind), f.Error, f.Hint, null(pending), dataText(r.Data),
		micros(r.WaitingSince), micros(r.UpdatedAt), micros(r.ClosedAt), null(early), r.ID, old.Version)
	if err == nil && n != 1 {
		err = fmt.Errorf("saga %s changed inside its transaction", r.ID)
	}
	if err != nil {
		return err
	}
	return s.putRefs(old, r)
}

// earlyText is the kept events as their column holds them, after and before.
func earlyText(r, old saga.Row) (now, before string, err error) {
	if len(r.Early) > 0 {
		if now, err = toJSON(r.Early); err != nil {
			return "", "", err
		}
	}
	if len(old.Early) > 0 {
		before, err = toJSON(old.Early)
	}
	return now, before, err
}

func failureOf(r saga.Row) saga.Failure {
	if r.Failure == nil {
		return saga.Failure{}
	}
	return *r.Failure
}

// putTrail appends history and notes.
func (s *session) putTrail(d saga.Decision, now time.Time) error {
	for _, m := range d.Moves {
		if _, err := s.exec(`
INSERT INTO saga_history (saga_id, seq, event, from_state, to_state, actor, detail, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			d.Row.ID, m.Seq, string(m.Event), string(m.From), string(m.To), m.Actor, m.Detail, micros(now)); err != nil {
			return err
		}
	}
	for _, n := range d.Notes {
		if _, err := s.exec(`
INSERT INTO saga_notes (saga_id, seq, event, actor, detail, at) VALUES (?, ?, ?, ?, ?, ?)`,
			d.Row.ID, d.Row.Version, string(n.Event), n.Actor, n.Detail, micros(now)); err != nil {
			return err
		}
	}
	return nil
}

// putCommand replaces the saga's one command; nil takes it away.
func (s *session) putCommand(old saga.Row, c *saga.CommandRow, m marks) error {
	if c == nil {
		if old.Command == nil {
			return nil
		}
		_, err := s.exec(`DELETE FROM outbox_events WHERE saga_id = ?`, old.ID)
		return err
	}
	token := null(c.LeaseToken)
	if c.LeaseUntil.IsZero() {
		token = nil // a requeued command still names who held it
	}
	_, err := s.exec(`
INSERT OR REPLACE INTO outbox_events
    (saga_id, type, available_at, queued_since, deadline_at, attempt, checks, unclear, evidence, lease_token, lease_until, held_for,
     counted, dated)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		old.ID, c.Type, micros(c.AvailableAt), micros(c.QueuedSince), micros(c.DeadlineAt), c.Attempt, c.Checks, c.Unclear, c.Evidence,
		token, micros(c.LeaseUntil), null(c.HeldFor), m.counted, m.dated)
	return err
}

// putOutward writes to the pull request or binding whose newest saga this still is.
func (s *session) putOutward(sagaID string, o store.Outward, now time.Time) error {
	if b := o.Binding; b != nil {
		if _, err := s.exec(`UPDATE bindings SET status = ?, updated_at = ? WHERE operation_id = ?`, b.Status, micros(now), sagaID); err != nil {
			return err
		}
	}
	p := o.Pull
	if p == nil {
		return nil
	}
	_, err := s.exec(`
UPDATE pull_requests
SET saga_status = ?1,
    merge_commit = CASE WHEN merge_commit = '' THEN ?2 ELSE merge_commit END,
    forge_state = CASE WHEN ?3 THEN 'merged' WHEN ?4 AND forge_state = 'open' THEN 'closed' ELSE forge_state END,
    updated_at = ?5
WHERE pull_id = ?6 AND operation_id = ?7`,
		p.Status, p.MergeCommit, p.MergedLocal, p.CloseLocal, micros(now), p.PullID, sagaID)
	return err
}

// sagas reads rows with their commands, by id.
func (s *session) sagas(ids []string) (rows map[string]saga.Row, unreadable map[string]error, err error) {
	list, err := toJSON(ids)
	if err != nil {
		return nil, nil, err
	}
	rows, unreadable = make(map[string]saga.Row, len(ids)), map[string]error{}
	_, err = all(s, func(sc scanner) (struct{}, error) {
		r, err := scanSaga(sc)
		if errors.Is(err, errUnreadable) {
			unreadable[r.ID] = err
			return struct{}{}, nil
		}
		rows[r.ID] = r
		return struct{}{}, err
	}, selectSaga+`WHERE s.saga_id IN (SELECT value FROM json_each(?))`, list)
	return rows, unreadable, err
}

// lockedSaga is sagas for one; found is false where there is none.
func (s *session) lockedSaga(id string) (r saga.Row, found bool, err error) {
	rows, unreadable, err := s.sagas([]string{id})
	if err == nil {
		err = unreadable[id]
	}
	r, found = rows[id]
	return r, found, err
}
