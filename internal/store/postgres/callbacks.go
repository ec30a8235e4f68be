package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Callback takes one call from outside: key, verdict, ledger row and effect in
// one transaction of three round trips. A key that another transaction is
// taking is waited for, and so is the saga, as long as lock_timeout lets it.
func (db *DB) Callback(ctx context.Context, in store.Callback, decide func(store.CallbackState) (store.CallbackDecision, error)) (store.CallbackEntry, error) {
	op := "callback " + in.Kind
	for _, t := range []string{in.Kind, in.Source, in.RequestID, in.Hash} {
		if err := refusedText(t); err != nil {
			return store.CallbackEntry{}, fmt.Errorf("%s: %w", op, err)
		}
	}
	id, ok := idOf(in.ID)
	if err := refusedJSON(in.Payload); err != nil || !ok {
		return store.CallbackEntry{}, fmt.Errorf("%s: %w", op, errors.Join(store.ErrConflict, err))
	}
	for try := 0; ; try++ {
		out, err := db.callback(ctx, id, in, decide)
		var own *ownError
		switch {
		case errors.As(err, &own):
			return store.CallbackEntry{}, own.err
		case err == nil:
			return out, nil
		case try+1 < tries && isRepeatable(err) && pause(ctx, try):
			continue
		}
		return store.CallbackEntry{}, wrap(op, err)
	}
}

func (db *DB) callback(ctx context.Context, id pgtype.UUID, in store.Callback, decide func(store.CallbackState) (store.CallbackDecision, error)) (store.CallbackEntry, error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return store.CallbackEntry{}, err
	}
	defer conn.Release() // a connection that is still in a transaction is closed by it
	operation, _ := idOf(in.OperationID)
	state := store.CallbackState{Seen: true}
	var same bool
	b := &pgx.Batch{}
	b.Queue("BEGIN")
	b.Queue(fence, in.ID)
	b.Queue(`INSERT INTO callback_keys (source, request_id, hash, at) VALUES ($1, $2, $3, mergeflow_now()) ON CONFLICT DO NOTHING RETURNING true`,
		in.Source, in.RequestID, in.Hash).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			state.Seen = false
		}
		return rows.Err()
	})
	b.Queue(`SELECT hash = $3 FROM callback_keys WHERE source = $1 AND request_id = $2`, in.Source, in.RequestID, in.Hash).QueryRow(func(r pgx.Row) error {
		return r.Scan(&same)
	})
	if err := db.send(ctx, conn, b); err != nil {
		return store.CallbackEntry{}, err
	}
	state.SameHash = state.Seen && same
	if err := db.send(ctx, conn, lockCallback(operation, &state)); err != nil {
		return store.CallbackEntry{}, err
	}
	w := &writes{now: stored(state.Now)}
	out, b, err := decideCallback(id, operation, in, &state, w, decide)
	if err != nil {
		b = &pgx.Batch{}
		b.Queue("ROLLBACK")
		_ = db.send(ctx, conn, b) // an open transaction ends with the connection
		return store.CallbackEntry{}, err
	}
	b.Queue("COMMIT")
	err = db.send(ctx, conn, b)
	if errors.Is(err, errCut) {
		lookErr := db.look(ctx, fence, in.ID, &out.Seq, `SELECT coalesce(max(seq), 0) FROM callbacks WHERE callback_id = $1`, id)
		switch {
		case lookErr != nil:
			return store.CallbackEntry{}, fmt.Errorf("%w: %w", store.ErrUnknown, lookErr)
		case out.Seq > 0:
			err = nil
		}
	}
	return *out, err
}

func lockCallback(operation pgtype.UUID, state *store.CallbackState) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(lockSagas, []pgtype.UUID{operation}).Query(func(rows pgx.Rows) (err error) {
		state.Saga, err = scanLocked(rows)
		return err
	})
	b.Queue(`SELECT EXISTS (SELECT FROM bindings WHERE operation_id = $1)`, operation).QueryRow(func(r pgx.Row) error { return r.Scan(&state.Owner) })
	b.Queue(readCommand, []pgtype.UUID{operation}).Query(func(rows pgx.Rows) error { return scanCommandOf(rows, state.Saga) })
	b.Queue("SELECT mergeflow_now()").QueryRow(func(r pgx.Row) error { return r.Scan(&state.Now) })
	return b
}

