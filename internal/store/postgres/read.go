package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

const wholeSagas = `SELECT ` + sagaColumns + `, ` + commandColumns + ` FROM saga_instances s LEFT JOIN outbox_events o USING (saga_id)`

// Saga reads one saga with its command.
func (db *DB) Saga(ctx context.Context, id string) (saga.Row, error) {
	u, ok := idOf(id)
	if !ok {
		return saga.Row{}, fmt.Errorf("saga %q: %w", id, store.ErrNotFound)
	}
	rows, err := db.pool.Query(ctx, wholeSagas+` WHERE saga_id = $1`, u)
	if err != nil {
		return saga.Row{}, wrap("saga "+id, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanWhole)
	return r, wrap("saga "+id, err)
}

// Sagas lists sagas, newest first.
func (db *DB) Sagas(ctx context.Context, f store.SagaFilter) ([]saga.Row, error) {
	var q conditions
	for _, c := range []struct{ column, want string }{{"s.flow", f.Flow}, {"s.aggregate_id", f.Aggregate},
		{"s.subject", f.Subject}, {"s.target", f.Target}, {"s.project", f.Project}} {
		if c.want != "" {
			q.add(c.column+" = ?", c.want)
		}
	}
	if len(f.States) > 0 {
		states := make([]string, len(f.States))
		for i, s := range f.States {
			states[i] = string(s)
		}
		q.add("s.state = ANY(?)", states)
	}
	if f.OpenOnly {
		q.add("s.closed_at IS NULL")
	}
	if f.Query != "" {
		q.contains(f.Query, "s.title", "s.subject", "s.target", "s.project")
	}
	if !q.before(f.Before, "s.created_at", "s.saga_id") {
		return nil, nil
	}
	sql, args := q.sql(wholeSagas, `ORDER BY s.created_at DESC, s.saga_id DESC`, f.Limit)
	rows, err := db.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, wrap("sagas", err)
	}
	out, err := pgx.CollectRows(rows, scanWhole)
	return out, wrap("sagas", err)
}

