package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/store/storetest"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Harness{Open: openEnv, SecondHandle: true, RowLocks: true, BreaksCommit: true})
}

func openEnv(t testing.TB) storetest.Env {
	dsn := pg.Database(t)
	wire := newWire(t, dsn)
	return storetest.Env{
		Store:      open(t, wire.dsn),
		Advance:    func(d time.Duration) { pg.Advance(t, dsn, d) },
		Reopen:     func() store.Store { return open(t, dsn) },
		Exec:       func(sql string) { exec(t, dsn, sql) },
		Hold:       func(sagaID string) func() { return hold(t, dsn, "saga_instances", "saga_id", sagaID) },
		LoseCommit: func() { wire.loseAnswer("COMMIT") },
	}
}

func open(t testing.TB, dsn string) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn, Notify: true, MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

func exec(t testing.TB, dsn, sql string) {
	t.Helper()
	if _, err := connect(t, dsn).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// hold locks one row in a transaction of its own, until release is called.
func hold(t testing.TB, dsn, table, key, id string) (release func()) {
	t.Helper()
	c := connect(t, dsn)
	ctx := context.Background()
	tx, err := c.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "SELECT FROM "+table+" WHERE "+key+" = $1 FOR UPDATE", id); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(ctx); err != nil {
			t.Errorf("release: %v", err)
		}
	}
}

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}