// decideCallback asks, and answers the writes but for their COMMIT.
func decideCallback(id, operation pgtype.UUID, in store.Callback, state *store.CallbackState, w *writes,
	decide func(store.CallbackState) (store.CallbackDecision, error)) (*store.CallbackEntry, *pgx.Batch, error) {
	state.Now = w.now
	var before saga.Row
	if s := state.Saga; s != nil {
		s.Now, before = w.now, s.Row
		if c := s.Row.Command; c != nil {
			own := *c
			before.Command = &own // decide may write into its own copy
		}
	}
	d, err := decide(*state)
	if err != nil {
		return nil, nil, &ownError{err}
	}
	for _, t := range []string{d.Verdict, d.Rule, d.Actor} {
		if err := refusedText(t); err != nil {
			return nil, nil, err
		}
	}
	out := &store.CallbackEntry{ID: in.ID, Kind: in.Kind, Source: in.Source, RequestID: in.RequestID,
		Verdict: d.Verdict, Rule: d.Rule, Actor: d.Actor, Payload: in.Payload, At: w.now}
	var about pgtype.UUID
	if state.Saga != nil {
		out.SagaID, about = state.Saga.Row.ID, operation
	}
	if d.Writes != nil && state.Saga != nil {
		if err := refused(*d.Writes); err != nil {
			return nil, nil, err
		}
		r := w.add(operation, before, *d.Writes)
		out.Decision = &r.Decision
	}
	b := &pgx.Batch{}
	payload := in.Payload
	if len(payload) == 0 {
		payload = json.RawMessage(`{}`)
	}
	w.queue(b)
	b.Queue(`INSERT INTO callbacks (callback_id, saga_id, kind, source, request_id, verdict, rule, actor, payload, at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING seq`,
		id, about, in.Kind, in.Source, in.RequestID, d.Verdict, d.Rule, d.Actor, string(payload), w.now).QueryRow(func(r pgx.Row) error { return r.Scan(&out.Seq) })
	if r := d.Deploy; r != nil {
		for _, t := range []string{r.Project, r.Base, r.MergeCommit, r.Result} {
			if err := refusedText(t); err != nil {
				return nil, nil, err
			}
		}
		b.Queue(`INSERT INTO deploy_callbacks (project, base, mr_iid, merge_commit, result, at) VALUES ($1, $2, $3, $4, $5, $6)`,
			r.Project, r.Base, r.MRIID, r.MergeCommit, r.Result, w.now)
	}
	return out, b, nil
}

// Callbacks are a saga's ledger rows, oldest first.
func (db *DB) Callbacks(ctx context.Context, sagaID string, after int64, limit int) ([]store.CallbackEntry, error) {
	id, ok := idOf(sagaID)
	if !ok {
		return nil, nil
	}
	rows, err := db.pool.Query(ctx, `SELECT seq, callback_id, saga_id, kind, source, request_id, verdict, rule, actor, payload, at, applied_at
		FROM callbacks WHERE saga_id = $1 AND seq > $2 ORDER BY seq LIMIT $3`, id, after, limitOf(limit))
	if err != nil {
		return nil, wrap("callbacks", err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (e store.CallbackEntry, err error) {
		var callback, about pgtype.UUID
		var payload []byte
		var at time.Time
		var applied pgtype.Timestamptz
		err = r.Scan(&e.Seq, &callback, &about, &e.Kind, &e.Source, &e.RequestID, &e.Verdict, &e.Rule, &e.Actor, &payload, &at, &applied)
		e.ID, e.SagaID, e.Payload, e.At, e.AppliedAt = textOf(callback), textOf(about), payload, at.UTC(), timeOf(applied)
		return e, err
	})
	return out, wrap("callbacks", err)
}
