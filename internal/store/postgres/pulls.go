package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

const pullColumns = `p.pull_id, p.forge, p.repo, p.iid, p.source, p.target, p.title, p.description, p.author, p.forge_state,
	p.saga_status, p.merge_commit, p.operation_id, p.created_at, p.updated_at`

func scanPull(r pgx.CollectableRow) (store.Pull, error) {
	var p store.Pull
	var id, operation pgtype.UUID
	err := r.Scan(&id, &p.Forge, &p.Repo, &p.IID, &p.Source, &p.Target, &p.Title, &p.Description, &p.Author, &p.ForgeState,
		&p.SagaStatus, &p.MergeCommit, &operation, &p.CreatedAt, &p.UpdatedAt)
	p.ID, p.OperationID = textOf(id), textOf(operation)
	p.CreatedAt, p.UpdatedAt = p.CreatedAt.UTC(), p.UpdatedAt.UTC()
	return p, err
}

// errMoved: the pull request got another saga between the look and the lock.
var errMoved = errors.New("the pull request's saga changed")

// StartPull locks the old saga, then the pull request, as every transaction
// does; a pull request whose saga changed in between is looked at again.
func (db *DB) StartPull(ctx context.Context, pullID string, decide func(p store.Pull, old *store.Locked, now time.Time) (store.StartPull, error)) (saga.Row, error) {
	op := "start pull request " + pullID
	id, ok := idOf(pullID)
	if !ok {
		return saga.Row{}, fmt.Errorf("%s: %w", op, store.ErrNotFound)
	}
	for try := 0; ; try++ {
		row, err := db.startPull(ctx, id, decide)
		var own *ownError
		switch {
		case errors.As(err, &own):
			return saga.Row{}, own.err
		case err == nil:
			return row, nil
		case try+1 < tries && (isRepeatable(err) || errors.Is(err, errMoved)) && pause(ctx, try):
			continue
		case errors.Is(err, errMoved):
			return saga.Row{}, fmt.Errorf("%s: %w", op, store.ErrBusy)
		}
		return saga.Row{}, wrap(op, err)
	}
}

// startContext is what a start holds under lock.
type startContext struct {
	operation pgtype.UUID
	pull      store.Pull
	old       *store.Locked
	w         *writes
}

// ownError is an error that goes back to the caller as it is.
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }

func (db *DB) startPull(ctx context.Context, id pgtype.UUID, decide func(store.Pull, *store.Locked, time.Time) (store.StartPull, error)) (saga.Row, error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return saga.Row{}, err
	}
	defer conn.Release() // a connection that is still in a transaction is closed by it

	var operation pgtype.UUID
	b := &pgx.Batch{}
	b.Queue("BEGIN")
	b.Queue(`SELECT operation_id FROM pull_requests WHERE pull_id = $1`, id).QueryRow(func(r pgx.Row) error { return r.Scan(&operation) })
	if err := db.send(ctx, conn, b); err != nil {
		return saga.Row{}, err
	}

	var old *store.Locked
	var p store.Pull
	var now time.Time
	b = &pgx.Batch{}
	b.Queue(lockSagas, []pgtype.UUID{operation}).Query(func(rows pgx.Rows) (err error) {
		old, err = scanLocked(rows)
		return err
	})
	b.Queue(`SELECT `+pullColumns+` FROM pull_requests p WHERE pull_id = $1 FOR UPDATE`, id).Query(func(rows pgx.Rows) (err error) {
		p, err = pgx.CollectExactlyOneRow(rows, scanPull)
		return err
	})
	b.Queue(readCommand, []pgtype.UUID{operation}).Query(func(rows pgx.Rows) error { return scanCommandOf(rows, old) })
	b.Queue("SELECT mergeflow_now()").QueryRow(func(r pgx.Row) error { return r.Scan(&now) })
	if err := db.send(ctx, conn, b); err != nil {
		return saga.Row{}, err
	}
	w := &writes{now: stored(now), witness: witness{pull: id}}
	row, status, err := decideStart(startContext{operation, p, old, w}, decide)
	if err != nil {
		b = &pgx.Batch{}
		b.Queue("ROLLBACK")
		_ = db.send(ctx, conn, b) // an open transaction ends with the connection
		return saga.Row{}, err
	}

	b = &pgx.Batch{}
	w.queue(b)
	started, _ := idOf(row.ID) // refusedStart has looked
	b.Queue(`UPDATE pull_requests SET saga_status = $2, operation_id = $3, updated_at = $4 WHERE pull_id = $1`, id, status, started, w.now)
	b.Queue("COMMIT")
	err = db.send(ctx, conn, b)
	if errors.Is(err, errCut) {
		switch committed, lookErr := db.settle(ctx, w.witness); {
		case lookErr != nil:
			return saga.Row{}, fmt.Errorf("%w: %w", store.ErrUnknown, lookErr)
		case committed:
			err = nil
		}
	}
	return row, err
}

