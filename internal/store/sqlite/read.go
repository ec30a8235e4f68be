package sqlite

import (
	"context"
	"strings"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// defaultLimit is the length of a list whose caller names none.
const defaultLimit = 100

func limitOf(n int) int {
	if n <= 0 {
		return defaultLimit
	}
	return n
}

// Saga reads one saga with its command.
func (db *DB) Saga(ctx context.Context, id string) (r saga.Row, err error) {
	err = db.read(ctx, "saga "+id, func(q querier) error {
		r, err = one(q, scanSaga, selectSaga+`WHERE s.saga_id = ?`, id)
		return err
	})
	return r, err
}

// where collects the conditions of a list.
type where struct {
	conds []string
	args  []any
}

func (w *where) add(cond string, args ...any) {
	w.conds = append(w.conds, cond)
	w.args = append(w.args, args...)
}

func (w *where) equal(column, value string) {
	if value != "" {
		w.add(column+" = ?", value)
	}
}

// contains: the text is part of one of the columns (ASCII case folded).
func (w *where) contains(text string, columns ...string) {
	if text == "" {
		return
	}
	pattern := "%" + likeEscaper.Replace(text) + "%"
	args := make([]any, len(columns))
	for i := range columns {
		args[i] = pattern
	}
	w.add("("+strings.Join(columns, ` LIKE ? ESCAPE '\' OR `)+` LIKE ? ESCAPE '\')`, args...)
}

var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

func (w *where) before(c *store.Cursor, at, id string) {
	if c != nil {
		w.add("("+at+", "+id+") < (?, ?)", c.At.UnixMicro(), c.ID)
	}
}

// list is the end of a query: conditions, order and limit.
func (w *where) list(order string, limit int) (string, []any) {
	q := "ORDER BY " + order + " LIMIT ?"
	if len(w.conds) > 0 {
		q = "WHERE " + strings.Join(w.conds, " AND ") + " " + q
	}
	return q, append(w.args, limitOf(limit))
}

// Sagas lists sagas, newest first. The shape of the query depends on which
// members are set, never on their values.
func (db *DB) Sagas(ctx context.Context, f store.SagaFilter) (rows []saga.Row, err error) {
	var w where
	w.equal("s.flow", f.Flow)
	w.equal("s.aggregate_id", f.Aggregate)
	w.equal("s.subject", f.Subject)
	w.equal("s.target", f.Target)
	w.equal("s.project", f.Project)
	if len(f.States) > 0 {
		states, err := toJSON(f.States)
		if err != nil {
			return nil, wrap("list sagas", err)
		}
		w.add("s.state IN (SELECT value FROM json_each(?))", states)
	}
	if f.OpenOnly {
		w.add("s.closed_at IS NULL")
	}
	w.contains(f.Query, "s.title", "s.subject", "s.target", "s.project")
	w.before(f.Before, "s.created_at", "s.saga_id")
	end, args := w.list("s.created_at DESC, s.saga_id DESC", f.Limit)
	err = db.read(ctx, "list sagas", func(q querier) error {
		rows, err = all(q, scanSaga, selectSaga+end, args...)
		return err
	})
	return rows, err
}

// History reads transitions and notes, oldest first.
func (db *DB) History(ctx context.Context, id string, after store.Mark, limit int) (es []store.Entry, err error) {
	err = db.read(ctx, "history of saga "+id, func(q querier) error {
		es, err = all(q, func(sc scanner) (e store.Entry, err error) {
			err = sc.Scan(&e.Mark.Seq, &e.Mark.Note, &e.Event, &e.From, &e.To, &e.Actor, &e.Detail, moment{&e.At})
			e.IsNote = e.Mark.Note != 0
			return e, err
		}, `
SELECT * FROM (
    SELECT seq, 0 AS note, event, from_state, to_state, actor, detail, at FROM saga_history WHERE saga_id = ?1 AND seq >= ?2
    UNION ALL
    SELECT seq, note_id, event, '', '', actor, detail, at FROM saga_notes WHERE saga_id = ?1 AND seq >= ?2)
WHERE (seq, note) > (?2, ?3) ORDER BY seq, note LIMIT ?4`, id, after.Seq, after.Note, limitOf(limit))
		return err
	})
	return es, err
}

// Note appends a note at the saga's present version.
func (db *DB) Note(ctx context.Context, id string, n saga.Note) error {
	return db.write(ctx, "note on saga "+id, func(s *session) error {
		if err := checkNote(n); err != nil {
			return err
		}
		_, err := one(s, scanInt, `
INSERT INTO saga_notes (saga_id, seq, event, actor, detail, at)
SELECT saga_id, version, ?2, ?3, ?4, ?5 FROM saga_instances WHERE saga_id = ?1
RETURNING note_id`, id, string(n.Event), n.Actor, n.Detail, micros(db.now()))
		return err
	})
}

// eachKind walks from one kind to the next along the index of due commands, so
// that what isn't due is never looked at.
const eachKind = `
WITH RECURSIVE kinds (type) AS (
    SELECT min(type) FROM outbox_events
    UNION ALL
    SELECT (SELECT min(o.type) FROM outbox_events o WHERE o.type > kinds.type) FROM kinds WHERE kinds.type IS NOT NULL)
`

// Stats counts sagas and due commands. What is of no known kind is parked and
// not due: nothing here can perform it.
func (db *DB) Stats(ctx context.Context, known []string) (st store.Stats, err error) {
	list, err := toJSON(append([]string{}, known...))
	if err != nil {
		return st, wrap("stats", err)
	}
	err = db.read(ctx, "stats", func(q querier) error {
		st.States, err = all(q, func(sc scanner) (c store.StateCount, err error) {
			return c, sc.Scan(&c.Flow, &c.State, &c.Open, &c.Count)
		}, `
SELECT flow, state, closed_at IS NULL, count(*) FROM saga_instances GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`)
		return err
	})
	if err != nil {
		return store.Stats{}, err
	}
	now := db.now()
	err = db.read(ctx, "stats", func(q querier) error {
		_, err := one(q, func(sc scanner) (struct{}, error) {
			return struct{}{}, sc.Scan(&st.Due, &st.Leased, &st.Parked, moment{&st.Oldest})
		}, eachKind+`
SELECT count(*) FILTER (WHERE NOT leased AND known), count(*) FILTER (WHERE leased), count(*) FILTER (WHERE NOT leased AND NOT known),
       min(available_at) FILTER (WHERE NOT leased AND known)
FROM (SELECT o.available_at, coalesce(o.lease_until > ?1, 0) AS leased, o.type IN (SELECT value FROM json_each(?2)) AS known
      FROM kinds CROSS JOIN outbox_events o ON o.type = kinds.type WHERE o.available_at <= ?1)`, now.UnixMicro(), list)
		return err
	})
	return st, err
}

// Backlog counts due commands that nobody holds, up to limit.
func (db *DB) Backlog(ctx context.Context, limit int) (n int, err error) {
	now := db.now().UnixMicro()
	err = db.read(ctx, "backlog", func(q querier) error {
		c, err := one(q, scanInt, eachKind+`
SELECT count(*) FROM (
    SELECT 1 FROM kinds CROSS JOIN outbox_events o ON o.type = kinds.type
    WHERE o.available_at <= ?1 AND (o.lease_until IS NULL OR o.lease_until <= ?1) LIMIT ?2)`, now, max(0, limit))
		n = int(c)
		return err
	})
	return n, err
}
