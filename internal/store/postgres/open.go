// Package postgres keeps sagas in PostgreSQL 15 or newer, for one or many
// processes. It implements store.Store with hand-written SQL: what many sagas
// write goes out as sets (arrays, unnest), a whole transaction takes three
// round trips, and no transaction outlives a call.
//
// Lock order, in every transaction: keys and fences, sagas by id, then pull
// requests by id and bindings, then the outbox. Whoever only needs the outbox (claims, heartbeats) passes locked
// rows by, so that it waits for nobody.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mergeflow/mergeflow/internal/store"
)

// Options say how to open a database.
type Options struct {
	// DSN is a postgres:// URL or a libpq keyword string. It may hold a
	// password and is never part of an error.
	DSN string
	// Notify sends and hears wake-ups by LISTEN and NOTIFY. Without it, as
	// behind a transaction pooler, other processes' work is found by polling.
	Notify bool
	// MaxConns bounds the pool; 0 leaves pgx's default. Listen holds one more.
	MaxConns int32
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	pool   *pgxpool.Pool
	notify bool
	id     string        // tells our own wake-ups from others'
	turn   atomic.Uint32 // which kind a claim asks first
	wake   waker
	// patience bounds the look for the outcome of a commit whose answer was lost.
	patience time.Duration
}

var _ store.Store = (*DB)(nil)

// session is what every connection sets. A transaction of ours never waits long
// for a lock and never stays open while its process is frozen. All statements
// but the counts are looks through an index: a plan that was cached while a
// table was small must not scan it when it is large.
var session = map[string]string{
	"default_transaction_isolation":       "read committed",
	"lock_timeout":                        "2s",
	"idle_in_transaction_session_timeout": "10s",
	"timezone":                            "UTC",
	"enable_seqscan":                      "off",
	"enable_bitmapscan":                   "off",
	"jit":                                 "off",
}

// Open connects and checks that the database answers. It does not migrate.
func Open(ctx context.Context, o Options) (*DB, error) {
	conf, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return nil, errDSN
	}
	params := conf.ConnConfig.RuntimeParams
	for k, v := range session {
		params[k] = v
	}
	if params["application_name"] == "" {
		params["application_name"] = "mergeflow"
	}
	if o.MaxConns > 0 {
		conf.MaxConns = o.MaxConns
	}
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("open PostgreSQL: %w", err)
	}
	db := &DB{pool: pool, notify: o.Notify, id: uuid.NewString(), patience: 10 * time.Second}
	if err := db.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return db, nil
}

// errDSN says nothing about the DSN, which may hold a password.
var errDSN = errors.New("the PostgreSQL address can't be read; want postgres://user@host:port/database")

// Close waits for calls under way and closes all connections.
func (db *DB) Close() error {
	db.wake.stop()
	db.pool.Close()
	return nil
}

// Ping asks the database for an answer.
func (db *DB) Ping(ctx context.Context) error {
	return wrap("ping", db.pool.Ping(ctx))
}

// Now is the database's clock.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	var t time.Time
	err := db.pool.QueryRow(ctx, "SELECT mergeflow_now()").Scan(&t)
	return t.UTC(), wrap("now", err)
}

// Schema is the number of the newest migration that was applied; 0 for an empty database.
func (db *DB) Schema(ctx context.Context) (int64, error) {
	var there bool
	if err := db.pool.QueryRow(ctx, "SELECT to_regclass('goose_db_version') IS NOT NULL").Scan(&there); err != nil || !there {
		return 0, wrap("schema", err)
	}
	var v int64
	err := db.pool.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&v)
	return v, wrap("schema", err)
}

// inTx runs f in a transaction that lasts as long as f.
func (db *DB) inTx(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db.pool, f)
}
