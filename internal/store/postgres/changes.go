package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// fence is a lock that a transaction holds until its end. Whoever lost the
// answer to its COMMIT takes the same one: then the transaction is over, even
// where all that it locked are rows that nobody else can see yet. It is a lock
// in memory, and one that poolers respect.
const fence = `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`

// bindingSet is UPDATE bindings. Only the binding's newest saga writes it, and
// that saga is locked, so no order among bindings is needed.
type bindingSet struct {
	operation []pgtype.UUID
	status    []string
}

func (x *bindingSet) add(operation pgtype.UUID, status string) {
	x.operation, x.status = append(x.operation, operation), append(x.status, status)
}

var updateBindings = `
UPDATE bindings b SET status = t.status, updated_at = $3
FROM unnest($1::uuid[], $2::text[]) AS t(operation, status) WHERE ` + lookUp("b.operation_id", "t.operation")

// refSet is what callbacks without an operation id find sagas by.
type refSet struct {
	id              []pgtype.UUID
	project, commit []string
	iid             []int64
}

func (x *refSet) add(id pgtype.UUID, before, r saga.Row) {
	if bytes.Equal(before.Data, r.Data) {
		return
	}
	iid, commit := store.Refs(r)
	if was, had := store.Refs(before); was == iid && had == commit || iid == 0 && commit == "" {
		return
	}
	x.id, x.project, x.commit, x.iid = append(x.id, id), append(x.project, r.About.Project), append(x.commit, commit), append(x.iid, iid)
}

const upsertRefs = `
INSERT INTO change_refs (saga_id, project, mr_iid, merge_commit)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[])
ON CONFLICT (saga_id) DO UPDATE SET mr_iid = excluded.mr_iid, merge_commit = excluded.merge_commit`

// StartChange is two round trips, three with a key. Those who ask for the same
// binding take turns at its fence, the first of them too, when there is no row
// yet that could be locked.
func (db *DB) StartChange(ctx context.Context, in store.ChangeDoor, decide func(store.DoorState) (store.StartChange, error)) (store.ChangeStarted, error) {
	op := "start a change of " + in.Target
	texts := []string{in.Subject, in.Target}
	if k := in.Key; k != nil {
		texts = append(texts, k.Scope, k.Key, k.Hash)
	}
	for _, t := range texts {
		if err := refusedText(t); err != nil {
			return store.ChangeStarted{}, fmt.Errorf("%s: %w", op, err)
		}
	}
	for try := 0; ; try++ {
		out, err := db.startChange(ctx, in, decide)
		var own *ownError
		switch {
		case errors.As(err, &own):
			return store.ChangeStarted{}, own.err
		case err == nil:
			return out, nil
		case try+1 < tries && isRepeatable(err) && pause(ctx, try):
			continue
		}
		return store.ChangeStarted{}, wrap(op, err)
	}
}

const selectBinding = `SELECT subject_id, target_key, status, operation_id, updated_at FROM bindings WHERE subject_id = $1 AND target_key = $2`

func scanBinding(r pgx.CollectableRow) (b store.Binding, err error) {
	var operation pgtype.UUID
	err = r.Scan(&b.Subject, &b.Target, &b.Status, &operation, &b.UpdatedAt)
	b.OperationID, b.UpdatedAt = textOf(operation), b.UpdatedAt.UTC()
	return b, err
}

// door is one try of StartChange.
type door struct {
	in    store.ChangeDoor
	fresh bool // the idempotency key is ours
	hash  string
	first store.ChangeStarted
	state store.DoorState
	w     *writes
}

