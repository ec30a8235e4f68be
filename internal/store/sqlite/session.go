package sqlite

import (
	"context"
	"database/sql"
	"fmt"
)

// querier is what reads need: the writer's connection or the read pool.
type querier interface {
	query(query string, args ...any) (*sql.Rows, error)
}

// session is the writer's connection during one turn.
type session struct {
	ctx context.Context
	db  *DB
}

// write runs f in one IMMEDIATE transaction. Waiting for the turn honours ctx;
// from BEGIN on nothing is interrupted, so that a cancelled call has either
// written nothing or answers what it wrote. A panic of f rolls back and goes on.
func (db *DB) write(ctx context.Context, op string, f func(*session) error) error {
	s, done, err := db.begin(ctx)
	if err != nil {
		return wrap(op, err)
	}
	defer done()
	if _, err := s.exec("BEGIN IMMEDIATE"); err != nil {
		return wrap(op, err)
	}
	committed := false
	defer func() {
		if !committed {
			_, _ = s.exec("ROLLBACK") // fails only where SQLite has rolled back by itself
		}
	}()
	if err := f(s); err != nil {
		return wrap(op, err)
	}
	if _, err := s.exec("COMMIT"); err != nil {
		return wrap(op, err)
	}
	committed = true
	return nil
}

// read runs f, which asks one statement, outside any transaction.
func (db *DB) read(ctx context.Context, op string, f func(querier) error) error {
	if db.reader != nil {
		return wrap(op, f(pool{ctx, db}))
	}
	s, done, err := db.begin(ctx)
	if err != nil {
		return wrap(op, err)
	}
	defer done()
	return wrap(op, f(s))
}

// begin takes the writer's turn; done gives it back.
func (db *DB) begin(ctx context.Context) (s *session, done func(), err error) {
	select {
	case db.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		<-db.turn
		return nil, nil, err
	}
	return &session{context.WithoutCancel(ctx), db}, func() { <-db.turn }, nil
}

// stmt prepares a query once per connection. Queries are constants: the map
// stays as small as the source.
func (s *session) stmt(query string) (*sql.Stmt, error) {
	if st := s.db.prepared[query]; st != nil {
		return st, nil
	}
	st, err := s.db.conn.PrepareContext(s.ctx, query)
	if err != nil {
		return nil, err
	}
	s.db.prepared[query] = st
	return st, nil
}

// exec answers how many rows were touched.
func (s *session) exec(query string, args ...any) (int64, error) {
	st, err := s.stmt(query)
	if err != nil {
		return 0, err
	}
	r, err := st.ExecContext(s.ctx, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (s *session) query(query string, args ...any) (*sql.Rows, error) {
	st, err := s.stmt(query)
	if err != nil {
		return nil, err
	}
	return st.QueryContext(s.ctx, args...)
}

// pool is the read pool on behalf of one call.
type pool struct {
	ctx context.Context
	db  *DB
}

func (p pool) query(query string, args ...any) (*sql.Rows, error) {
	if st, ok := p.db.reads.Load(query); ok {
		return st.(*sql.Stmt).QueryContext(p.ctx, args...)
	}
	st, err := p.db.reader.PrepareContext(p.ctx, query)
	if err != nil {
		return nil, err
	}
	if first, loaded := p.db.reads.LoadOrStore(query, st); loaded {
		_ = st.Close() // somebody else prepared it at the same time
		st = first.(*sql.Stmt)
	}
	return st.QueryContext(p.ctx, args...)
}

// scanner is *sql.Rows or *sql.Row.
type scanner interface{ Scan(...any) error }

// all reads every row of a query.
func all[T any](q querier, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("read a row: %w", err)
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// one reads a query's first row; sql.ErrNoRows where there is none.
func one[T any](q querier, scan func(scanner) (T, error), query string, args ...any) (T, error) {
	vs, err := all(q, scan, query, args...)
	if err == nil && len(vs) == 0 {
		err = sql.ErrNoRows
	}
	if err != nil {
		var zero T
		return zero, err
	}
	return vs[0], nil
}
