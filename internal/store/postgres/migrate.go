package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
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

// migrationLock is the advisory lock that a migrating process holds.
const migrationLock = 0x6d657267_65666c6f // "mergeflo"

// Migrate brings the database to the newest schema. Processes that start at
// once queue up: the lock belongs to an open transaction, so that it ends with
// its process and works behind a transaction pooler too.
func Migrate(ctx context.Context, dsn string) (err error) {
	conf, err := pgx.ParseConfig(dsn)
	if err != nil {
		return errDSN
	}
	lock, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer lock.Close(context.WithoutCancel(ctx))
	tx, err := lock.Begin(ctx)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
		return fmt.Errorf("migrate: wait for another process: %w", err)
	}
	db := stdlib.OpenDB(*conf)
	defer func() { err = errors.Join(err, db.Close()) }()
	p, err := goose.NewProvider(goose.DialectPostgres, db, Migrations)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return tx.Rollback(ctx)
}