func (db *DB) startChange(ctx context.Context, in store.ChangeDoor, decide func(store.DoorState) (store.StartChange, error)) (store.ChangeStarted, error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return store.ChangeStarted{}, err
	}
	defer conn.Release() // a connection that is still in a transaction is closed by it
	d := &door{in: in}
	rollback := func() {
		b := &pgx.Batch{}
		b.Queue("ROLLBACK")
		_ = db.send(ctx, conn, b) // an open transaction ends with the connection
	}
	b := &pgx.Batch{}
	b.Queue("BEGIN")
	if in.Key != nil {
		d.takeKey(b)
		if err := db.send(ctx, conn, b); err != nil {
			return store.ChangeStarted{}, err
		}
		if !d.fresh {
			rollback()
			if d.hash != in.Key.Hash {
				return store.ChangeStarted{}, &ownError{store.ErrIdempotencyMismatch}
			}
			d.first.Replayed = true
			return d.first, nil
		}
		b = &pgx.Batch{}
	}
	d.lock(b)
	if err := db.send(ctx, conn, b); err != nil {
		return store.ChangeStarted{}, err
	}
	out, b, err := d.decide(decide)
	if err != nil {
		rollback()
		return store.ChangeStarted{}, err
	}
	err = db.send(ctx, conn, b)
	if errors.Is(err, errCut) {
		started, _ := idOf(out.OperationID) // refusedStart has looked
		var committed bool
		lookErr := db.look(ctx, fence, d.fence(), &committed, `SELECT EXISTS (SELECT FROM saga_instances WHERE saga_id = $1)`, started)
		switch {
		case lookErr != nil:
			return store.ChangeStarted{}, fmt.Errorf("%w: %w", store.ErrUnknown, lookErr)
		case committed:
			err = nil
		}
	}
	return out, err
}

func (d *door) fence() string { return d.in.Subject + "\x1f" + d.in.Target }

// takeKey makes the key ours or reads what its first user was answered. A key
// that another transaction is taking is waited for.
func (d *door) takeKey(b *pgx.Batch) {
	k := d.in.Key
	b.Queue(`INSERT INTO idempotency_keys (scope, key, hash, operation_id, state, status, at)
		VALUES ($1, $2, $3, gen_random_uuid(), '', '', mergeflow_now()) ON CONFLICT DO NOTHING RETURNING true`, k.Scope, k.Key, k.Hash).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			d.fresh = true
		}
		return rows.Err()
	})
	b.Queue(`SELECT hash, operation_id, state, status FROM idempotency_keys WHERE scope = $1 AND key = $2`, k.Scope, k.Key).QueryRow(func(r pgx.Row) error {
		var operation pgtype.UUID
		err := r.Scan(&d.hash, &operation, (*string)(&d.first.State), &d.first.Status)
		d.first.OperationID = textOf(operation)
		return err
	})
}

const (
	boundSaga   = `(SELECT operation_id FROM bindings WHERE subject_id = $1 AND target_key = $2)`
	lockBound   = `SELECT ` + sagaColumns + ` FROM saga_instances s WHERE s.saga_id = ` + boundSaga + ` FOR UPDATE OF s`
	readBound   = `SELECT o.saga_id, ` + commandColumns + ` FROM outbox_events o WHERE o.saga_id = ` + boundSaga + ` FOR UPDATE OF o`
	lockBinding = selectBinding + ` FOR UPDATE`
)

// lock takes the binding's turn; behind the fence it keeps its saga.
func (d *door) lock(b *pgx.Batch) {
	subject, target := d.in.Subject, d.in.Target
	d.state.Binding = store.Binding{Subject: subject, Target: target}
	b.Queue(fence, d.fence())
	b.Queue(lockBound, subject, target).Query(func(rows pgx.Rows) (err error) {
		d.state.Old, err = scanLocked(rows)
		return err
	})
	b.Queue(lockBinding, subject, target).Query(func(rows pgx.Rows) error {
		got, err := pgx.CollectRows(rows, scanBinding)
		if len(got) == 1 {
			d.state.Binding = got[0]
		}
		return err
	})
	b.Queue(readBound, subject, target).Query(func(rows pgx.Rows) error { return scanCommandOf(rows, d.state.Old) })
	b.Queue("SELECT mergeflow_now()").QueryRow(func(r pgx.Row) error { return r.Scan(&d.state.Now) })
}

