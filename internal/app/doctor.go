package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/doctor"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// Examined is one thing that Diagnose looked at.
type Examined struct {
	What   string `json:"what"` // config, git, data_dir, database, clock, audit, merges, or an invariant
	OK     bool   `json:"ok"`
	Saga   string `json:"operationId,omitempty"`
	Detail string `json:"detail"`
}

// inspectable is what a diagnosis asks of a database.
type inspectable interface {
	store.Auditor
	doctor.Database
	Schema(ctx context.Context) (int64, error)
	Now(ctx context.Context) (time.Time, error)
	Close() error
}

const (
	clockTolerance = 2 * time.Second
	maxFindings    = 1000
	// connectLimit is how long a database may take to answer at all.
	connectLimit = 10 * time.Second
)

// Diagnose looks at what a server needs and, with data, at the invariants that
// can be asked of the database, and whether git holds the merges that the
// database knows, once each. It reads only, also beside a running server.
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
	look("config", func() (string, error) { return "serve would start with it", permitted(cfg) })
	look("git", func() (string, error) { return git.Check(ctx) })
	look("data_dir", func() (string, error) { return cfg.DataDir, writable(cfg.DataDir) })
	var db inspectable
	defer func() {
		if db != nil {
			_ = db.Close()
		}
	}()
	if !look("database", func() (detail string, err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, connectLimit, fmt.Errorf("it did not answer within %s", connectLimit))
		defer cancel()
		if db, err = inspect(ctx, cfg); err == nil {
			detail, err = schemaOf(ctx, cfg, db)
		}
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return detail, err
	}) {
		return out
	}
	look("clock", func() (string, error) { return "this machine's and the database's agree", apart(ctx, db) })
	if !data {
		return out
	}
	report := func(what string, findings []store.Finding, well string, err error) {
		for _, f := range findings {
			out = append(out, Examined{What: f.Invariant, Saga: f.SagaID, Detail: f.Detail})
		}
		switch {
		case err != nil:
			out = append(out, Examined{What: what, Detail: err.Error()})
		case len(findings) >= maxFindings:
			out = append(out, Examined{What: what, Detail: fmt.Sprintf("there may be more than these %d", maxFindings)})
		case len(findings) == 0:
			out = append(out, Examined{What: what, OK: true, Detail: well})
		}
	}
	findings, err := db.Audit(ctx, auditFlows(cfg), maxFindings)
	report("audit", findings, "every invariant that can be asked of the database holds", err)
	merges, err := doctor.Merges(ctx, db, pull.LocalForge, func(name string) git.Repo { return repository(cfg, name) }, maxFindings)
	well := fmt.Sprintf("%d in the database, each once on its branch", merges.Merges-merges.Gone)
	if merges.Gone > 0 {
		well += fmt.Sprintf("; %d more into branches that are gone", merges.Gone)
	}
	report("merges", merges.Findings, well, err)
	return out
}

// schemaOf says which database it is and whether this program knows its schema.
func schemaOf(ctx context.Context, cfg *config.Config, db inspectable) (string, error) {
	schema, err := db.Schema(ctx)
	if err != nil {
		return "", err
	}
	newest := newestSchema(sqlite.Migrations) // both databases have the same numbers
	switch {
	case schema < newest:
		return "", fmt.Errorf("its schema is %d, this program's %d: mergeflow migrate brings it up to date, and so does serve", schema, newest)
	case schema > newest:
		return "", fmt.Errorf("its schema is %d, this program knows %d: a newer mergeflow has been here", schema, newest)
	}
	return fmt.Sprintf("%s, schema %d", cfg.DatabaseShown(), schema), nil
}

func newestSchema(migrations fs.FS) (newest int64) {
	names, _ := fs.Glob(migrations, "*.sql") // fails only for a bad pattern
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			newest = max(newest, n)
		}
	}
	return newest
}

// apart compares the clocks; the way to the database and back is no difference.
func apart(ctx context.Context, db inspectable) error {
	before := time.Now()
	now, err := db.Now(ctx)
	if err != nil {
		return err
	}
	if d := now.Sub(before).Abs(); d > clockTolerance+time.Since(before) {
		return fmt.Errorf("this machine's and the database's are %s apart", d.Round(time.Millisecond))
	}
	return nil
}

func auditFlows(cfg *config.Config) []store.AuditFlow {
	attempts := settingsOf(cfg).AttemptLimit()
	var out []store.AuditFlow
	for _, f := range Flows() {
		a := store.AuditOf(f)
		a.Attempts = attempts
		out = append(out, a)
	}
	return out
}

// repository is where the local forge keeps one.
func repository(cfg *config.Config, name string) git.Repo {
	dir := filepath.Join(cfg.DataDir, "repos", filepath.FromSlash(name)+".git")
	if abs, err := filepath.Abs(dir); err == nil { // fails only without a working directory
		dir = abs
	}
	return git.Repo{Dir: dir}
}

func inspect(ctx context.Context, cfg *config.Config) (inspectable, error) {
	file, dsn, err := database(cfg)
	if err != nil {
		return nil, err
	}
	if dsn != "" {
		db, err := postgres.Open(ctx, postgres.Options{DSN: dsn, MaxConns: 2})
		if err != nil {
			return nil, err // and no interface around a nil pointer
		}
		return db, nil
	}
	db, err := sqlite.Inspect(ctx, file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no database at %s yet: mergeflow serve makes it", strings.TrimPrefix(cfg.DatabaseShown(), "sqlite:"))
	case err != nil:
		return nil, err
	}
	return db, nil
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
