package sqlite

import (
	"context"
	"database/sql"

	"github.com/mergeflow/mergeflow/internal/store"
)

// auditCheck is one invariant as a query for what breaks it: a saga's id and a
// sentence about it.
type auditCheck struct{ invariant, sql string }

// auditStates is the tables of the flows, which every check may join; bounds
// are the values that come with the call.
const auditStates = `
WITH bounds AS (SELECT ?2 AS lease), st AS MATERIALIZED (
    SELECT value->>'flow' AS flow, value->>'version' AS version, value->>'state' AS state, value->>'kind' AS kind,
           value->>'status' AS status, value->>'command' AS command, value->>'attempts' AS attempts FROM json_each(?1))
`

// ofState joins a saga with its state's row of the table.
const ofState = `JOIN st k ON k.flow = s.flow AND k.version = s.flow_version AND k.state = s.state`

var auditChecks = []auditCheck{
	{"I1", `SELECT s.saga_id, printf('is at version %d, its history has %d entries, %d to %d', s.version, h.n, h.low, h.high)
FROM saga_instances s LEFT JOIN (
    SELECT saga_id, count(*) AS n, min(seq) AS low, max(seq) AS high FROM saga_history GROUP BY saga_id) h ON h.saga_id = s.saga_id
WHERE s.version <> coalesce(h.n, 0) OR h.low <> 1 OR h.high <> s.version`},
	{"I1", `SELECT saga_id, printf('entry %d of its history leaves %s, the one before it entered %s', seq, from_state, came)
FROM (SELECT saga_id, seq, from_state, lag(to_state, 1, '') OVER (PARTITION BY saga_id ORDER BY seq) AS came FROM saga_history)
WHERE from_state <> came`},
	{"I2", `SELECT s.saga_id, printf('stands in %s, its history ends in %s', s.state, h.to_state)
FROM saga_instances s JOIN saga_history h ON h.saga_id = s.saga_id AND h.seq = s.version WHERE h.to_state <> s.state`},
	{"I2", `SELECT h.saga_id, 'has a history and is gone itself' FROM saga_history h
WHERE h.seq = 1 AND NOT EXISTS (SELECT 1 FROM saga_instances s WHERE s.saga_id = h.saga_id)`},
	{"I2", `SELECT s.saga_id, printf('its command is %s in state %s', o.type, s.state)
FROM outbox_events o JOIN saga_instances s ON s.saga_id = o.saga_id ` + ofState + `
WHERE k.kind IN ('running', 'waiting') AND substr(o.type, -length(s.state || k.command) - 2) <> '/' || s.state || '/' || k.command`},
	{"I2", `SELECT s.saga_id, printf('is in %s, its pull request says %s instead of %s', s.state, p.saga_status, k.status)
FROM pull_requests p JOIN saga_instances s ON s.saga_id = p.operation_id ` + ofState + ` WHERE p.saga_status <> k.status`},
	{"I2", `SELECT s.saga_id, printf('is in %s, its binding says %s instead of %s', s.state, b.status, k.status)
FROM bindings b JOIN saga_instances s ON s.saga_id = b.operation_id ` + ofState + ` WHERE b.status <> k.status`},
	{"I3", `SELECT s.saga_id, printf('has no command in %s, a %s state', s.state, k.kind)
FROM saga_instances s ` + ofState + `
WHERE s.closed_at IS NULL AND k.kind IN ('running', 'waiting') AND NOT EXISTS (SELECT 1 FROM outbox_events o WHERE o.saga_id = s.saga_id)`},
	{"I3", `SELECT s.saga_id, printf('has a command in %s, a %s state', s.state, k.kind)
FROM outbox_events o JOIN saga_instances s ON s.saga_id = o.saga_id ` + ofState + ` WHERE k.kind IN ('failed', 'final')`},
	{"I3", `SELECT o.saga_id, 'a command has no saga: ' || o.type
FROM outbox_events o WHERE NOT EXISTS (SELECT 1 FROM saga_instances s WHERE s.saga_id = o.saga_id)`},
	{"I3", `SELECT max(saga_id), printf('is the newest of %d that are live for one aggregate', count(*))
FROM saga_instances WHERE closed_at IS NULL GROUP BY flow, aggregate_id HAVING count(*) > 1`},
	{"I5", `SELECT saga_id, 'half a lease: token and end go together' FROM outbox_events WHERE (lease_token IS NULL) <> (lease_until IS NULL)`},
	{"I5", `SELECT saga_id, printf('is leased until %s', strftime('%FT%TZ', lease_until / 1000000, 'unixepoch'))
FROM outbox_events WHERE lease_until > (SELECT lease FROM bounds)`},
	{"I6", `SELECT s.saga_id, printf('waits in %s without a deadline', s.state)
FROM outbox_events o JOIN saga_instances s ON s.saga_id = o.saga_id ` + ofState + ` WHERE k.kind = 'waiting' AND o.deadline_at IS NULL`},
	{"I6", `SELECT s.saga_id, printf('stays in %s, which is only passed', s.state) FROM saga_instances s ` + ofState + ` WHERE k.kind = 'passing'`},
	{"I7", `SELECT s.saga_id, printf('is in %s and does not say which step failed', s.state)
FROM saga_instances s ` + ofState + ` WHERE k.kind = 'failed' AND s.failed_step = ''`},
	{"I8", `SELECT s.saga_id, 'a callback can''t find it by its merge request or merge commit'
FROM saga_instances s WHERE s.flow = 'change' AND coalesce(s.data->>'mrIid', s.data->>'mergeCommit') IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM change_refs r WHERE r.saga_id = s.saga_id AND r.project = s.project
    AND r.mr_iid = coalesce(s.data->>'mrIid', 0) AND r.merge_commit = coalesce(s.data->>'mergeCommit', ''))`},
	{"I10", `SELECT s.saga_id, printf('is in %s, a %s state, and closed: %s', s.state, k.kind, iif(s.closed_at IS NULL, 'f', 't'))
FROM saga_instances s ` + ofState + ` WHERE (k.kind = 'final') <> (s.closed_at IS NOT NULL)`},
	{"I10", `SELECT saga_id, printf('is closed in %s and still keeps an event', state)
FROM saga_instances WHERE closed_at IS NOT NULL AND (early IS NOT NULL OR pending_event IS NOT NULL)`},
	{"I12", `SELECT s.saga_id, printf('has begun %s %d times, %d are allowed: its process ends in it, or the number was lowered', s.state, o.attempt, k.attempts)
FROM outbox_events o JOIN saga_instances s ON s.saga_id = o.saga_id ` + ofState + ` WHERE k.attempts > 0 AND o.attempt > k.attempts`},
	{"I13", `SELECT s.saga_id, printf('knows %s as its merge, pull request %d of %s has %s', s.data->>'mergeCommit', p.iid, p.repo, p.merge_commit)
FROM pull_requests p JOIN saga_instances s ON s.saga_id = p.operation_id WHERE p.merge_commit <> '' AND p.merge_commit <> s.data->>'mergeCommit'`},
	{"I13", `SELECT s.saga_id, printf('knows %s as its merge, merge request %d of %s has %s', r.merge_commit, p.iid, p.repo, p.merge_commit)
FROM change_refs r JOIN saga_instances s ON s.saga_id = r.saga_id
JOIN pull_requests p ON p.forge = s.data->>'forge' AND p.repo = r.project AND p.iid = r.mr_iid
WHERE r.merge_commit <> '' AND p.merge_commit <> '' AND p.merge_commit <> r.merge_commit`},
	{"I15", `SELECT p.operation_id, printf('is gone; pull request %d of %s names it', p.iid, p.repo)
FROM pull_requests p WHERE p.operation_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM saga_instances s WHERE s.saga_id = p.operation_id)`},
	{"I15", `SELECT b.operation_id, printf('is gone; the binding of %s and %s names it', b.subject_id, b.target_key)
FROM bindings b WHERE NOT EXISTS (SELECT 1 FROM saga_instances s WHERE s.saga_id = b.operation_id)`},
	{"I15", `SELECT i.operation_id, 'is gone; an idempotency key answers with it'
FROM idempotency_keys i WHERE NOT EXISTS (SELECT 1 FROM saga_instances s WHERE s.saga_id = i.operation_id)`},
	{"I15", `SELECT b.operation_id, 'has lost the files that were submitted'
FROM bindings b WHERE NOT EXISTS (SELECT 1 FROM change_inputs i WHERE i.saga_id = b.operation_id)`},
	{store.Once, `SELECT NULL, printf('delivery %s was recorded %d times', delivery_id, count(*))
FROM notification_receipts GROUP BY delivery_id HAVING count(*) > 1`},
	{store.Once, `SELECT max(saga_id), printf('a callback from %s took effect %d times', source, count(*))
FROM callbacks WHERE verdict IN ('applied', 'early') GROUP BY source, request_id HAVING count(*) > 1`},
	{store.Once, `SELECT c.saga_id, printf('a callback from %s is in the ledger and not among the keys', c.source)
FROM callbacks c WHERE NOT EXISTS (SELECT 1 FROM callback_keys k WHERE k.source = c.source AND k.request_id = c.request_id)`},
}