// scanLocked reads the one saga that was locked; nil when there is none.
func scanLocked(rows pgx.Rows) (*store.Locked, error) {
	got, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (saga.Row, error) {
		var s sagaScan
		if err := r.Scan(s.into()...); err != nil {
			return saga.Row{}, err
		}
		return s.saga()
	})
	if err != nil || len(got) == 0 {
		return nil, err
	}
	return &store.Locked{Row: got[0], Held: true}, nil
}

// scanCommandOf reads the locked saga's command.
func scanCommandOf(rows pgx.Rows, l *store.Locked) error {
	for rows.Next() {
		var id pgtype.UUID
		var c commandScan
		if err := rows.Scan(append([]any{&id}, c.into()...)...); err != nil {
			return err
		}
		if l != nil {
			l.Row.Command = c.command()
		}
	}
	return rows.Err()
}

// decide asks, and answers the writes with their COMMIT.
func (d *door) decide(decide func(store.DoorState) (store.StartChange, error)) (store.ChangeStarted, *pgx.Batch, error) {
	d.state.Now = stored(d.state.Now)
	d.w = &writes{now: d.state.Now}
	var before saga.Row
	if old := d.state.Old; old != nil {
		old.Now, before = d.state.Now, old.Row
		if c := old.Row.Command; c != nil {
			own := *c
			before.Command = &own // decide may write into its own copy
		}
	}
	out, err := decide(d.state)
	if err != nil {
		return store.ChangeStarted{}, nil, &ownError{err}
	}
	if err := errors.Join(refusedStart(out.New), refusedText(out.Status)); err != nil {
		return store.ChangeStarted{}, nil, err
	}
	if out.Old != nil {
		if d.state.Old == nil {
			return store.ChangeStarted{}, nil, fmt.Errorf("%w: there is no old saga to end", store.ErrConflict)
		}
		if err := refused(*out.Old); err != nil {
			return store.ChangeStarted{}, nil, err
		}
		old, _ := idOf(before.ID) // it was read as one
		d.w.add(old, before, *out.Old)
	}
	row := d.w.start(out.New)
	id, _ := idOf(row.ID) // refusedStart has looked
	b := &pgx.Batch{}
	d.w.queue(b)
	if n := len(out.Inputs); n > 0 {
		paths, actions, contents := make([]string, n), make([]string, n), make([]string, n)
		for i, f := range out.Inputs {
			for _, t := range []string{f.Path, f.Action, f.Content} {
				if err := refusedText(t); err != nil {
					return store.ChangeStarted{}, nil, err
				}
			}
			paths[i], actions[i], contents[i] = f.Path, f.Action, f.Content
		}
		b.Queue(`INSERT INTO change_inputs (saga_id, n, path, action, content)
			SELECT $1, n - 1, path, action, content FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS t(path, action, content, n)`,
			id, paths, actions, contents)
	}
	if d.state.Binding.OperationID != "" {
		b.Queue(`UPDATE bindings SET operation_id = $3, status = $4, updated_at = $5 WHERE subject_id = $1 AND target_key = $2`,
			d.in.Subject, d.in.Target, id, out.Status, d.w.now)
	} else {
		b.Queue(`INSERT INTO bindings (subject_id, target_key, operation_id, status, updated_at) VALUES ($1, $2, $3, $4, $5)`,
			d.in.Subject, d.in.Target, id, out.Status, d.w.now)
	}
	if k := d.in.Key; k != nil {
		b.Queue(`UPDATE idempotency_keys SET operation_id = $3, state = $4, status = $5, at = $6 WHERE scope = $1 AND key = $2`,
			k.Scope, k.Key, id, string(row.State), out.Status, d.w.now)
	}
	b.Queue("COMMIT")
	return store.ChangeStarted{OperationID: row.ID, State: row.State, Status: out.Status}, b, nil
}

