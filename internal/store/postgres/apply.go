package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mergeflow/mergeflow/internal/store"
)

// tries bounds how often a transaction is repeated that surely wrote nothing.
const tries = 5

// apply is one call of Apply: its requests and what is known about each.
type apply struct {
	db      *DB
	reqs    []store.Request
	ids     []pgtype.UUID
	decide  func(int, store.Locked) (store.Writes, error)
	results []store.Result
	waiting []int // was busy, and its request waits
	failed  error // why some request has no answer of its own
	written bool
}

// Apply commits what decide answers for the sagas of reqs, in one transaction
// of three round trips: lock the sagas; lock their commands, which is where a
// lease is checked (a row that was read beside its saga could be older than the
// lock); write everything and commit.
func (db *DB) Apply(ctx context.Context, reqs []store.Request, decide func(i int, l store.Locked) (store.Writes, error)) ([]store.Result, error) {
	a := &apply{db: db, reqs: reqs, decide: decide, ids: make([]pgtype.UUID, len(reqs)), results: make([]store.Result, len(reqs))}
	if batch := a.distinct(); len(batch) > 0 {
		a.run(ctx, batch, false)
	}
	// What waits does so alone, so that it stalls nobody.
	for _, i := range a.waiting {
		a.run(ctx, []int{i}, true)
	}
	if a.failed != nil && !a.written {
		return a.results, a.failed
	}
	return a.results, nil
}

// distinct are the requests whose sagas can be locked. A saga that is named
// twice is busy with its first request.
func (a *apply) distinct() (batch []int) {
	seen := make(map[pgtype.UUID]bool, len(a.reqs))
	for i, r := range a.reqs {
		id, ok := idOf(r.SagaID)
		switch {
		case !ok:
			a.results[i].Err = fmt.Errorf("saga %q: %w", r.SagaID, store.ErrNotFound)
		case seen[id]:
			a.results[i].Err = fmt.Errorf("saga %s: %w", r.SagaID, store.ErrBusy)
		default:
			seen[id], a.ids[i] = true, id
			batch = append(batch, i)
		}
	}
	return batch
}

// run commits some of the requests, and answers each of them.
func (a *apply) run(ctx context.Context, batch []int, wait bool) {
	err := a.repeat(ctx, batch, wait)
	switch {
	case err == nil:
	case (isRefusal(err) || codeOf(err) == lockNotAvailable) && len(batch) > 1:
		// One of them spoils it for the others: find it by halves.
		a.run(ctx, batch[:len(batch)/2], wait)
		a.run(ctx, batch[len(batch)/2:], wait)
	case isRefusal(err) || codeOf(err) == lockNotAvailable:
		a.results[batch[0]] = store.Result{Err: wrap("saga "+a.reqs[batch[0]].SagaID, err)}
	default:
		// Nothing was written for these. Where others were, each is answered
		// alone, as one that is to be tried again.
		a.failed = wrap("apply", err)
		for _, i := range batch {
			a.results[i] = store.Result{Err: fmt.Errorf("%w: %w", store.ErrBusy, a.failed)}
		}
	}
}

func (a *apply) repeat(ctx context.Context, batch []int, wait bool) (err error) {
	for try := range tries {
		if err = a.transact(ctx, batch, wait); !isRepeatable(err) || !pause(ctx, try) {
			return err
		}
	}
	return err
}

const (
	lockSagas   = `SELECT ` + sagaColumns + ` FROM saga_instances s WHERE s.saga_id = ANY($1) ORDER BY s.saga_id FOR UPDATE`
	readCommand = `SELECT o.saga_id, ` + commandColumns + ` FROM outbox_events o WHERE o.saga_id = ANY($1) ORDER BY o.saga_id FOR UPDATE`
)

