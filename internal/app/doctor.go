package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// Examined is one thing that Diagnose looked at.
type Examined struct {
	What   string `json:"what"` // git, data_dir, database, clock, or an invariant
	OK     bool   `json:"ok"`
	Saga   string `json:"operationId,omitempty"`
	Detail string `json:"detail"`
}

// inspectable is what a diagnosis asks of a database.
type inspectable interface {
	store.Auditor
	Ping(ctx context.Context) error
	Schema(ctx context.Context) (int64, error)
	Now(ctx context.Context) (time.Time, error)
	Close() error
}

const (
	clockTolerance = 2 * time.Second
	maxFindings    = 1000
)

// Diagnose looks at what a server needs and, with data, at the invariants that
// can be asked of the database. It reads only, also beside a running server.
func Diagnose(ctx context.Context, cfg *config.Config, data bool) []Examined {
	var out []Examined
	look := func(what string, f func() (string, error)) bool {
		detail, err := f()
		if err != nil {
			detail = err.Error()
		}
		out = append(out, Examined{What: what, OK: err == nil, Detail: detail})
		return err == nil
	}
	look("git", func() (string, error) { return git.Check(ctx) })
	look("data_dir", func() (string, error) { return cfg.DataDir, writable(cfg.DataDir) })
	var db inspectable
	if !look("database", func() (detail string, err error) {
		if db, err = inspect(ctx, cfg); err != nil {
			return "", err
		}
		if err := db.Ping(ctx); err != nil {
			return "", err
		}
		schema, err := db.Schema(ctx)
		return fmt.Sprintf("%s, schema %d", cfg.DatabaseShown(), schema), err
	}) {
		if db != nil {
			_ = db.Close()
		}
		return out
	}
	defer db.Close()
	look("clock", func() (string, error) {
		before := time.Now()
		now, err := db.Now(ctx)
		if err != nil {
			return "", err
		}
		apart := now.Sub(before).Abs()
		if apart > clockTolerance+time.Since(before) {
			return "", fmt.Errorf("this machine's clock and the database's are %s apart", apart.Round(time.Millisecond))
		}
		return "this machine's clock and the database's agree", nil
	})
	if !data {
		return out
	}
	var flows []store.AuditFlow
	for _, f := range Flows() {
		flows = append(flows, store.AuditOf(f))
	}
	findings, err := db.Audit(ctx, flows, maxFindings)
	if err != nil {
		return append(out, Examined{What: "audit", Detail: err.Error()})
	}
	for _, f := range findings {
		out = append(out, Examined{What: f.Invariant, Saga: f.SagaID, Detail: f.Detail})
	}
	if len(findings) == 0 {
		out = append(out, Examined{What: "audit", OK: true, Detail: "every invariant that can be asked of the database holds"})
	}
	return out
}

func inspect(ctx context.Context, cfg *config.Config) (inspectable, error) {
	file, dsn, err := database(cfg)
	if err != nil {
		return nil, err
	}
	if dsn != "" {
		return postgres.Open(ctx, postgres.Options{DSN: dsn, MaxConns: 2})
	}
	db, err := sqlite.Inspect(ctx, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no database at %s yet: mergeflow serve makes it", strings.TrimPrefix(cfg.DatabaseShown(), "sqlite:"))
	}
	return db, err
}

// writable asks whether the folder, or the one it would be made in, can be written to.
func writable(dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for {
		info, err := os.Stat(abs)
		switch {
		case errors.Is(err, fs.ErrNotExist) && filepath.Dir(abs) != abs:
			abs = filepath.Dir(abs)
			continue
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s is no folder", abs)
		}
		const write, search = 2, 1
		if err := syscall.Access(abs, write|search); err != nil {
			return fmt.Errorf("%s can't be written to: %w", abs, err)
		}
		return nil
	}
}