// decideStart asks decide and puts what it answers into the writes.
func decideStart(ctx startContext, decide func(store.Pull, *store.Locked, time.Time) (store.StartPull, error)) (saga.Row, string, error) {
	old, w := ctx.old, ctx.w
	if ctx.pull.OperationID != textOf(ctx.operation) {
		return saga.Row{}, "", errMoved
	}
	var before saga.Row
	if old != nil {
		old.Now, before = w.now, old.Row
		if c := old.Row.Command; c != nil {
			own := *c
			before.Command = &own // decide may write into its own copy
		}
	}
	out, err := decide(ctx.pull, old, w.now)
	if err != nil {
		return saga.Row{}, "", &ownError{err}
	}
	if err := errors.Join(refusedStart(out.New), refusedText(out.Status)); err != nil {
		return saga.Row{}, "", err
	}
	if out.Old != nil {
		if old == nil {
			return saga.Row{}, "", fmt.Errorf("%w: there is no old saga to end", store.ErrConflict)
		}
		if err := refused(*out.Old); err != nil {
			return saga.Row{}, "", err
		}
		w.add(ctx.operation, before, *out.Old)
	}
	return w.start(out.New), out.Status, nil
}

// Pull reads one pull request.
func (db *DB) Pull(ctx context.Context, id string) (store.Pull, error) {
	op := "pull request " + id
	u, ok := idOf(id)
	if !ok {
		return store.Pull{}, fmt.Errorf("%s: %w", op, store.ErrNotFound)
	}
	return db.onePull(ctx, op, "p.pull_id = $1", u)
}

// PullByIID reads one pull request by its number.
func (db *DB) PullByIID(ctx context.Context, forge, repo string, iid int64) (store.Pull, error) {
	return db.onePull(ctx, fmt.Sprintf("pull request %s!%d", repo, iid), "p.forge = $1 AND p.repo = $2 AND p.iid = $3", forge, repo, iid)
}

func (db *DB) onePull(ctx context.Context, op, where string, args ...any) (store.Pull, error) {
	rows, err := db.pool.Query(ctx, `SELECT `+pullColumns+` FROM pull_requests p WHERE `+where, args...)
	if err != nil {
		return store.Pull{}, wrap(op, err)
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanPull)
	return p, wrap(op, err)
}

// Pulls lists pull requests, newest first.
func (db *DB) Pulls(ctx context.Context, f store.PullFilter) ([]store.Pull, error) {
	var q conditions
	if f.Repo != "" {
		q.add("p.repo = ?", f.Repo)
	}
	if f.Status != "" {
		q.add("CASE WHEN p.saga_status IN ('', 'superseded') THEN p.forge_state ELSE p.saga_status END = ?", f.Status)
	}
	if f.Query != "" {
		q.contains(f.Query, "p.title", "p.repo", "p.source", "p.target")
	}
	if !q.before(f.Before, "p.created_at", "p.pull_id") {
		return nil, nil
	}
	sql, args := q.sql(`SELECT `+pullColumns+` FROM pull_requests p`, `ORDER BY p.created_at DESC, p.pull_id DESC`, f.Limit)
	rows, err := db.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, wrap("pull requests", err)
	}
	out, err := pgx.CollectRows(rows, scanPull)
	return out, wrap("pull requests", err)
}

// Watchers are a pull request's watchers by name.
func (db *DB) Watchers(ctx context.Context, pullID string) ([]string, error) {
	id, ok := idOf(pullID)
	if !ok {
		return nil, nil
	}
	rows, err := db.pool.Query(ctx, `SELECT watcher FROM watchers WHERE pull_id = $1 ORDER BY watcher COLLATE "C"`, id)
	if err != nil {
		return nil, wrap("watchers", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return out, wrap("watchers", err)
}

const insertWatchers = `INSERT INTO watchers (pull_id, watcher) SELECT DISTINCT $1::uuid, w FROM unnest($2::text[]) AS w ON CONFLICT DO NOTHING`

// AddWatchers adds those that are not there yet; ErrNotFound without the pull request.
func (db *DB) AddWatchers(ctx context.Context, pullID string, names []string) error {
	op := "watchers of pull request " + pullID
	p, err := db.Pull(ctx, pullID)
	if err != nil || len(names) == 0 {
		return err
	}
	for _, n := range names {
		if err := refusedText(n); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	_, err = db.pool.Exec(ctx, insertWatchers, p.ID, names)
	return wrap(op, err)
}

// Receipts are the recipients of a saga's notification that were reached.
func (db *DB) Receipts(ctx context.Context, sagaID string) (map[string]store.Receipt, error) {
	out := map[string]store.Receipt{}
	id, ok := idOf(sagaID)
	if !ok {
		return out, nil
	}
	rows, err := db.pool.Query(ctx, `SELECT recipient, delivery_id, at FROM notification_receipts WHERE saga_id = $1`, id)
	if err != nil {
		return nil, wrap("receipts", err)
	}
	var r store.Receipt
	var delivery pgtype.UUID
	_, err = pgx.ForEachRow(rows, []any{&r.Recipient, &delivery, &r.At}, func() error {
		r.DeliveryID, r.At = textOf(delivery), r.At.UTC()
		out[r.Recipient] = r
		return nil
	})
	return out, wrap("receipts", err)
}

// AddReceipt records that a recipient was reached; the first receipt stays.
func (db *DB) AddReceipt(ctx context.Context, sagaID string, r store.Receipt) error {
	op := "receipt of saga " + sagaID
	id, ok := idOf(sagaID)
	delivery, ok2 := idOf(r.DeliveryID)
	if !ok || !ok2 || strings.ContainsRune(r.Recipient, 0) {
		return fmt.Errorf("%s: %w", op, store.ErrConflict)
	}
	_, err := db.pool.Exec(ctx, `INSERT INTO notification_receipts (saga_id, recipient, delivery_id, at)
		VALUES ($1, $2, $3, coalesce($4, mergeflow_now())) ON CONFLICT DO NOTHING`, id, r.Recipient, delivery, optionalTime(r.At))
	return wrap(op, err)
}
