package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var embedded embed.FS

// Migrations are the SQL files, in the root of the file system.
var Migrations = func() fs.FS {
	sub, err := fs.Sub(embedded, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}()

// Migrate brings a file to the newest schema, which Open does too: it is there
// for those who want nothing else. It fails with ErrInUse like Open.
func Migrate(ctx context.Context, path string) error {
	db, err := Open(ctx, Options{Path: path})
	if err != nil {
		return err
	}
	return db.Close()
}

func migrate(ctx context.Context, db *sql.DB) error {
	p, err := goose.NewProvider(goose.DialectSQLite3, db, Migrations)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// Schema is the number of the newest migration that was applied.
func (db *DB) Schema(ctx context.Context) (v int64, err error) {
	err = db.read(ctx, "schema", func(q querier) error {
		v, err = one(q, scanInt, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`)
		return err
	})
	return v, err
}

// imager is the driver connection's ability to copy a whole database.
type imager interface {
	Serialize() ([]byte, error)
	Deserialize([]byte) error
}

// image is an empty, migrated database. It is made once per process, so that
// opening a database in memory costs a copy and no migration.
var image = sync.OnceValues(func() (b []byte, err error) {
	ctx := context.Background()
	db, err := sql.Open("sqlite", Memory)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	if err := migrate(ctx, db); err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	err = conn.Raw(func(c any) error {
		b, err = c.(imager).Serialize()
		return err
	})
	return b, err
})

func loadImage(conn *sql.Conn) error {
	b, err := image()
	if err != nil {
		return err
	}
	return conn.Raw(func(c any) error { return c.(imager).Deserialize(b) })
}
