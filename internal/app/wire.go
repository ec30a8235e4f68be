package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/notify/senders"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/search/embedded"
	"github.com/mergeflow/mergeflow/internal/search/httpindex"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

// database says where the database is: a file, or a DSN.
func database(cfg *config.Config) (file, dsn string, err error) {
	address := cfg.Database.Value()
	if path, ok := strings.CutPrefix(address, "sqlite:"); ok {
		return path, "", nil
	}
	if strings.HasPrefix(address, "postgres://") || strings.HasPrefix(address, "postgresql://") {
		return "", address, nil
	}
	return "", "", errors.New("database: must be sqlite:PATH or postgres://…")
}

// openStore opens the database and brings its schema up to date.
func openStore(ctx context.Context, cfg *config.Config) (store.Store, error) {
	file, dsn, err := database(cfg)
	if err != nil {
		return nil, err
	}
	if dsn == "" {
		if err := makeDir("database", filepath.Dir(file)); err != nil {
			return nil, err
		}
		db, err := sqlite.Open(ctx, sqlite.Options{Path: file})
		if err != nil {
			return nil, fmt.Errorf("database: %w", err)
		}
		return db, nil
	}
	if err := postgres.Migrate(ctx, dsn); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	// Steps, pages and calls read beside the committer; all workers at once
	// would be more than a shared server likes.
	conns := int32(8 + min(cfg.Engine.Workers, 64)/4)
	db, err := postgres.Open(ctx, postgres.Options{DSN: dsn, Notify: cfg.Engine.Notify, MaxConns: conns})
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	return db, nil
}

// Migrate brings the database's schema up to date and answers its number.
func Migrate(ctx context.Context, cfg *config.Config) (int64, error) {
	db, err := openStore(ctx, cfg)
	if err != nil {
		return 0, err
	}
	schema, err := db.Schema(ctx)
	return schema, errors.Join(err, db.Close())
}

// openIndex opens the search index; closing it is the answer's second part.
func openIndex(ctx context.Context, cfg *config.Config, source search.Source) (search.Index, func() error, error) {
	if cfg.Search.Kind == "http" {
		x, err := httpindex.New(httpindex.Options{URL: cfg.Search.URL, Secret: cfg.Search.Secret.Func()})
		if err != nil {
			return nil, nil, err
		}
		return x, func() error { x.Close(); return nil }, nil
	}
	x, err := embedded.Open(ctx, embedded.Options{Path: filepath.Join(cfg.DataDir, "search.db"), Source: source})
	if err != nil {
		return nil, nil, fmt.Errorf("data_dir: search index: %w", err)
	}
	return x, x.Close, nil
}

func notifier(cfg *config.Config) (notify.Notifier, error) {
	return senders.New(senders.Options{
		URLs: config.Values(cfg.Notify.URLs), WebhookURL: cfg.Notify.Webhook.URL, WebhookSecret: cfg.Notify.Webhook.Secret.Func(),
	})
}

// makeDir makes a folder that only its owner reads: it holds code and a database.
func makeDir(key, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}