// History reads transitions and notes, oldest first.
func (db *DB) History(ctx context.Context, id string, after store.Mark, limit int) ([]store.Entry, error) {
	u, ok := idOf(id)
	if !ok {
		return nil, nil
	}
	rows, err := db.pool.Query(ctx, `
		(SELECT seq, 0::bigint AS note, event, from_state, to_state, actor, detail, at FROM saga_history
			WHERE saga_id = $1 AND (seq, 0::bigint) > ($2, $3) ORDER BY seq LIMIT $4)
		UNION ALL
		(SELECT seq, note_id, event, '', '', actor, detail, at FROM saga_notes
			WHERE saga_id = $1 AND (seq, note_id) > ($2, $3) ORDER BY seq, note_id LIMIT $4)
		ORDER BY seq, note LIMIT $4`, u, after.Seq, after.Note, limitOf(limit))
	if err != nil {
		return nil, wrap("history", err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (e store.Entry, err error) {
		err = r.Scan(&e.Mark.Seq, &e.Mark.Note, (*string)(&e.Event), (*string)(&e.From), (*string)(&e.To), &e.Actor, &e.Detail, &e.At)
		e.IsNote, e.At = e.Mark.Note != 0, e.At.UTC()
		return e, err
	})
	return out, wrap("history", err)
}

// Note leaves a note at the saga's present version.
func (db *DB) Note(ctx context.Context, id string, n saga.Note) error {
	op := "note on saga " + id
	u, ok := idOf(id)
	if !ok {
		return fmt.Errorf("%s: %w", op, store.ErrNotFound)
	}
	for _, t := range []string{string(n.Event), n.Actor, n.Detail} {
		if err := refusedText(t); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	tag, err := db.pool.Exec(ctx, `INSERT INTO saga_notes (saga_id, seq, event, actor, detail, at)
		SELECT saga_id, version, $2, $3, $4, mergeflow_now() FROM saga_instances WHERE saga_id = $1`, u, string(n.Event), n.Actor, n.Detail)
	if err == nil && tag.RowsAffected() == 0 {
		err = store.ErrNotFound
	}
	return wrap(op, err)
}

// dueKinds lists the kinds in the outbox by jumping from one to the next in the
// index: timers that lie far ahead, however many, are never looked at.
const dueKinds = `
WITH RECURSIVE ` + clock + `, kind(type) AS (
	(SELECT type FROM outbox_events ORDER BY type LIMIT 1)
	UNION ALL
	SELECT (SELECT o.type FROM outbox_events o WHERE o.type > kind.type ORDER BY o.type LIMIT 1) FROM kind WHERE kind.type IS NOT NULL
)`

// Stats counts sagas by state, and what of the outbox is due. Due commands of
// unknown kinds are parked: nothing here can perform them.
func (db *DB) Stats(ctx context.Context, known []string) (store.Stats, error) {
	if known == nil {
		known = []string{} // NULL would compare with nothing
	}
	var out store.Stats
	err := db.inTx(ctx, func(tx pgx.Tx) error {
		out = store.Stats{}
		// Counting all sagas is the one statement that a scan does best.
		if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = on`); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT flow, state, closed_at IS NULL, count(*) FROM saga_instances GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`)
		if err != nil {
			return err
		}
		out.States, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (c store.StateCount, err error) {
			err = r.Scan(&c.Flow, (*string)(&c.State), &c.Open, &c.Count)
			return c, err
		})
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off`); err != nil {
			return err
		}
		var oldest pgtype.Timestamptz
		err = tx.QueryRow(ctx, dueKinds+`
			SELECT count(*) FILTER (WHERE free AND known), count(*) FILTER (WHERE NOT free), count(*) FILTER (WHERE free AND NOT known),
				min(available_at) FILTER (WHERE free AND known)
			FROM kind CROSS JOIN LATERAL (
				SELECT o.available_at, `+unleased+` AS free, kind.type = ANY($1) AS known
				FROM outbox_events o WHERE `+lookUp("o.type", "kind.type")+` AND o.available_at <= `+now+`) o`, known).
			Scan(&out.Due, &out.Leased, &out.Parked, &oldest)
		out.Oldest = timeOf(oldest)
		return err
	})
	if err != nil {
		return store.Stats{}, wrap("stats", err)
	}
	return out, nil
}

// Backlog counts due, unleased commands up to limit.
func (db *DB) Backlog(ctx context.Context, limit int) (int, error) {
	var n int
	err := db.pool.QueryRow(ctx, dueKinds+`
		SELECT count(*) FROM (SELECT FROM kind CROSS JOIN LATERAL (
			SELECT FROM outbox_events o WHERE o.type = kind.type AND `+due+` LIMIT $1) x LIMIT $1) y`, max(limit, 0)).Scan(&n)
	return n, wrap("backlog", err)
}

// conditions builds a WHERE from parts with ? for each argument.
type conditions struct {
	where []string
	args  []any
}

func (q *conditions) add(cond string, args ...any) {
	for _, a := range args {
		q.args = append(q.args, a)
		cond = strings.Replace(cond, "?", "$"+strconv.Itoa(len(q.args)), 1)
	}
	q.where = append(q.where, cond)
}

// contains asks for a part of any of the columns, without regard to case. The
// part is plain text, no pattern.
func (q *conditions) contains(part string, columns ...string) {
	q.args = append(q.args, strings.ToValidUTF8(strings.ReplaceAll(part, "\x00", "\uFFFD"), "\uFFFD"))
	n := strconv.Itoa(len(q.args))
	var any []string
	for _, c := range columns {
		any = append(any, "strpos(lower("+c+"), lower($"+n+")) > 0")
	}
	q.where = append(q.where, "("+strings.Join(any, " OR ")+")")
}

// before goes on behind a cursor; false when the cursor is no place in any list.
func (q *conditions) before(c *store.Cursor, at, id string) bool {
	if c == nil {
		return true
	}
	u, ok := idOf(c.ID)
	q.add("("+at+", "+id+") < (?, ?)", c.At.Truncate(time.Microsecond), u)
	return ok
}

func (q *conditions) sql(from, order string, limit int) (string, []any) {
	if len(q.where) > 0 {
		from += " WHERE " + strings.Join(q.where, " AND ")
	}
	q.args = append(q.args, limitOf(limit))
	return from + " " + order + " LIMIT $" + strconv.Itoa(len(q.args)), q.args
}

// defaultLimit is the length of a list that nobody limited.
const defaultLimit = 100

func limitOf(n int) int {
	if n <= 0 {
		return defaultLimit
	}
	return n
}
