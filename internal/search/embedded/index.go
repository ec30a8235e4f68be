// Package embedded is a code index in one SQLite file beside the database: for
// each branch the content of the commit it covers, with a trigram index over it.
//
// Contents are kept once, by their object id, however many branches and paths
// hold them. Everything is folded (see fold) before it reaches the trigram
// index, and folded the same way in Go, which has the last word on every hit:
// SQLite only narrows down which files to look at, so that a query's text is
// never more than data.
//
// A file that is no text, or too large, is left out. Invalid UTF-8 is shown
// with U+FFFD in its place.
package embedded

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/mergeflow/mergeflow/internal/search"
)

// Limits that hold where Options says nothing.
const (
	DefaultMaxFileSize = 1 << 20  // bytes
	DefaultBatchSize   = 8 << 20  // bytes
	DefaultScanLimit   = 64 << 20 // bytes
	batchBlobs         = 512
)

// Options says where an index lives and what it reads.
type Options struct {
	Path   string // the file; it and its folder are made when missing
	Source search.Source
	// MaxFileSize leaves out larger files, in bytes; 0 means DefaultMaxFileSize.
	MaxFileSize int64
	// BatchSize bounds the contents asked of the source at once, in bytes; 0
	// means DefaultBatchSize.
	BatchSize int64
	// ScanLimit bounds how much content a query under three characters looks
	// through, in bytes; 0 means DefaultScanLimit.
	ScanLimit int64
	// BusyTimeout is how long a writer waits for another process; 0 means 30 s.
	BusyTimeout time.Duration
}

// Index is the driver. It is safe for concurrent use, and several processes may
// have the file open.
type Index struct {
	o     Options
	write *sql.DB // one connection: BEGIN IMMEDIATE
	read  *sql.DB
}

var _ search.Index = (*Index)(nil)

// schemaVersion is the file's user_version. The file holds nothing that can't
// be made again from Git.
const schemaVersion = 1

const schema = `
CREATE TABLE branches (
    id        INTEGER PRIMARY KEY,
    repo      TEXT NOT NULL,
    name      TEXT NOT NULL,
    commit_id TEXT NOT NULL,
    seq       INTEGER NOT NULL, -- larger: indexed later
    UNIQUE (repo, name)
) STRICT;
CREATE TABLE blobs (
    id      INTEGER PRIMARY KEY,
    sha     TEXT NOT NULL UNIQUE,
    content TEXT NOT NULL
) STRICT;
CREATE TABLE files (
    branch_id INTEGER NOT NULL,
    path      TEXT NOT NULL,
    blob_id   INTEGER NOT NULL,
    PRIMARY KEY (branch_id, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX files_blob ON files (blob_id);
-- detail=none keeps only which contents hold a trigram: a third of the size,
-- and the lines are checked in Go anyway.
CREATE VIRTUAL TABLE trigrams USING fts5 (
    folded, content = '', contentless_delete = 1, detail = none, tokenize = 'trigram case_sensitive 1'
);
`

// Open opens the index and makes it when it is not there.
func Open(ctx context.Context, o Options) (*Index, error) {
	if o.Path == "" || o.Source == nil {
		return nil, errors.New("search index: a path and a source are needed")
	}
	if o.MaxFileSize <= 0 {
		o.MaxFileSize = DefaultMaxFileSize
	}
	if o.BatchSize <= 0 {
		o.BatchSize = DefaultBatchSize
	}
	if o.ScanLimit <= 0 {
		o.ScanLimit = DefaultScanLimit
	}
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = 30 * time.Second
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return nil, fmt.Errorf("search index: %w", err)
	}
	if err := touch(path); err != nil {
		return nil, fmt.Errorf("search index: %w", err)
	}
	x := &Index{o: o}
	if x.write, err = sql.Open("sqlite", dsn(path, o.BusyTimeout, "_txlock=immediate&_pragma=synchronous(FULL)")); err != nil {
		return nil, fmt.Errorf("search index: %w", err)
	}
	x.write.SetMaxOpenConns(1)
	if x.read, err = sql.Open("sqlite", dsn(path, o.BusyTimeout, "_pragma=query_only(1)")); err != nil {
		return nil, errors.Join(fmt.Errorf("search index: %w", err), x.write.Close())
	}
	x.read.SetMaxOpenConns(4)
	if err := x.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("search index: %w", err), x.Close())
	}
	return x, nil
}

// Close closes the file. Calls under way end with an error.
func (x *Index) Close() error { return errors.Join(x.read.Close(), x.write.Close()) }

// touch makes the file readable by its owner only before SQLite would make it
// readable by all: it holds code.
func touch(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func dsn(path string, busy time.Duration, more string) string {
	return fmt.Sprintf("file:%s?_pragma=busy_timeout(%d)&_pragma=journal_size_limit(%d)&%s",
		(&url.URL{Path: path}).EscapedPath(), busy.Milliseconds(), 64<<20, more)
}

// prepare turns the write-ahead log on and makes the tables. Two processes may
// do so at once; SQLite's own patience does not cover the switch to the log.
func (x *Index) prepare(ctx context.Context) error {
	give := time.Now().Add(x.o.BusyTimeout)
	for {
		_, err := x.write.ExecContext(ctx, "PRAGMA journal_mode = WAL")
		if err == nil {
			break
		}
		if !isBusy(err) || time.Now().After(give) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return x.update(ctx, func(tx *sql.Tx) error {
		var version int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
			return err
		}
		switch version {
		case schemaVersion:
			return nil
		case 0:
			if _, err := tx.ExecContext(ctx, schema); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", schemaVersion))
			return err
		}
		return fmt.Errorf("the file is of version %d, this program knows %d; delete the file and the next merges fill it again", version, schemaVersion)
	})
}

// update runs fn in one transaction that holds the file's write lock from its
// beginning. Whatever fn's error or a crash leaves is the state before.
func (x *Index) update(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := x.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit it does nothing
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// isBusy says whether another process held the file for too long.
func isBusy(err error) bool {
	e, ok := errors.AsType[interface {
		error
		Code() int
	}](err)
	return ok && e.Code()&0xff == 5 // SQLITE_BUSY, whatever its extension
}

// cause is the context's end where that is what broke the call; SQLite says
// only that it was interrupted.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w (%v)", ctx.Err(), err)
	}
	return err
}
