package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// StartChange is the door of flow change, in one transaction.
func (db *DB) StartChange(ctx context.Context, in store.ChangeDoor, decide func(store.DoorState) (store.StartChange, error)) (store.ChangeStarted, error) {
	var out store.ChangeStarted
	var refusal error // decide's own: it comes back as it is
	err := db.write(ctx, "start a change of "+in.Target, func(s *session) error {
		now := db.now()
		if in.Key != nil {
			first, err := s.replay(*in.Key)
			if err != nil {
				return err
			}
			if first != nil {
				out = *first
				return nil
			}
		}
		state := store.DoorState{Binding: store.Binding{Subject: in.Subject, Target: in.Target}, Now: now}
		b, err := one(s, scanBinding, selectBinding, in.Subject, in.Target)
		switch {
		case err == nil:
			state.Binding = b
			r, found, err := s.lockedSaga(b.OperationID)
			if err != nil {
				return err
			}
			if found {
				state.Old = &store.Locked{Row: r, Held: true, Now: now}
			}
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		w, err := decide(state)
		if err != nil {
			refusal = err
			return err
		}
		if err := s.startChange(in, state.Old, w, now); err != nil {
			return err
		}
		r := w.New.Row
		out = store.ChangeStarted{OperationID: r.ID, State: r.State, Status: w.Status}
		return nil
	})
	switch {
	case refusal != nil:
		return store.ChangeStarted{}, refusal
	case err != nil:
		return store.ChangeStarted{}, err
	}
	return out, nil
}

// replay is what the first request with this key was answered; nil for a new key.
func (s *session) replay(k store.IdempotencyKey) (*store.ChangeStarted, error) {
	out := store.ChangeStarted{Replayed: true}
	hash, err := one(s, func(sc scanner) (h string, err error) {
		return h, sc.Scan(&h, &out.OperationID, &out.State, &out.Status)
	}, `SELECT hash, operation_id, state, status FROM idempotency_keys WHERE scope = ? AND key = ?`, k.Scope, k.Key)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case hash != k.Hash:
		return nil, store.ErrIdempotencyMismatch
	}
	return &out, nil
}