// Binding reads the outward row of a subject and a target.
func (db *DB) Binding(ctx context.Context, subject, target string) (store.Binding, error) {
	op := fmt.Sprintf("binding of %q and %q", subject, target)
	if errors.Join(refusedText(subject), refusedText(target)) != nil {
		return store.Binding{}, fmt.Errorf("%s: %w", op, store.ErrNotFound)
	}
	rows, err := db.pool.Query(ctx, selectBinding, subject, target)
	if err != nil {
		return store.Binding{}, wrap(op, err)
	}
	b, err := pgx.CollectExactlyOneRow(rows, scanBinding)
	return b, wrap(op, err)
}

// Inputs are a saga's submitted files, in the order they were given.
func (db *DB) Inputs(ctx context.Context, sagaID string) ([]store.Input, error) {
	id, ok := idOf(sagaID)
	if !ok {
		return nil, nil
	}
	rows, err := db.pool.Query(ctx, `SELECT path, action, content FROM change_inputs WHERE saga_id = $1 ORDER BY n`, id)
	if err != nil {
		return nil, wrap("inputs", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[store.Input])
	return out, wrap("inputs", err)
}

// OperationOf finds the newest saga with this merge commit, else with this
// merge request of the project.
func (db *DB) OperationOf(ctx context.Context, project, mergeCommit string, mrIID int64) (string, error) {
	if errors.Join(refusedText(project), refusedText(mergeCommit)) != nil {
		return "", fmt.Errorf("operation of a deploy: %w", store.ErrNotFound)
	}
	// Ids are time-ordered: the greatest is the newest.
	var id pgtype.UUID
	err := db.pool.QueryRow(ctx, `
		SELECT saga_id FROM (
			(SELECT saga_id, 1 AS rank FROM change_refs WHERE $2 <> '' AND merge_commit <> '' AND merge_commit = $2 ORDER BY saga_id DESC LIMIT 1)
			UNION ALL
			(SELECT saga_id, 2 FROM change_refs WHERE $3::bigint <> 0 AND project = $1 AND mr_iid = $3 ORDER BY saga_id DESC LIMIT 1)) x
		ORDER BY rank LIMIT 1`, project, mergeCommit, mrIID).Scan(&id)
	return textOf(id), wrap("operation of a deploy", err)
}

// LiveSince lists the deploys that went live after since, newest first.
func (db *DB) LiveSince(ctx context.Context, project, base string, since time.Time, limit int) ([]store.DeployRecord, error) {
	rows, err := db.pool.Query(ctx, `
		SELECT project, base, mr_iid, merge_commit, result FROM deploy_callbacks
		WHERE project = $1 AND base = $2 AND result = 'live' AND at > $3 ORDER BY at DESC LIMIT $4`, project, base, since, limit)
	if err != nil {
		return nil, wrap("live since", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[store.DeployRecord])
	return out, wrap("live since", err)
}

// ApproveMR records that an account approved a head.
func (db *DB) ApproveMR(ctx context.Context, pullID, account, sha string) error {
	op := "approve merge request " + pullID
	id, ok := idOf(pullID)
	if !ok || errors.Join(refusedText(account), refusedText(sha)) != nil {
		return fmt.Errorf("%s: %w", op, store.ErrConflict)
	}
	_, err := db.pool.Exec(ctx, `INSERT INTO mr_approvals (pull_id, account, sha, at) VALUES ($1, $2, $3, mergeflow_now()) ON CONFLICT DO NOTHING`, id, account, sha)
	return wrap(op, err)
}

// MRApprovals lists who approved which head, oldest first.
func (db *DB) MRApprovals(ctx context.Context, pullID string) ([]store.MRApproval, error) {
	id, ok := idOf(pullID)
	if !ok {
		return nil, nil
	}
	rows, err := db.pool.Query(ctx, `SELECT account, sha, at FROM mr_approvals WHERE pull_id = $1 ORDER BY at, account`, id)
	if err != nil {
		return nil, wrap("approvals", err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (a store.MRApproval, err error) {
		err = r.Scan(&a.Account, &a.SHA, &a.At)
		a.At = a.At.UTC()
		return a, err
	})
	return out, wrap("approvals", err)
}