// transact is one transaction. It answers an error when nothing was written,
// and has answered every request of the batch when it answers none.
func (a *apply) transact(ctx context.Context, batch []int, wait bool) error {
	conn, err := a.db.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // a connection that is still in a transaction is closed by it

	ids := make([]pgtype.UUID, len(batch))
	at := make(map[pgtype.UUID]int, len(batch)) // request by saga
	for n, i := range batch {
		ids[n], at[a.ids[i]] = a.ids[i], i
	}
	locked := make(map[int]*store.Locked, len(batch))
	unreadable := map[int]error{}
	var held []pgtype.UUID // the locked sagas, in the order of their ids
	b := &pgx.Batch{}
	b.Queue("BEGIN")
	lock := lockSagas
	if !wait {
		lock += ` SKIP LOCKED`
	}
	b.Queue(lock, ids).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var s sagaScan
			if err := rows.Scan(s.into()...); err != nil {
				return err
			}
			row, err := s.saga()
			if err != nil {
				unreadable[at[s.id]] = err
				continue
			}
			locked[at[s.id]] = &store.Locked{Row: row}
			held = append(held, s.id)
		}
		return rows.Err()
	})
	if err := a.db.send(ctx, conn, b); err != nil {
		return err
	}

	var missing []pgtype.UUID
	for _, i := range batch {
		if locked[i] == nil {
			missing = append(missing, a.ids[i])
		}
	}
	there := map[pgtype.UUID]bool{}
	var now time.Time
	b = &pgx.Batch{}
	b.Queue(readCommand, held).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id pgtype.UUID
			var c commandScan
			if err := rows.Scan(append([]any{&id}, c.into()...)...); err != nil {
				return err
			}
			locked[at[id]].Row.Command = c.command()
		}
		return rows.Err()
	})
	if len(missing) > 0 {
		b.Queue("SELECT saga_id FROM saga_instances WHERE saga_id = ANY($1)", missing).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id pgtype.UUID
				if err := rows.Scan(&id); err != nil {
					return err
				}
				there[id] = true
			}
			return rows.Err()
		})
	}
	b.Queue("SELECT mergeflow_now()").QueryRow(func(r pgx.Row) error { return r.Scan(&now) })
	if len(held) == 0 {
		b.Queue("ROLLBACK")
	}
	if err := a.db.send(ctx, conn, b); err != nil {
		return err
	}

	var waiting []int
	for _, i := range batch {
		if locked[i] != nil {
			continue
		}
		a.results[i] = store.Result{}
		switch {
		case unreadable[i] != nil:
			a.results[i].Err = fmt.Errorf("%w: %w", store.ErrConflict, unreadable[i])
		case !there[a.ids[i]]:
			a.results[i].Err = fmt.Errorf("saga %s: %w", a.reqs[i].SagaID, store.ErrNotFound)
		case a.reqs[i].Wait && !wait:
			waiting = append(waiting, i)
		default:
			a.results[i].Err = fmt.Errorf("saga %s: %w", a.reqs[i].SagaID, store.ErrBusy)
		}
	}
	if len(held) == 0 {
		a.waiting = append(a.waiting, waiting...)
		return nil
	}

	w := &writes{now: stored(now)}
	answers := make(map[int]store.Result, len(held))
	for _, id := range held {
		i := at[id]
		answers[i] = a.decideOne(i, id, locked[i], w)
	}
	if err := a.commit(ctx, conn, w, answers); err != nil {
		return err
	}
	a.waiting = append(a.waiting, waiting...)
	for i, r := range answers {
		a.results[i] = r
	}
	return nil
}

// decideOne asks for one saga's decision, adds it to the writes and answers
// what the request is told once they are committed.
func (a *apply) decideOne(i int, id pgtype.UUID, l *store.Locked, w *writes) store.Result {
	token := a.reqs[i].Token
	l.Now = w.now
	l.Held = token == "" || l.Row.Command != nil && l.Row.Command.LeaseToken == token
	before := l.Row
	if l.Row.Command != nil {
		c := *l.Row.Command
		before.Command = &c // decide may write into its own copy
	}
	out, err := a.decide(i, *l)
	if err == nil {
		err = refused(out)
	}
	if err != nil {
		return store.Result{Err: err}
	}
	r := w.add(id, before, out)
	if !l.Held {
		r.Err = fmt.Errorf("saga %s: %w", a.reqs[i].SagaID, store.ErrLeaseLost)
	}
	return r
}

// commit sends the writes with the COMMIT. Where its answer is lost, it looks
// what became of it.
func (a *apply) commit(ctx context.Context, conn *pgxpool.Conn, w *writes, answers map[int]store.Result) error {
	if w.empty() {
		b := &pgx.Batch{}
		b.Queue("ROLLBACK")
		if err := a.db.send(ctx, conn, b); err != nil && !errors.Is(err, errCut) {
			return err
		}
		return nil // nothing was to be written, with or without an answer
	}
	b := &pgx.Batch{}
	w.queue(b)
	b.Queue("COMMIT")
	err := a.db.send(ctx, conn, b)
	if !errors.Is(err, errCut) {
		a.written = a.written || err == nil
		return err
	}
	committed, lookErr := a.db.settle(ctx, w.witness)
	switch {
	case lookErr != nil:
		for i, r := range answers {
			if r.Err == nil || errors.Is(r.Err, store.ErrLeaseLost) {
				answers[i] = store.Result{Err: fmt.Errorf("saga %s: %w: %w", a.reqs[i].SagaID, store.ErrUnknown, lookErr)}
			}
		}
		a.written = true // perhaps: each is answered alone
		return nil
	case committed:
		a.written = true
		return nil
	}
	return err
}

// send runs a batch in one round trip. After an error that leaves the
// connection alive, it ends the transaction. errCut is in the error of a
// connection that died.
func (db *DB) send(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch) error {
	err := conn.SendBatch(ctx, b).Close()
	if err == nil {
		return nil
	}
	if isCut(conn.Conn(), err) {
		if ctx.Err() == nil {
			db.pool.Reset() // the others are probably dead too
		}
		return fmt.Errorf("%w: %w", errCut, err)
	}
	if _, back := conn.Exec(context.WithoutCancel(ctx), "ROLLBACK"); back != nil {
		conn.Conn().Close(context.WithoutCancel(ctx))
	}
	return err
}
