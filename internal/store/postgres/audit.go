package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/store"
)

// auditCheck is one invariant as a query for what breaks it: a saga's id and a
// sentence about it.
type auditCheck struct{ invariant, sql string }

// auditStates is the tables of the flows, which every check may join.
const auditStates = `WITH st AS (
	SELECT * FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[])
		AS t(flow, version, state, kind, status, command, attempts))
`

// ofState joins a saga with its state's row of the table.
const ofState = `JOIN st k ON k.flow = s.flow AND k.version = s.flow_version AND k.state = s.state`

var auditChecks = []auditCheck{
	{"I1", `SELECT s.saga_id, format('is at version %s, its history has %s entries, %s to %s', s.version, coalesce(h.n, 0), h.low, h.high)
		FROM saga_instances s LEFT JOIN (
			SELECT saga_id, count(*) AS n, min(seq) AS low, max(seq) AS high FROM saga_history GROUP BY saga_id) h USING (saga_id)
		WHERE s.version <> coalesce(h.n, 0) OR h.low <> 1 OR h.high <> s.version`},
	{"I1", `SELECT saga_id, format('entry %s of its history leaves %s, the one before it entered %s', seq, from_state, came)
		FROM (SELECT saga_id, seq, from_state, lag(to_state, 1, '') OVER (PARTITION BY saga_id ORDER BY seq) AS came FROM saga_history) h
		WHERE from_state <> came`},
	{"I2", `SELECT s.saga_id, format('stands in %s, its history ends in %s', s.state, h.to_state)
		FROM saga_instances s JOIN saga_history h ON h.saga_id = s.saga_id AND h.seq = s.version WHERE h.to_state <> s.state`},
	{"I2", `SELECT h.saga_id, 'has a history and is gone itself' FROM saga_history h
		WHERE h.seq = 1 AND NOT EXISTS (SELECT FROM saga_instances s WHERE s.saga_id = h.saga_id)`},
	{"I2", `SELECT s.saga_id, format('its command is %s in state %s', o.type, s.state)
		FROM outbox_events o JOIN saga_instances s USING (saga_id) ` + ofState + `
		WHERE k.kind IN ('running', 'waiting') AND right(o.type, length(s.state || k.command) + 2) <> '/' || s.state || '/' || k.command`},
	{"I2", `SELECT s.saga_id, format('is in %s, its pull request says %s instead of %s', s.state, p.saga_status, k.status)
		FROM pull_requests p JOIN saga_instances s ON s.saga_id = p.operation_id ` + ofState + ` WHERE p.saga_status <> k.status`},
	{"I2", `SELECT s.saga_id, format('is in %s, its binding says %s instead of %s', s.state, b.status, k.status)
		FROM bindings b JOIN saga_instances s ON s.saga_id = b.operation_id ` + ofState + ` WHERE b.status <> k.status`},
	{"I3", `SELECT s.saga_id, format('has no command in %s, a %s state', s.state, k.kind)
		FROM saga_instances s ` + ofState + `
		WHERE s.closed_at IS NULL AND k.kind IN ('running', 'waiting') AND NOT EXISTS (SELECT FROM outbox_events o WHERE o.saga_id = s.saga_id)`},
	{"I3", `SELECT s.saga_id, format('has a command in %s, a %s state', s.state, k.kind)
		FROM outbox_events o JOIN saga_instances s USING (saga_id) ` + ofState + ` WHERE k.kind IN ('failed', 'final')`},
	{"I3", `SELECT o.saga_id, 'a command has no saga: ' || o.type
		FROM outbox_events o WHERE NOT EXISTS (SELECT FROM saga_instances s WHERE s.saga_id = o.saga_id)`},
	{"I3", `SELECT max(saga_id::text)::uuid, format('is the newest of %s that are live for one aggregate', count(*))
		FROM saga_instances WHERE closed_at IS NULL GROUP BY flow, aggregate_id HAVING count(*) > 1`},
	{"I5", `SELECT saga_id, 'half a lease: token and end go together' FROM outbox_events WHERE (lease_token IS NULL) <> (lease_until IS NULL)`},
	{"I5", `SELECT saga_id, format('is leased until %s', lease_until)
		FROM outbox_events WHERE lease_until > (SELECT mergeflow_now()) + $8::bigint * interval '1 microsecond'`},
	{"I6", `SELECT s.saga_id, format('waits in %s without a deadline', s.state)
		FROM outbox_events o JOIN saga_instances s USING (saga_id) ` + ofState + ` WHERE k.kind = 'waiting' AND o.deadline_at IS NULL`},
	{"I6", `SELECT s.saga_id, format('stays in %s, which is only passed', s.state) FROM saga_instances s ` + ofState + ` WHERE k.kind = 'passing'`},
	{"I7", `SELECT s.saga_id, format('is in %s and does not say which step failed', s.state)
		FROM saga_instances s ` + ofState + ` WHERE k.kind = 'failed' AND s.failed_step = ''`},
	{"I8", `SELECT s.saga_id, 'a callback can''t find it by its merge request or merge commit'
		FROM saga_instances s WHERE s.flow = 'change' AND coalesce(s.data->>'mrIid', s.data->>'mergeCommit') IS NOT NULL AND NOT EXISTS (
			SELECT FROM change_refs r WHERE r.saga_id = s.saga_id AND r.project = s.project
				AND r.mr_iid::text = coalesce(s.data->>'mrIid', '0') AND r.merge_commit = coalesce(s.data->>'mergeCommit', ''))`},
	{"I10", `SELECT s.saga_id, format('is in %s, a %s state, and closed: %s', s.state, k.kind, s.closed_at IS NOT NULL)
		FROM saga_instances s ` + ofState + ` WHERE (k.kind = 'final') <> (s.closed_at IS NOT NULL)`},
	{"I10", `SELECT saga_id, format('is closed in %s and still keeps an event', state)
		FROM saga_instances WHERE closed_at IS NOT NULL AND (early IS NOT NULL OR pending_event IS NOT NULL)`},
	{"I12", `SELECT s.saga_id, format('has begun %s %s times, %s are allowed: its process ends in it, or the number was lowered', s.state, o.attempt, k.attempts)
		FROM outbox_events o JOIN saga_instances s USING (saga_id) ` + ofState + ` WHERE k.attempts > 0 AND o.attempt > k.attempts`},
	{"I13", `SELECT s.saga_id, format('knows %s as its merge, pull request %s of %s has %s', s.data->>'mergeCommit', p.iid, p.repo, p.merge_commit)
		FROM pull_requests p JOIN saga_instances s ON s.saga_id = p.operation_id WHERE p.merge_commit <> '' AND p.merge_commit <> s.data->>'mergeCommit'`},
	{"I13", `SELECT s.saga_id, format('knows %s as its merge, merge request %s of %s has %s', r.merge_commit, p.iid, p.repo, p.merge_commit)
		FROM change_refs r JOIN saga_instances s USING (saga_id)
		JOIN pull_requests p ON p.forge = s.data->>'forge' AND p.repo = r.project AND p.iid = r.mr_iid
		WHERE r.merge_commit <> '' AND p.merge_commit <> '' AND p.merge_commit <> r.merge_commit`},
	{"I15", `SELECT p.operation_id, format('is gone; pull request %s of %s names it', p.iid, p.repo)
		FROM pull_requests p WHERE p.operation_id IS NOT NULL AND NOT EXISTS (SELECT FROM saga_instances s WHERE s.saga_id = p.operation_id)`},
	{"I15", `SELECT b.operation_id, format('is gone; the binding of %s and %s names it', b.subject_id, b.target_key)
		FROM bindings b WHERE NOT EXISTS (SELECT FROM saga_instances s WHERE s.saga_id = b.operation_id)`},
	{"I15", `SELECT i.operation_id, 'is gone; an idempotency key answers with it'
		FROM idempotency_keys i WHERE NOT EXISTS (SELECT FROM saga_instances s WHERE s.saga_id = i.operation_id)`},
	{"I15", `SELECT b.operation_id, 'has lost the files that were submitted'
		FROM bindings b WHERE NOT EXISTS (SELECT FROM change_inputs i WHERE i.saga_id = b.operation_id)`},
	{store.Once, `SELECT NULL::uuid, format('delivery %s was recorded %s times', delivery_id, count(*))
		FROM notification_receipts GROUP BY delivery_id HAVING count(*) > 1`},
	{store.Once, `SELECT max(saga_id::text)::uuid, format('a callback from %s took effect %s times', source, count(*))
		FROM callbacks WHERE verdict IN ('applied', 'early') GROUP BY source, request_id HAVING count(*) > 1`},
	{store.Once, `SELECT c.saga_id, format('a callback from %s is in the ledger and not among the keys', c.source)
		FROM callbacks c WHERE NOT EXISTS (SELECT FROM callback_keys k WHERE k.source = c.source AND k.request_id = c.request_id)`},
}

