package pg

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mergeflow/mergeflow/internal/store/postgres"
)

// Env names the variable with the DSN of a server to share.
const Env = "MERGEFLOW_TEST_PG"

const limit = time.Minute

// shared is this process's server, and its template once it is made.
var shared = sync.OnceValues(func() (string, error) {
	if dsn := os.Getenv(Env); dsn != "" {
		return dsn, nil
	}
	s, err := Start(context.Background(), Options{})
	if err != nil {
		return "", err
	}
	return s.DSN(superuser), nil // it ends with the process
})

var template = sync.OnceValues(func() (string, error) {
	admin, err := shared()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return makeTemplate(ctx, admin)
})

// Database makes a fresh, migrated database and answers its DSN. It is dropped
// when the test ends, whoever is still connected.
func Database(t testing.TB) string {
	t.Helper()
	name, err := template()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return lend(t, admin, " TEMPLATE "+name)
}

// Empty is Database without the migrations.
func Empty(t testing.TB) string {
	t.Helper()
	admin, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return lend(t, admin, " TEMPLATE template0")
}

// Durable is Database on a server of the test's own that runs as in
// production, fsync and all. For benchmarks.
func Durable(t testing.TB) string {
	t.Helper()
	dsn, _ := Crashable(t)
	return dsn
}

// Crashable is Durable with its server.
func Crashable(t testing.TB) (string, *Server) {
	t.Helper()
	s, err := Start(t.Context(), Options{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	dsn := lend(t, s.DSN(superuser), "")
	if err := postgres.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	return dsn, s
}

func lend(t testing.TB, admin, template string) string {
	t.Helper()
	name := "t_" + random()
	if err := execute(admin, "CREATE DATABASE "+name+template); err != nil {
		t.Fatalf("test database: %v", err)
	}
	t.Cleanup(func() {
		if err := execute(admin, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop test database: %v", err)
		}
	})
	return withDatabase(t, admin, name)
}

// Advance moves the clock of one database (mergeflow_now) forward by d, for all
// who are connected to it. The function stays an expression that the planner
// can inline, so that it costs a test what it costs in production.
func Advance(t testing.TB, dsn string, d time.Duration) {
	t.Helper()
	if err := execute(dsn, fmt.Sprintf(`DO $do$
DECLARE ahead bigint;
BEGIN
	PERFORM pg_advisory_xact_lock(%d);
	SELECT coalesce(substring(prosrc FROM '(-?[0-9]+) microseconds')::bigint, 0) INTO STRICT ahead
		FROM pg_proc WHERE oid = 'mergeflow_now()'::regprocedure;
	EXECUTE format('CREATE OR REPLACE FUNCTION mergeflow_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE'
		' AS $$ SELECT clock_timestamp() + interval ''%%s microseconds'' $$', ahead + %d);
END $do$`, lockKey("clock"), d.Microseconds())); err != nil {
		t.Fatalf("advance the database's clock: %v", err)
	}
}

// makeTemplate makes the migrated template, once per server and schema,
// whoever comes first. Its name holds a hash of the migrations.
func makeTemplate(ctx context.Context, admin string) (string, error) {
	h := fnv.New64a()
	err := fs.WalkDir(postgres.Migrations, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(postgres.Migrations, p)
		fmt.Fprintf(h, "%s %d %s", p, len(b), b)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("test template: %w", err)
	}
	name := fmt.Sprintf("template_%016x", h.Sum64())
	c, err := pgx.Connect(ctx, admin)
	if err != nil {
		return "", fmt.Errorf("test server (%s): %w", Env, err)
	}
	defer c.Close(context.WithoutCancel(ctx))
	// The lock goes with the connection.
	if _, err := c.Exec(ctx, "SELECT pg_advisory_lock($1)", lockKey("template")); err != nil {
		return "", fmt.Errorf("test template: %w", err)
	}
	var there bool
	if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there); err != nil {
		return "", fmt.Errorf("test template: %w", err)
	}
	if there {
		return name, nil
	}
	draft := "draft_" + random()
	dsn, err := replaceDatabase(admin, draft)
	if err != nil {
		return "", err
	}
	if _, err := c.Exec(ctx, "CREATE DATABASE "+draft+" TEMPLATE template0"); err != nil {
		return "", fmt.Errorf("test template: %w", err)
	}
	if err := postgres.Migrate(ctx, dsn); err != nil {
		return "", fmt.Errorf("test template: %w", err)
	}
	if _, err := c.Exec(ctx, "ALTER DATABASE "+draft+" RENAME TO "+name); err != nil {
		return "", fmt.Errorf("test template: %w", err)
	}
	return name, nil
}

func execute(dsn, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, sql)
	return errors.Join(err, c.Close(ctx))
}

func withDatabase(t testing.TB, dsn, name string) string {
	t.Helper()
	out, err := replaceDatabase(dsn, name)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func replaceDatabase(dsn, name string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", fmt.Errorf("%s must be a URL (postgres://…)", Env)
	}
	u.Path = "/" + name
	return u.String(), nil
}

func lockKey(name string) int64 {
	h := fnv.New64a()
	h.Write([]byte("mergeflow test " + name))
	return int64(h.Sum64() >> 1)
}

func random() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	return hex.EncodeToString(b[:])
}
