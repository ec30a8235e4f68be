package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/store"
)

// heartbeatSQL locks in order and passes by what a commit holds: a beat that
// waited would deadlock with group commits again and again.
var heartbeatSQL = `
WITH mine AS MATERIALIZED (
	SELECT o.saga_id FROM outbox_events o JOIN unnest($1::uuid[], $2::uuid[]) AS t(saga_id, token)
		ON ` + lookUp("o.saga_id", "t.saga_id") + ` AND o.lease_token = t.token
	ORDER BY t.saga_id FOR UPDATE OF o SKIP LOCKED
), extended AS (
	UPDATE outbox_events o SET lease_until = (SELECT mergeflow_now()) + $3::bigint * interval '1 microsecond'
	FROM mine WHERE ` + lookUp("o.saga_id", "mine.saga_id") + `
)
SELECT o.saga_id IS NOT NULL, s.pending_event IS NOT NULL
FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS t(saga_id, token, i)
	LEFT JOIN outbox_events o ON ` + lookUp("o.saga_id", "t.saga_id") + ` AND o.lease_token = t.token
	LEFT JOIN saga_instances s ON ` + lookUp("s.saga_id", "o.saga_id") + `
ORDER BY t.i`

var releaseSQL = `
WITH mine AS MATERIALIZED (
	SELECT o.saga_id, o.lease_token FROM outbox_events o JOIN unnest($1::uuid[], $2::uuid[]) AS t(saga_id, token)
		ON ` + lookUp("o.saga_id", "t.saga_id") + ` AND o.lease_token = t.token
	ORDER BY t.saga_id FOR UPDATE OF o
)
UPDATE outbox_events o SET lease_token = NULL, lease_until = NULL, counted = false, dated = false,
	attempt = o.attempt - o.counted::int,
	deadline_at = CASE WHEN o.dated THEN NULL ELSE o.deadline_at END
FROM mine WHERE ` + lookUp("o.saga_id", "mine.saga_id") + ` AND o.lease_token = mine.lease_token`

// Heartbeat extends leases. One that a commit holds just now is neither
// extended nor reported; the next beat tells.
func (db *DB) Heartbeat(ctx context.Context, leases []store.Lease, until time.Duration) (store.Beat, error) {
	var beat store.Beat
	known, ids, tokens := leaseIDs(leases, &beat.Lost)
	if len(known) == 0 {
		return beat, nil
	}
	rows, err := db.pool.Query(ctx, heartbeatSQL, ids, tokens, until.Microseconds())
	if err != nil {
		return store.Beat{}, wrap("heartbeat", err)
	}
	defer rows.Close()
	for i := 0; rows.Next(); i++ {
		var held, pending bool
		if err := rows.Scan(&held, &pending); err != nil {
			return store.Beat{}, wrap("heartbeat", err)
		}
		switch {
		case !held:
			beat.Lost = append(beat.Lost, known[i])
		case pending:
			beat.Interrupt = append(beat.Interrupt, known[i])
		}
	}
	if err := rows.Err(); err != nil {
		return store.Beat{}, wrap("heartbeat", err)
	}
	return beat, nil
}

// Release undoes claims whose commands were not begun. A row that a commit
// holds is waited for: the commit can't be this worker's own.
func (db *DB) Release(ctx context.Context, leases []store.Lease) error {
	known, ids, tokens := leaseIDs(leases, nil)
	if len(known) == 0 {
		return nil
	}
	_, err := db.pool.Exec(ctx, releaseSQL, ids, tokens)
	return wrap("release", err)
}

// nextDueSQL asks each kind for its first command that nobody holds, and for the
// first end among the leases before it: in the order of the index, leased rows
// come first, because they have been due.
const nextDueSQL = `
WITH ` + clock + `
SELECT ceil(extract(epoch FROM min(least(free.at, held.at)) - ` + now + `) * 1000000)::bigint
FROM unnest($1::text[]) AS k(type)
LEFT JOIN LATERAL (
	SELECT o.available_at AS at FROM outbox_events o WHERE o.type = k.type AND ` + unleased + `
	ORDER BY o.available_at LIMIT 1) free ON true
LEFT JOIN LATERAL (
	SELECT min(o.lease_until) AS at FROM outbox_events o
	WHERE o.type = k.type AND o.available_at <= least(coalesce(free.at, 'infinity'), ` + now + `)
		AND o.lease_until > ` + now + `) held ON true`

// NextDue is how long nothing of these kinds will be due.
func (db *DB) NextDue(ctx context.Context, kinds []string) (in time.Duration, ok bool, err error) {
	var us *int64
	err = db.pool.QueryRow(ctx, nextDueSQL, kinds).Scan(&us)
	if err != nil || us == nil {
		return 0, false, wrap("next due", err)
	}
	return max(0, time.Duration(*us)*time.Microsecond), true, nil
}

// leaseIDs keeps the leases that can name something; the others are lost.
func leaseIDs(leases []store.Lease, lost *[]store.Lease) (known []store.Lease, ids, tokens []pgtype.UUID) {
	for _, l := range leases {
		id, ok := idOf(l.SagaID)
		token, ok2 := idOf(l.Token)
		if ok && ok2 {
			known, ids, tokens = append(known, l), append(ids, id), append(tokens, token)
			continue
		}
		if lost != nil {
			*lost = append(*lost, l)
		}
	}
	return known, ids, tokens
}
