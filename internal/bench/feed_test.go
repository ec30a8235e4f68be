package bench

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// database is a migrated, empty database and a connection beside the product's.
type database struct {
	tb     testing.TB
	driver string // postgres or sqlite
	dsn    string // or the path
	pg     *pgx.Conn
	lite   *sql.DB
}

const (
	onPostgres = "postgres"
	onSQLite   = "sqlite"
)

// newPostgres is a database on a durable server of its own.
func newPostgres(tb testing.TB) *database {
	tb.Helper()
	return openPostgres(tb, pg.Durable(tb))
}

// sibling is one more database on the same server.
func (d *database) sibling(tb testing.TB, name string) *database {
	tb.Helper()
	d.exec("CREATE DATABASE " + name)
	dsn := strings.Replace(d.dsn, "/"+d.pg.Config().Database+"?", "/"+name+"?", 1)
	if err := postgres.Migrate(tb.Context(), dsn); err != nil {
		tb.Fatal(err)
	}
	return openPostgres(tb, dsn)
}

func openPostgres(tb testing.TB, dsn string) *database {
	tb.Helper()
	c, err := pgx.Connect(tb.Context(), dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close(context.Background()) })
	return &database{tb: tb, driver: onPostgres, dsn: dsn, pg: c}
}

// newSQLite is a file on a disk.
func newSQLite(tb testing.TB) *database {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "bench.db")
	db, err := sqlite.Open(tb.Context(), sqlite.Options{Path: path})
	if err != nil {
		tb.Fatal(err)
	}
	if err := db.Close(); err != nil {
		tb.Fatal(err)
	}
	c, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(60000)&_pragma=synchronous(FULL)")
	if err != nil {
		tb.Fatal(err)
	}
	c.SetMaxOpenConns(1)
	tb.Cleanup(func() { _ = c.Close() })
	return &database{tb: tb, driver: onSQLite, dsn: path, lite: c}
}

func (d *database) exec(query string) {
	d.tb.Helper()
	var err error
	if d.pg != nil {
		_, err = d.pg.Exec(d.tb.Context(), query)
	} else {
		_, err = d.lite.ExecContext(d.tb.Context(), query)
	}
	if err != nil {
		d.tb.Fatalf("%s: %v", query, err)
	}
}

// number asks for one number.
func (d *database) number(query string, args ...any) (n float64) {
	d.tb.Helper()
	var err error
	if d.pg != nil {
		err = d.pg.QueryRow(d.tb.Context(), query, args...).Scan(&n)
	} else {
		err = d.lite.QueryRowContext(d.tb.Context(), query, args...).Scan(&n)
	}
	if err != nil {
		d.tb.Fatalf("%s: %v", query, err)
	}
	return n
}

// chunk is how many sagas a transaction of a large load holds.
const chunk = 5000

// load writes many sagas, and leaves the database as one that has held them for
// a while: analysed, cleaned, checkpointed.
func (d *database) load(s shape, n int) {
	d.tb.Helper()
	for n > 0 {
		d.feed(s, min(n, chunk))
		n -= min(n, chunk)
	}
	d.settle()
}

func (d *database) settle() {
	d.tb.Helper()
	if d.pg != nil {
		d.exec("VACUUM ANALYZE")
		d.exec("CHECKPOINT")
		return
	}
	d.exec("PRAGMA wal_checkpoint(TRUNCATE)")
}

// made numbers all sagas of this process.
var made atomic.Int64

// feed writes sagas of one shape, in one transaction.
func (d *database) feed(s shape, n int) {
	d.tb.Helper()
	r, now := rows{}, time.Now().UTC().Truncate(time.Microsecond)
	for range n {
		r.add(s, made.Add(1), now)
	}
	var err error
	if d.pg != nil {
		err = d.copyIn(r)
	} else {
		err = d.insert(r)
	}
	if err != nil {
		d.tb.Fatalf("feed %d × %s: %v", n, s.name, err)
	}
}

func (d *database) copyIn(r rows) error {
	ctx := d.tb.Context()
	return pgx.BeginFunc(ctx, d.pg, func(tx pgx.Tx) error {
		for _, t := range tables {
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{t.name}, t.columns, pgx.CopyFromRows(r[t.name])); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
		return nil
	})
}

func (d *database) insert(r rows) error {
	ctx := d.tb.Context()
	tx, err := d.lite.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // fails after the commit, which is fine
	for _, t := range tables {
		if len(r[t.name]) == 0 {
			continue
		}
		st, err := tx.PrepareContext(ctx, "INSERT INTO "+t.name+" ("+strings.Join(t.columns, ", ")+") VALUES (?"+strings.Repeat(", ?", len(t.columns)-1)+")")
		if err != nil {
			return err
		}
		for _, row := range r[t.name] {
			for i, v := range row {
				switch v := v.(type) {
				case time.Time:
					row[i] = v.UnixMicro()
				case uuid.UUID:
					row[i] = v.String()
				}
			}
			if _, err := st.ExecContext(ctx, row...); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
	}
	return tx.Commit()
}
