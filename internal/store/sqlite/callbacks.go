package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/store"
)

// Callback takes one call from outside: key, verdict, ledger row and effect in
// one transaction.
func (db *DB) Callback(ctx context.Context, in store.Callback, decide func(store.CallbackState) (store.CallbackDecision, error)) (store.CallbackEntry, error) {
	var out store.CallbackEntry
	var refusal error // decide's own: it comes back as it is
	err := db.write(ctx, "callback "+in.Kind, func(s *session) error {
		now := db.now()
		if in.ID == "" {
			return fmt.Errorf("%w: the callback has no id", store.ErrConflict)
		}
		if err := errors.Join(checkID("a callback's id", in.ID), checkText("a callback", in.Kind, in.Source, in.RequestID, in.Hash),
			checkJSON("a callback's payload", in.Payload)); err != nil {
			return err
		}
		state := store.CallbackState{Now: now}
		hash, err := one(s, scanText, `SELECT hash FROM callback_keys WHERE source = ? AND request_id = ?`, in.Source, in.RequestID)
		switch {
		case err == nil:
			state.Seen, state.SameHash = true, hash == in.Hash
		case errors.Is(err, sql.ErrNoRows):
			if _, err := s.exec(`INSERT INTO callback_keys (source, request_id, hash, at) VALUES (?, ?, ?, ?)`, in.Source, in.RequestID, in.Hash, micros(now)); err != nil {
				return err
			}
		default:
			return err
		}
		r, found, err := s.lockedSaga(in.OperationID)
		if err != nil {
			return err
		}
		if found {
			state.Saga = &store.Locked{Row: r, Held: true, Now: now}
			owned, err := one(s, scanInt, `SELECT count(*) FROM bindings WHERE operation_id = ?`, r.ID)
			if err != nil {
				return err
			}
			state.Owner = owned > 0
		}
		d, err := decide(state)
		if err != nil {
			refusal = err
			return err
		}
		out, err = s.putCallback(in, state, d)
		return err
	})
	switch {
	case refusal != nil:
		return store.CallbackEntry{}, refusal
	case err != nil:
		return store.CallbackEntry{}, err
	}
	return out, nil
}

func (s *session) putCallback(in store.Callback, state store.CallbackState, d store.CallbackDecision) (store.CallbackEntry, error) {
	now := state.Now
	if err := checkText("a verdict", d.Verdict, d.Rule, d.Actor); err != nil {
		return store.CallbackEntry{}, err
	}
	out := store.CallbackEntry{ID: in.ID, Kind: in.Kind, Source: in.Source, RequestID: in.RequestID,
		Verdict: d.Verdict, Rule: d.Rule, Actor: d.Actor, Payload: in.Payload, At: now}
	if state.Saga != nil {
		out.SagaID = state.Saga.Row.ID
	}
	seq, err := one(s, scanInt, `
INSERT INTO callbacks (callback_id, saga_id, kind, source, request_id, verdict, rule, actor, payload, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq`,
		in.ID, null(out.SagaID), in.Kind, in.Source, in.RequestID, d.Verdict, d.Rule, d.Actor, dataText(in.Payload), micros(now))
	if err != nil {
		return out, err
	}
	out.Seq = seq
	if r := d.Deploy; r != nil {
		if err := checkText("a deploy", r.Project, r.Base, r.MergeCommit, r.Result); err != nil {
			return out, err
		}
		if _, err := s.exec(`INSERT INTO deploy_callbacks (project, base, mr_iid, merge_commit, result, at) VALUES (?, ?, ?, ?, ?, ?)`,
			r.Project, r.Base, r.MRIID, r.MergeCommit, r.Result, micros(now)); err != nil {
			return out, err
		}
	}
	if d.Writes == nil || state.Saga == nil {
		return out, nil
	}
	if err := check(state.Saga.Row, *d.Writes); err != nil {
		return out, err
	}
	if err := s.put(*state.Saga, *d.Writes, marks{}); err != nil {
		return out, err
	}
	out.Decision = &d.Writes.Decision
	return out, nil
}

// Callbacks are a saga's ledger rows, oldest first.
func (db *DB) Callbacks(ctx context.Context, sagaID string, after int64, limit int) (es []store.CallbackEntry, err error) {
	err = db.read(ctx, "callbacks of saga "+sagaID, func(q querier) error {
		es, err = all(q, func(sc scanner) (e store.CallbackEntry, err error) {
			var payload string
			err = sc.Scan(&e.Seq, &e.ID, &e.SagaID, &e.Kind, &e.Source, &e.RequestID, &e.Verdict, &e.Rule, &e.Actor, &payload,
				moment{&e.At}, moment{&e.AppliedAt})
			e.Payload = json.RawMessage(payload)
			return e, err
		}, `
SELECT seq, callback_id, saga_id, kind, source, request_id, verdict, rule, actor, payload, at, applied_at
FROM callbacks WHERE saga_id = ? AND seq > ? ORDER BY seq LIMIT ?`, sagaID, after, limitOf(limit))
		return err
	})
	return es, err
}
