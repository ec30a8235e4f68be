package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// StartPull starts a saga for a pull request, and ends the old one with it.
func (db *DB) StartPull(ctx context.Context, pullID string, decide func(store.Pull, *store.Locked, time.Time) (store.StartPull, error)) (saga.Row, error) {
	var row saga.Row
	var refusal error // decide's own: it comes back as it is
	err := db.write(ctx, "start a saga for pull request "+pullID, func(s *session) error {
		now := db.now()
		p, err := one(s, scanPull, selectPull+`WHERE pull_id = ?`, pullID)
		if err != nil {
			return err
		}
		var old *store.Locked
		if p.OperationID != "" {
			r, found, err := s.lockedSaga(p.OperationID)
			if err != nil {
				return err
			}
			if found {
				old = &store.Locked{Row: r, Held: true, Now: now}
			}
		}
		in, err := decide(p, old, now)
		if err != nil {
			refusal = err
			return err
		}
		row = in.New.Row
		return s.start(p, old, in, now)
	})
	switch {
	case refusal != nil:
		return saga.Row{}, refusal
	case err != nil:
		return saga.Row{}, err
	}
	return row, nil
}

// start writes what a decision to start holds: the old saga's end, the new
// saga, the pull request's row.
func (s *session) start(p store.Pull, old *store.Locked, in store.StartPull, now time.Time) error {
	if err := checkText("a pull request", in.Status); err != nil {
		return err
	}
	if err := s.begin(old, in.Old, in.New, now); err != nil {
		return err
	}
	_, err := s.exec(`UPDATE pull_requests SET operation_id = ?, saga_status = ?, updated_at = ? WHERE pull_id = ?`,
		in.New.Row.ID, in.Status, micros(now), p.ID)
	return err
}

// begin ends the old saga, where there is one to end, and writes the new one.
func (s *session) begin(old *store.Locked, end *store.Writes, d saga.Decision, now time.Time) error {
	if end != nil {
		if old == nil {
			return fmt.Errorf("%w: there is no old saga to end", store.ErrConflict)
		}
		if err := check(old.Row, *end); err != nil {
			return err
		}
		if err := s.put(*old, *end, marks{}); err != nil {
			return err
		}
	}
	r := d.Row
	if r.ID == "" {
		return fmt.Errorf("%w: the new saga has no id", store.ErrConflict)
	}
	if err := errors.Join(checkID("a saga's id", r.ID), checkDecision(d)); err != nil {
		return err
	}
	f := failureOf(r)
	if _, err := s.exec(`
INSERT INTO saga_instances
    (saga_id, flow, flow_version, flow_order, aggregate_id, subject, target, project, title, created_at, state, version,
     failed_step, error_kind, last_error, hint, data, waiting_since, updated_at, closed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.Flow, r.FlowVersion, string(r.Order), r.AggregateID, r.About.Subject, r.About.Target, r.About.Project, r.About.Title,
		micros(r.CreatedAt), string(r.State), r.Version, string(f.Step), string(f.Kind), f.Error, f.Hint, dataText(r.Data),
		micros(r.WaitingSince), micros(r.UpdatedAt), micros(r.ClosedAt)); err != nil {
		return err
	}
	if err := s.putRefs(saga.Row{}, r); err != nil {
		return err
	}
	if err := s.putTrail(d, now); err != nil {
		return err
	}
	return s.putCommand(r, r.Command, marks{})
}

// Pull reads a pull request by its id.
func (db *DB) Pull(ctx context.Context, id string) (p store.Pull, err error) {
	err = db.read(ctx, "pull request "+id, func(q querier) error {
		p, err = one(q, scanPull, selectPull+`WHERE pull_id = ?`, id)
		return err
	})
	return p, err
}

// Pulls lists pull requests, newest first.
func (db *DB) Pulls(ctx context.Context, f store.PullFilter) (ps []store.Pull, err error) {
	var w where
	w.equal("repo", f.Repo)
	w.equal("CASE WHEN saga_status IN ('', 'superseded') THEN forge_state ELSE saga_status END", f.Status)
	w.contains(f.Query, "title", "repo", "source", "target")
	w.before(f.Before, "created_at", "pull_id")
	end, args := w.list("created_at DESC, pull_id DESC", f.Limit)
	err = db.read(ctx, "list pull requests", func(q querier) error {
		ps, err = all(q, scanPull, selectPull+end, args...)
		return err
	})
	return ps, err
}

// Watchers lists who watches a pull request, by name.
func (db *DB) Watchers(ctx context.Context, pullID string) (names []string, err error) {
	err = db.read(ctx, "watchers of pull request "+pullID, func(q querier) error {
		names, err = all(q, scanText, `SELECT watcher FROM watchers WHERE pull_id = ? ORDER BY watcher`, pullID)
		return err
	})
	return names, err
}

// AddWatchers adds those that are not there yet.
func (db *DB) AddWatchers(ctx context.Context, pullID string, names []string) error {
	return db.write(ctx, "watch pull request "+pullID, func(s *session) error {
		if _, err := one(s, scanInt, `SELECT 1 FROM pull_requests WHERE pull_id = ?`, pullID); err != nil {
			return err
		}
		return s.addWatchers(pullID, names)
	})
}

func (s *session) addWatchers(pullID string, names []string) error {
	if err := checkText("a watcher", names...); err != nil {
		return err
	}
	for _, n := range names {
		if _, err := s.exec(`INSERT INTO watchers (pull_id, watcher) VALUES (?, ?) ON CONFLICT DO NOTHING`, pullID, n); err != nil {
			return err
		}
	}
	return nil
}

// Receipts reads whom a saga's notification has reached.
func (db *DB) Receipts(ctx context.Context, sagaID string) (map[string]store.Receipt, error) {
	out := map[string]store.Receipt{}
	err := db.read(ctx, "receipts of saga "+sagaID, func(q querier) error {
		rs, err := all(q, func(sc scanner) (r store.Receipt, err error) {
			return r, sc.Scan(&r.Recipient, &r.DeliveryID, moment{&r.At})
		}, `SELECT recipient, delivery_id, at FROM notification_receipts WHERE saga_id = ?`, sagaID)
		for _, r := range rs {
			out[r.Recipient] = r
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// AddReceipt records that a recipient was reached; the first record stays.
func (db *DB) AddReceipt(ctx context.Context, sagaID string, r store.Receipt) error {
	return db.write(ctx, "receipt for saga "+sagaID, func(s *session) error {
		if err := errors.Join(checkID("a saga's id", sagaID), checkID("a delivery's id", r.DeliveryID), checkText("a recipient", r.Recipient)); err != nil {
			return err
		}
		_, err := s.exec(`
INSERT INTO notification_receipts (saga_id, recipient, delivery_id, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			sagaID, r.Recipient, r.DeliveryID, micros(db.orNow(r.At)))
		return err
	})
}
