package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Inspect opens a database for reading alone, beside the process that owns it:
// no lock file, no migration, no lease is touched. Whatever writes fails.
func Inspect(ctx context.Context, path string) (db *DB, err error) {
	abs, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(abs) // opening would make the file
	}
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	db = &DB{clock: time.Now, turn: make(chan struct{}, 1), prepared: map[string]*sql.Stmt{}}
	if db.reader, err = sql.Open("sqlite", dsn(abs, "query_only(1)")); err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	db.reader.SetMaxOpenConns(1)
	return db, nil
}
