package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// settle learns whether a transaction committed whose connection was lost at
// COMMIT. It waits for the lock that the lost transaction held: its server
// process may still be at work. Then its trace is there or never will be. A
// transaction that left no trace only wrote what is harmless to repeat.
//
// The caller's context may have ended; the answer is needed all the same.
func (db *DB) settle(ctx context.Context, w witness) (committed bool, err error) {
	if w.rank == byNothing {
		return false, nil
	}
	lock, id := `SELECT FROM saga_instances WHERE saga_id = $1 FOR UPDATE`, w.saga
	if w.pull.Valid {
		lock, id = `SELECT FROM pull_requests WHERE pull_id = $1 FOR UPDATE`, w.pull
	}
	sql, args := w.trace()
	err = db.look(ctx, lock, id, &committed, sql, args...)
	return committed, err
}

// look scans a trace into found once it holds the lock that the lost
// transaction held.
func (db *DB) look(ctx context.Context, lock string, held, found any, trace string, args ...any) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.patience)
	defer cancel()
	for try := 0; ; try++ {
		err = db.inTx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, lock, held); err != nil {
				return err
			}
			return tx.QueryRow(ctx, trace, args...).Scan(found)
		})
		if err == nil || !pause(ctx, try) {
			return err
		}
	}
}

// trace asks for what the transaction wrote. at is the database's time of the
// one transaction, in microseconds: no other one has written the same.
func (w witness) trace() (sql string, args []any) {
	m := w.move
	switch w.rank {
	case byMove:
		return `SELECT EXISTS (SELECT FROM saga_history WHERE saga_id = $1 AND seq = $2 AND event = $3 AND from_state = $4 AND to_state = $5
			AND actor = $6 AND at = $7)`, []any{w.saga, m.Seq, string(m.Event), string(m.From), string(m.To), m.Actor, w.at}
	case byNote:
		return `SELECT EXISTS (SELECT FROM saga_notes WHERE saga_id = $1 AND seq = $2 AND event = $3 AND detail = $4 AND at = $5)`,
			[]any{w.saga, m.Seq, string(m.Event), m.Detail, w.at}
	}
	return `SELECT NOT EXISTS (SELECT FROM outbox_events WHERE saga_id = $1 AND lease_token = $2::uuid)`, []any{w.saga, w.token}
}