// Audit asks the checks one by one, in one snapshot.
func (db *DB) Audit(ctx context.Context, flows []store.AuditFlow, limit int) ([]store.Finding, error) {
	limit = limitOf(limit)
	args := append(auditArgs(flows), store.MaxLease.Microseconds())
	var out []store.Finding
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// What looks at everything is faster in the tables' own order, and these
		// plans are made once: nothing stays prepared.
		if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = on`); err != nil {
			return err
		}
		for _, c := range auditChecks {
			rows, err := tx.Query(ctx, auditStates+`SELECT saga_id, detail FROM (`+c.sql+`) AS x(saga_id, detail)
				WHERE $8::bigint > 0 LIMIT $9`, append(append([]any{pgx.QueryExecModeExec}, args...), limit-len(out))...)
			if err != nil {
				return err
			}
			found, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (store.Finding, error) {
				var id pgtype.UUID
				f := store.Finding{Invariant: c.invariant}
				err := r.Scan(&id, &f.Detail)
				f.SagaID = textOf(id)
				return f, err
			})
			if err != nil {
				return err
			}
			if out = append(out, found...); len(out) >= limit {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return nil, wrap("audit", err)
	}
	return out, nil
}

func auditArgs(flows []store.AuditFlow) []any {
	names, states, kinds, statuses, commands := []string{}, []string{}, []string{}, []string{}, []string{}
	versions, attempts := []int32{}, []int32{}
	for _, f := range flows {
		for _, s := range f.States {
			names, versions, states = append(names, f.Name), append(versions, int32(f.Version)), append(states, string(s.State))
			attempts = append(attempts, int32(f.Attempts))
			kinds, statuses, commands = append(kinds, s.Kind.String()), append(statuses, string(s.Status)), append(commands, string(s.Command))
		}
	}
	return []any{names, versions, states, kinds, statuses, commands, attempts}
}
