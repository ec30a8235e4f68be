package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// bindingSet is UPDATE bindings. Only the binding's newest saga writes it, and
// that saga is locked, so no order among bindings is needed.
type bindingSet struct {
	operation []pgtype.UUID
	status    []string
}

func (x *bindingSet) add(operation pgtype.UUID, status string) {
	x.operation, x.status = append(x.operation, operation), append(x.status, status)
}

const updateBindings = `
UPDATE bindings b SET status = t.status, updated_at = $3
FROM unnest($1::uuid[], $2::text[]) AS t(operation, status) WHERE b.operation_id = t.operation`

// refSet is what callbacks without an operation id find sagas by.
type refSet struct {
	id              []pgtype.UUID
	project, commit []string
	iid             []int64
}

func (x *refSet) add(id pgtype.UUID, before, r saga.Row) {
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

// StartChange takes the key, locks the old saga, then the binding. A binding
// whose saga changed in between, or that somebody else made, is looked at again.
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
		if bindingTaken(err) {
			err = errMoved
		}
		var own *ownError
		switch {
		case errors.As(err, &own):
			return store.ChangeStarted{}, own.err
		case err == nil:
			return out, nil
		case try+1 < 4*tries && (isRepeatable(err) || errors.Is(err, errMoved)) && pause(ctx, try):
			continue
		case errors.Is(err, errMoved):
			return store.ChangeStarted{}, fmt.Errorf("%s: %w", op, store.ErrBusy)
		}
		return store.ChangeStarted{}, wrap(op, err)
	}
}

// bindingTaken: somebody else made the same binding at the same time.
func bindingTaken(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == uniqueViolation && e.ConstraintName == "bindings_pkey"
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
	in        store.ChangeDoor
	operation pgtype.UUID // of the binding, as first seen
	fresh     bool        // the idempotency key is ours
	hash      string
	first     store.ChangeStarted
	state     store.DoorState
	w         *writes
}

func (db *DB) startChange(ctx context.Context, in store.ChangeDoor, decide func(store.DoorState) (store.StartChange, error)) (store.ChangeStarted, error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return store.ChangeStarted{}, err
	}
	defer conn.Release() // a connection that is still in a transaction is closed by it
	d := &door{in: in, fresh: in.Key == nil}
	if err := db.send(ctx, conn, d.lookUp()); err != nil {
		return store.ChangeStarted{}, err
	}
	if !d.fresh {
		b := &pgx.Batch{}
		b.Queue("ROLLBACK")
		_ = db.send(ctx, conn, b) // an open transaction ends with the connection
		if d.hash != in.Key.Hash {
			return store.ChangeStarted{}, &ownError{store.ErrIdempotencyMismatch}
		}
		d.first.Replayed = true
		return d.first, nil
	}
	if err := db.send(ctx, conn, d.lock()); err != nil {
		return store.ChangeStarted{}, err
	}
	out, b, err := d.decide(decide)
	if err != nil {
		b = &pgx.Batch{}
		b.Queue("ROLLBACK")
		_ = db.send(ctx, conn, b)
		return store.ChangeStarted{}, err
	}
	err = db.send(ctx, conn, b)
	if errors.Is(err, errCut) {
		switch committed, lookErr := db.settle(ctx, d.w.witness); {
		case lookErr != nil:
			return store.ChangeStarted{}, fmt.Errorf("%w: %w", store.ErrUnknown, lookErr)
		case committed:
			err = nil
		}
	}
	return out, err
}

// lookUp takes the key and sees whose the binding is. A key that another
// transaction is taking is waited for.
func (d *door) lookUp() *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue("BEGIN")
	if k := d.in.Key; k != nil {
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
	b.Queue(`SELECT operation_id FROM bindings WHERE subject_id = $1 AND target_key = $2`, d.in.Subject, d.in.Target).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := rows.Scan(&d.operation); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return b
}

func (d *door) lock() *pgx.Batch {
	d.state.Binding = store.Binding{Subject: d.in.Subject, Target: d.in.Target}
	b := &pgx.Batch{}
	b.Queue(lockSagas, []pgtype.UUID{d.operation}).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var s sagaScan
			if err := rows.Scan(s.into()...); err != nil {
				return err
			}
			row, err := s.saga()
			if err != nil {
				return err
			}
			d.state.Old = &store.Locked{Row: row, Held: true}
		}
		return rows.Err()
	})
	b.Queue(selectBinding+` FOR UPDATE`, d.in.Subject, d.in.Target).Query(func(rows pgx.Rows) error {
		got, err := pgx.CollectRows(rows, scanBinding)
		if len(got) == 1 {
			d.state.Binding = got[0]
		}
		return err
	})
	b.Queue(readCommand, []pgtype.UUID{d.operation}).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id pgtype.UUID
			var c commandScan
			if err := rows.Scan(append([]any{&id}, c.into()...)...); err != nil {
				return err
			}
			if d.state.Old != nil {
				d.state.Old.Row.Command = c.command()
			}
		}
		return rows.Err()
	})
	b.Queue("SELECT mergeflow_now()").QueryRow(func(r pgx.Row) error { return r.Scan(&d.state.Now) })
	return b
}

// decide asks, and answers the writes with their COMMIT.
func (d *door) decide(decide func(store.DoorState) (store.StartChange, error)) (store.ChangeStarted, *pgx.Batch, error) {
	if d.state.Binding.OperationID != textOf(d.operation) {
		return store.ChangeStarted{}, nil, errMoved
	}
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
		d.w.add(d.operation, before, *out.Old)
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
	if d.operation.Valid {
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

// HighestLive is the highest merge request number for which a live callback
// arrived after since.
func (db *DB) HighestLive(ctx context.Context, project, base string, since time.Time) (int64, error) {
	var n int64
	err := db.pool.QueryRow(ctx, `SELECT coalesce(max(mr_iid), 0) FROM deploy_callbacks WHERE project = $1 AND base = $2 AND result = 'live' AND at > $3`,
		project, base, since).Scan(&n)
	return n, wrap("highest live", err)
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