// auditState is a state as the checks join it.
type auditState struct {
	Flow     string `json:"flow"`
	Version  int    `json:"version"`
	State    string `json:"state"`
	Kind     string `json:"kind"`
	Status   string `json:"status"`
	Command  string `json:"command"`
	Attempts int    `json:"attempts"`
}

// Audit asks the checks one by one, in one snapshot.
func (db *DB) Audit(ctx context.Context, flows []store.AuditFlow, limit int) ([]store.Finding, error) {
	limit = limitOf(limit)
	states := []auditState{}
	for _, f := range flows {
		for _, s := range f.States {
			states = append(states, auditState{f.Name, f.Version, string(s.State), s.Kind.String(), string(s.Status), string(s.Command), f.Attempts})
		}
	}
	list, err := toJSON(states)
	if err != nil {
		return nil, wrap("audit", err)
	}
	latest := db.now().Add(store.MaxLease).UnixMicro()
	var out []store.Finding
	err = db.snapshot(ctx, "audit", func(q querier) error {
		for _, c := range auditChecks {
			found, err := all(q, func(sc scanner) (store.Finding, error) {
				f := store.Finding{Invariant: c.invariant}
				err := sc.Scan(text{&f.SagaID}, &f.Detail)
				return f, err
			}, auditStates+`SELECT * FROM (`+c.sql+`) LIMIT ?3`, list, latest, limit-len(out))
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
		return nil, err
	}
	return out, nil
}

// snapshot runs f, all of whose statements see the database as it is now.
func (db *DB) snapshot(ctx context.Context, op string, f func(querier) error) error {
	if db.reader == nil {
		return db.read(ctx, op, f) // f has the writer's turn: nothing changes
	}
	conn, err := db.reader.Conn(ctx)
	if err != nil {
		return wrap(op, err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return wrap(op, err)
	}
	defer conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	return wrap(op, f(single{ctx, conn}))
}

// single is one connection of the read pool on behalf of one call.
type single struct {
	ctx  context.Context
	conn *sql.Conn
}

func (s single) query(query string, args ...any) (*sql.Rows, error) {
	return s.conn.QueryContext(s.ctx, query, args...)
}
