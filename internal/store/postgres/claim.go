package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/store"
)

// Conditions on an outbox row. A statement that uses them begins with clock: the
// time is asked once, and a call in the condition itself could not be used with
// an index.
const (
	clock    = `clock AS MATERIALIZED (SELECT mergeflow_now() AS t)`
	now      = `(SELECT t FROM clock)`
	unleased = `(o.lease_until IS NULL OR o.lease_until <= ` + now + `)`
	due      = `o.available_at <= ` + now + ` AND ` + unleased
	// neverClaimed commands may be past their limit in the queue.
	neverClaimed = `o.deadline_at IS NULL AND o.attempt = 0`
	overdue      = `(o.deadline_at <= ` + now + `
		OR (` + neverClaimed + ` AND o.queued_since <= ` + now + ` - $6::bigint * interval '1 microsecond'))`
)

// claimSQL leases in one statement. First it shares the maximum among the kinds
// that have something due, taking turns; then each kind's oldest commands are
// locked, whoever holds one being passed by; then they are leased. What is
// looked at grows with what is asked for, not with what is stored: both looks
// walk the index from its oldest entry of a kind, and the rows of what they took
// are looked up one by one.
func claimSQL(onlyOverdue bool) string {
	which := due
	if onlyOverdue {
		which += ` AND ` + overdue
	}
	return `
WITH ` + clock + `, kind AS MATERIALIZED (
	SELECT * FROM unnest($1::text[], $2::int[], $3::bigint[], $4::bool[]) WITH ORDINALITY AS k(type, cap, deadline, look, turn)
), share AS MATERIALIZED (
	SELECT turn, count(*) AS n FROM (
		SELECT k.turn FROM kind k CROSS JOIN LATERAL (
			SELECT row_number() OVER () AS round FROM (
				SELECT FROM outbox_events o WHERE o.type = k.type AND ` + which + `
				ORDER BY o.available_at LIMIT least(k.cap, $5::int)) x) y
		ORDER BY y.round, k.turn LIMIT $5) z
	GROUP BY turn
), taken AS MATERIALIZED (
	SELECT d.saga_id, d.overdue, k.deadline, k.look
	FROM share JOIN kind k USING (turn) CROSS JOIN LATERAL (
		SELECT o.saga_id, coalesce(` + overdue + `, false) AS overdue
		FROM outbox_events o WHERE o.type = k.type AND ` + which + `
		ORDER BY o.available_at LIMIT share.n FOR UPDATE SKIP LOCKED) d
), claim AS (
	SELECT t.saga_id, t.overdue,
		NOT (t.overdue OR t.look OR s.pending_event IS NOT NULL) AS counted,
		NOT t.overdue AND t.deadline > 0 AS dated,
		` + now + ` + t.deadline * interval '1 microsecond' AS deadline_at
	FROM taken t JOIN saga_instances s ON ` + lookUp("s.saga_id", "t.saga_id") + `
)
UPDATE outbox_events o SET
	lease_token = gen_random_uuid(),
	lease_until = ` + now + ` + $7::bigint * interval '1 microsecond',
	held_for = NULL,
	attempt = o.attempt + c.counted::int,
	counted = c.counted,
	dated = c.dated AND o.deadline_at IS NULL,
	deadline_at = CASE WHEN c.dated THEN coalesce(o.deadline_at, c.deadline_at) ELSE o.deadline_at END
FROM claim c WHERE ` + lookUp("o.saga_id", "c.saga_id") + `
RETURNING o.saga_id, c.overdue, ` + now
}

var readClaimed = `SELECT ` + sagaColumns + `, ` + commandColumns + `
	FROM saga_instances s JOIN outbox_events o ON ` + lookUp("o.saga_id", "s.saga_id") + `
	WHERE s.saga_id = ANY($1) ORDER BY o.available_at, s.saga_id`

var claimAny, claimOverdue = claimSQL(false), claimSQL(true)

// Claim leases due commands. The sagas are read in a second statement: a row
// that the first one saw may be older than the command that it locked.
func (db *DB) Claim(ctx context.Context, in store.Claim) ([]store.Claimed, error) {
	if in.Max <= 0 || len(in.Kinds) == 0 {
		return nil, nil
	}
	// Kinds take turns at going first, so that a maximum smaller than the
	// number of busy kinds starves none of them.
	first := int(db.turn.Add(1)-1) % len(in.Kinds)
	var types []string
	var caps []int32
	var deadlines []int64
	var looks []bool
	for _, k := range append(slices.Clone(in.Kinds[first:]), in.Kinds[:first]...) {
		types = append(types, k.Type)
		caps = append(caps, int32(min(max(k.Cap, 0), in.Max)))
		deadlines = append(deadlines, k.Deadline.Microseconds())
		looks = append(looks, k.Look)
	}
	sql := claimAny
	if in.OverdueOnly {
		sql = claimOverdue
	}
	out, err := db.claim(ctx, sql, types, caps, deadlines, looks, in.Max, in.Queued.Microseconds(), in.Lease.Microseconds())
	return out, wrap("claim", err)
}

// claim is two round trips. Where the answer to its COMMIT is lost, the leases
// may be taken; nobody works under them and they end by themselves.
func (db *DB) claim(ctx context.Context, sql string, args ...any) (out []store.Claimed, err error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release() // a connection that is still in a transaction is closed by it

	var ids []pgtype.UUID
	overdue := map[string]bool{}
	var at time.Time
	b := &pgx.Batch{}
	b.Queue("BEGIN")
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		var id pgtype.UUID
		var late bool
		_, err := pgx.ForEachRow(rows, []any{&id, &late, &at}, func() error {
			ids, overdue[textOf(id)] = append(ids, id), late
			return nil
		})
		return err
	})
	if err := db.send(ctx, conn, b); err != nil {
		return nil, err
	}
	b = &pgx.Batch{}
	if len(ids) > 0 {
		b.Queue(readClaimed, ids).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				row, err := scanWhole(rows)
				if errors.Is(err, errUnreadable) {
					continue // its lease ends by itself; the others' work goes on
				}
				if err != nil {
					return err
				}
				out = append(out, store.Claimed{Row: row, Lease: store.Lease{SagaID: row.ID, Token: row.Command.LeaseToken},
					Overdue: overdue[row.ID], Now: at.UTC()})
			}
			return rows.Err()
		})
	}
	b.Queue("COMMIT")
	if err := db.send(ctx, conn, b); err != nil {
		return nil, err
	}
	return out, nil
}
