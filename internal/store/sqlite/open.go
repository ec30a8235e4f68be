// Package sqlite keeps sagas in one SQLite file (or in memory), for one
// process. It implements store.Store; storetest proves that it behaves like
// postgres.
//
// There is one writer connection, taken in turns: a write is one IMMEDIATE
// transaction from its first statement to its COMMIT, so what it reads can't
// change under it and needs no row locks. Reads go to a small pool of their
// own and never wait for a writer. After a power cut no committed transition
// is missing (WAL, synchronous FULL).
//
// One process owns the file; a lock file beside it says which. So leases that
// are found at start belong to nobody and are cleared.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/mergeflow/mergeflow/internal/store"
)

// Memory is the path of a database that lives in memory and ends with Close.
const Memory = ":memory:"

const readers = 4

// Options say what to open.
type Options struct {
	Path string // a file, made when it isn't there (its folder must be); or Memory
	// Clock is the database's time; nil is time.Now. It is cut to microseconds.
	Clock func() time.Time
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	clock func() time.Time
	owner *ownership // nil in memory

	writer   *sql.DB
	conn     *sql.Conn            // writer's only connection
	prepared map[string]*sql.Stmt // on conn
	turn     chan struct{}        // holds one value while somebody uses conn

	reader *sql.DB  // nil in memory: reads take turns there too
	reads  sync.Map // query → *sql.Stmt of reader
}

var _ store.Store = (*DB)(nil)

// Open opens a database, brings it to the newest schema and clears the leases
// of a process that is gone. It fails with ErrInUse, naming the holder, while
// another process has the file.
func Open(ctx context.Context, o Options) (db *DB, err error) {
	db = &DB{clock: o.Clock, turn: make(chan struct{}, 1), prepared: map[string]*sql.Stmt{}}
	if db.clock == nil {
		db.clock = time.Now
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open %s: %w", o.Path, errors.Join(err, db.Close()))
			db = nil
		}
	}()
	if o.Path == Memory {
		return db, db.openMemory(ctx)
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return db, err
	}
	if db.owner, err = own(path); err != nil {
		return db, err
	}
	if err := db.openWriter(ctx, dsn(path, "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)")); err != nil {
		return db, err
	}
	if db.reader, err = sql.Open("sqlite", dsn(path, "query_only(1)")); err != nil {
		return db, err
	}
	db.reader.SetMaxOpenConns(readers)
	db.reader.SetMaxIdleConns(readers)
	return db, db.clearLeases(ctx)
}

func (db *DB) openMemory(ctx context.Context) (err error) {
	if db.writer, err = sql.Open("sqlite", Memory+"?_pragma=foreign_keys(1)"); err != nil {
		return err
	}
	if err := db.takeConn(ctx); err != nil {
		return err
	}
	return loadImage(db.conn)
}

// openWriter migrates before the one connection is taken for good.
func (db *DB) openWriter(ctx context.Context, dsn string) (err error) {
	if db.writer, err = sql.Open("sqlite", dsn); err != nil {
		return err
	}
	db.writer.SetMaxOpenConns(1)
	if err := migrate(ctx, db.writer); err != nil {
		return err
	}
	return db.takeConn(ctx)
}

func (db *DB) takeConn(ctx context.Context) (err error) {
	db.writer.SetMaxOpenConns(1)
	// The connection outlives the call that opens it.
	db.conn, err = db.writer.Conn(context.WithoutCancel(ctx))
	return err
}

// dsn escapes a path that may hold anything.
func dsn(path string, pragmas ...string) string {
	q := url.Values{"_pragma": append([]string{"busy_timeout(5000)"}, pragmas...), "_txlock": {"immediate"}}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// Close waits for the call under way and closes the file.
func (db *DB) Close() error {
	db.turn <- struct{}{}
	defer func() { <-db.turn }()
	var errs []error
	if db.reader != nil {
		errs = append(errs, db.reader.Close())
	}
	// Statements prepared on a connection taken for good are nobody else's to
	// close, and one that is open keeps the file open behind Close.
	for _, st := range db.prepared {
		errs = append(errs, st.Close())
	}
	clear(db.prepared)
	if db.conn != nil {
		if err := db.conn.Close(); !errors.Is(err, sql.ErrConnDone) {
			errs = append(errs, err)
		}
	}
	if db.writer != nil {
		errs = append(errs, db.writer.Close())
	}
	errs = append(errs, db.owner.release())
	return errors.Join(errs...)
}

// Ping asks the database for an answer, without waiting for a writer.
func (db *DB) Ping(ctx context.Context) error {
	return db.read(ctx, "ping", func(q querier) error {
		_, err := one(q, scanInt, `SELECT 1`)
		return err
	})
}

// Now is the injected clock.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	return db.now(), wrap("now", ctx.Err())
}

func (db *DB) now() time.Time { return db.clock().UTC().Truncate(time.Microsecond) }

// orNow is a time as a column can hold it; the zero time means now.
func (db *DB) orNow(t time.Time) time.Time {
	if t.IsZero() {
		return db.now()
	}
	return t.UTC().Truncate(time.Microsecond)
}