func (s *session) startChange(in store.ChangeDoor, old *store.Locked, w store.StartChange, now time.Time) error {
	if err := checkText("a binding", in.Subject, in.Target, w.Status); err != nil {
		return err
	}
	if err := s.begin(old, w.Old, w.New, now); err != nil {
		return err
	}
	r := w.New.Row
	for n, f := range w.Inputs {
		if err := checkText("a file", f.Path, f.Action, f.Content); err != nil {
			return err
		}
		if _, err := s.exec(`INSERT INTO change_inputs (saga_id, n, path, action, content) VALUES (?, ?, ?, ?, ?)`,
			r.ID, n, f.Path, f.Action, f.Content); err != nil {
			return err
		}
	}
	if _, err := s.exec(`
INSERT INTO bindings (subject_id, target_key, operation_id, status, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (subject_id, target_key) DO UPDATE SET operation_id = ?3, status = ?4, updated_at = ?5`,
		in.Subject, in.Target, r.ID, w.Status, micros(now)); err != nil {
		return err
	}
	if k := in.Key; k != nil {
		if err := checkText("an idempotency key", k.Scope, k.Key, k.Hash); err != nil {
			return err
		}
		_, err := s.exec(`INSERT INTO idempotency_keys (scope, key, hash, operation_id, state, status, at) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			k.Scope, k.Key, k.Hash, r.ID, string(r.State), w.Status, micros(now))
		return err
	}
	return nil
}

// putRefs keeps what callbacks without an operation id find a saga by.
func (s *session) putRefs(old, r saga.Row) error {
	if bytes.Equal(old.Data, r.Data) {
		return nil
	}
	iid, commit := store.Refs(r)
	if before, was := store.Refs(old); before == iid && was == commit || iid == 0 && commit == "" {
		return nil
	}
	_, err := s.exec(`
INSERT INTO change_refs (saga_id, project, mr_iid, merge_commit) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (saga_id) DO UPDATE SET mr_iid = ?3, merge_commit = ?4`, r.ID, r.About.Project, iid, commit)
	return err
}

// putApplied notes on the ledger that early callbacks were applied now.
func (s *session) putApplied(ids []string, now time.Time) error {
	for _, id := range ids {
		if _, err := s.exec(`UPDATE callbacks SET applied_at = ? WHERE callback_id = ?`, micros(now), id); err != nil {
			return err
		}
	}
	return nil
}

const selectBinding = `
SELECT subject_id, target_key, status, operation_id, updated_at FROM bindings WHERE subject_id = ? AND target_key = ?`

func scanBinding(sc scanner) (b store.Binding, err error) {
	return b, sc.Scan(&b.Subject, &b.Target, &b.Status, &b.OperationID, moment{&b.UpdatedAt})
}

// Binding reads the outward row of a subject and a target.
func (db *DB) Binding(ctx context.Context, subject, target string) (b store.Binding, err error) {
	err = db.read(ctx, fmt.Sprintf("binding of %q and %q", subject, target), func(q querier) error {
		b, err = one(q, scanBinding, selectBinding, subject, target)
		return err
	})
	return b, err
}

// Inputs are a saga's submitted files, in the order they were given.
func (db *DB) Inputs(ctx context.Context, sagaID string) (in []store.Input, err error) {
	err = db.read(ctx, "inputs of saga "+sagaID, func(q querier) error {
		in, err = all(q, func(sc scanner) (f store.Input, err error) {
			return f, sc.Scan(&f.Path, &f.Action, &f.Content)
		}, `SELECT path, action, content FROM change_inputs WHERE saga_id = ? ORDER BY n`, sagaID)
		return err
	})
	return in, err
}

// OperationOf finds the newest saga with this merge commit, else with this
// merge request of the project.
func (db *DB) OperationOf(ctx context.Context, project, mergeCommit string, mrIID int64) (id string, err error) {
	err = db.read(ctx, "operation of a deploy", func(q querier) error {
		err = sql.ErrNoRows
		if mergeCommit != "" {
			id, err = one(q, scanText, `SELECT saga_id FROM change_refs WHERE merge_commit = ? AND merge_commit <> '' ORDER BY saga_id DESC LIMIT 1`, mergeCommit)
		}
		if errors.Is(err, sql.ErrNoRows) && mrIID != 0 {
			id, err = one(q, scanText, `SELECT saga_id FROM change_refs WHERE project = ? AND mr_iid = ? ORDER BY saga_id DESC LIMIT 1`, project, mrIID)
		}
		return err
	})
	return id, err
}

// LiveSince lists the deploys that went live after since, newest first.
func (db *DB) LiveSince(ctx context.Context, project, base string, since time.Time, limit int) (out []store.DeployRecord, err error) {
	err = db.read(ctx, "live since", func(q querier) error {
		out, err = all(q, func(sc scanner) (r store.DeployRecord, err error) {
			return r, sc.Scan(&r.Project, &r.Base, &r.MRIID, &r.MergeCommit, &r.Result)
		}, `
SELECT project, base, mr_iid, merge_commit, result FROM deploy_callbacks
WHERE project = ? AND base = ? AND result = 'live' AND at > ? ORDER BY at DESC LIMIT ?`, project, base, since.UnixMicro(), limit) // the zero time is a long time ago
		return err
	})
	return out, err
}

// ApproveMR records that an account approved a head.
func (db *DB) ApproveMR(ctx context.Context, pullID, account, sha string) error {
	return db.write(ctx, "approve merge request "+pullID, func(s *session) error {
		if err := errors.Join(checkID("a pull request's id", pullID), checkText("an approval", account, sha)); err != nil {
			return err
		}
		_, err := s.exec(`INSERT INTO mr_approvals (pull_id, account, sha, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`, pullID, account, sha, micros(db.now()))
		return err
	})
}

// MRApprovals lists who approved which head, oldest first.
func (db *DB) MRApprovals(ctx context.Context, pullID string) (as []store.MRApproval, err error) {
	err = db.read(ctx, "approvals of merge request "+pullID, func(q querier) error {
		as, err = all(q, func(sc scanner) (a store.MRApproval, err error) {
			return a, sc.Scan(&a.Account, &a.SHA, moment{&a.At})
		}, `SELECT account, sha, at FROM mr_approvals WHERE pull_id = ? ORDER BY at, account`, pullID)
		return err
	})
	return as, err
}
