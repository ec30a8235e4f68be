package sqlite

import (
	"context"
	"time"

	"github.com/mergeflow/mergeflow/internal/store"
)

// Heartbeat extends the leases whose tokens the commands still carry.
func (db *DB) Heartbeat(ctx context.Context, leases []store.Lease, until time.Duration) (store.Beat, error) {
	var beat store.Beat
	if len(leases) == 0 {
		return beat, nil
	}
	err := db.write(ctx, "heartbeat", func(s *session) error {
		end := db.now().Add(until).UnixMicro()
		for _, l := range leases {
			interrupt, err := all(s, scanInt, `
UPDATE outbox_events SET lease_until = ? WHERE saga_id = ? AND lease_token = ?
RETURNING EXISTS (SELECT 1 FROM saga_instances s WHERE s.saga_id = outbox_events.saga_id AND s.pending_event IS NOT NULL)`,
				end, l.SagaID, l.Token)
			switch {
			case err != nil:
				return err
			case len(interrupt) == 0:
				beat.Lost = append(beat.Lost, l)
			case interrupt[0] != 0:
				beat.Interrupt = append(beat.Interrupt, l)
			}
		}
		return nil
	})
	if err != nil {
		return store.Beat{}, err
	}
	return beat, nil
}

// Release gives unstarted commands back, and undoes what their claims did.
func (db *DB) Release(ctx context.Context, leases []store.Lease) error {
	if len(leases) == 0 {
		return nil
	}
	return db.write(ctx, "release", func(s *session) error {
		for _, l := range leases {
			if _, err := s.exec(`
UPDATE outbox_events
SET lease_token = NULL, lease_until = NULL, attempt = attempt - counted,
    deadline_at = CASE WHEN dated THEN NULL ELSE deadline_at END, counted = 0, dated = 0
WHERE saga_id = ? AND lease_token = ?`, l.SagaID, l.Token); err != nil {
				return err
			}
		}
		return nil
	})
}

// clearLeases ends the leases of the process that had the file before. What a
// displaced worker of that process kept waiting is due now.
func (db *DB) clearLeases(ctx context.Context) error {
	return db.write(ctx, "clear leases", func(s *session) error {
		_, err := s.exec(`
UPDATE outbox_events
SET available_at = CASE WHEN held_for IS NULL THEN available_at ELSE min(available_at, ?) END,
    lease_token = NULL, lease_until = NULL, held_for = NULL, counted = 0, dated = 0
WHERE lease_token IS NOT NULL OR lease_until IS NOT NULL OR held_for IS NOT NULL`, micros(db.now()))
		return err
	})
}

// NextDue looks, for each kind, at the oldest command that nobody holds. Only
// where none is due does it look at the leased ones, which are as few as there
// are workers.
func (db *DB) NextDue(ctx context.Context, kinds []string) (in time.Duration, ok bool, err error) {
	list, err := toJSON(append([]string{}, kinds...))
	if err != nil {
		return 0, false, wrap("next due", err)
	}
	now := db.now()
	var at time.Time
	err = db.read(ctx, "next due", func(q querier) error {
		at, err = one(q, func(sc scanner) (t time.Time, err error) { return t, sc.Scan(moment{&t}) }, `
SELECT min(coalesce(
    (SELECT available_at FROM outbox_events
     WHERE type = k.value AND available_at <= ?2 AND (lease_until IS NULL OR lease_until <= ?2) ORDER BY available_at LIMIT 1),
    (SELECT min(t) FROM (
        SELECT min(lease_until) AS t FROM outbox_events WHERE type = k.value AND available_at <= ?2
        UNION ALL
        SELECT min(available_at) FROM outbox_events WHERE type = k.value AND available_at > ?2))))
FROM json_each(?1) k`, list, now.UnixMicro())
		return err
	})
	if err != nil || at.IsZero() {
		return 0, false, err
	}
	return max(0, at.Sub(now)), true, nil
}
