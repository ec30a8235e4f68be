package pg_test

import (
	"bufio"
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func query[T any](t *testing.T, c *pgx.Conn, sql string) (out T) {
	t.Helper()
	if err := c.QueryRow(t.Context(), sql).Scan(&out); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func TestDatabasesAreMigratedAndApart(t *testing.T) {
	t.Parallel()
	a, b := connect(t, pg.Database(t)), connect(t, pg.Database(t))
	if _, err := a.Exec(t.Context(), `INSERT INTO repositories (name, default_branch, merge_style, created_at) VALUES ('r', 'main', 'merge', now())`); err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, b, "SELECT count(*) FROM repositories"); n != 0 {
		t.Errorf("one database sees %d rows of the other", n)
	}
	if query[bool](t, connect(t, pg.Empty(t)), "SELECT to_regclass('repositories') IS NOT NULL") {
		t.Error("an empty database is migrated")
	}
}

func TestDatabaseIsDroppedWithItsTest(t *testing.T) {
	t.Parallel()
	outside := connect(t, pg.Empty(t))
	var name string
	t.Run("user", func(t *testing.T) {
		dsn := pg.Database(t)
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		name = strings.TrimPrefix(u.Path, "/")
		c, err := pgx.Connect(t.Context(), dsn) // still connected when the test ends
		if err != nil {
			t.Fatal(err)
		}
		if n := query[string](t, c, "SELECT current_database()"); n != name {
			t.Errorf("connected to %s, want %s", n, name)
		}
	})
	var n int
	if err := outside.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname = $1", name).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d databases are left, %v", n, err)
	}
}

func TestAdvanceMovesOneDatabasesClock(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	c, other := connect(t, dsn), connect(t, pg.Database(t))
	const ahead = "SELECT round(extract(epoch FROM mergeflow_now() - clock_timestamp()))::int"
	if n := query[int](t, c, ahead); n != 0 {
		t.Errorf("a fresh clock is %d s ahead", n)
	}
	pg.Advance(t, dsn, time.Hour)
	pg.Advance(t, dsn, 30*time.Second)
	if n := query[int](t, c, ahead); n != 3630 {
		t.Errorf("the clock is %d s ahead, want 3630", n)
	}
	if n := query[int](t, other, ahead); n != 0 {
		t.Errorf("another database's clock is %d s ahead", n)
	}
	// It stays an expression in the plan, no call per row.
	if plan := query[string](t, c, "EXPLAIN (VERBOSE, COSTS OFF, FORMAT JSON) SELECT mergeflow_now()"); strings.Contains(plan, "mergeflow_now") {
		t.Errorf("the clock is called: %s", plan)
	}
}

func TestTCPReachesTheSameDatabase(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	var byPort string
	t.Run("user", func(t *testing.T) {
		byPort = pg.TCP(t, dsn)
		u, err := url.Parse(byPort)
		if err != nil || u.Hostname() != "127.0.0.1" {
			t.Fatalf("%s, %v", byPort, err)
		}
		const name = "SELECT current_database()"
		if a, b := query[string](t, connect(t, dsn), name), query[string](t, connect(t, byPort), name); a != b {
			t.Errorf("%s by the socket, %s by the port", a, b)
		}
	})
	if c, err := pgx.Connect(t.Context(), byPort); err == nil {
		c.Close(t.Context())
		t.Error("the port is open after its test")
	}
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	s, err := pg.Start(t.Context(), pg.Options{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, s.DSN("postgres"))
	for setting, want := range map[string]string{"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "listen_addresses": ""} {
		if got := query[string](t, c, "SHOW "+setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	data := query[string](t, c, "SHOW data_directory")
	if info, err := os.Stat(filepath.Dir(data)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the server's folder: %v, %v", info, err)
	}
	s.Stop()
	if _, err := os.Stat(filepath.Dir(data)); !os.IsNotExist(err) {
		t.Errorf("the server's folder is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(s.Pid()))); !os.IsNotExist(err) {
		t.Errorf("the server runs on: %v", err)
	}
}

func TestCommittedSurvivesACrash(t *testing.T) {
	t.Parallel()
	dsn, s := pg.Crashable(t)
	c := connect(t, dsn)
	for _, sql := range []string{"CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)", "BEGIN", "INSERT INTO t VALUES (2)"} {
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	before := s.Pid()
	s.Crash()
	if _, err := c.Exec(t.Context(), "COMMIT"); err == nil {
		t.Error("a crashed server answers")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, connect(t, dsn), "SELECT sum(n)::int FROM t"); n != 1 {
		t.Errorf("the table holds %d, want what was committed", n)
	}
	if s.Pid() == before {
		t.Error("it is the same process")
	}
}

// The command sees the server, its exit status comes back, and the server is
// gone afterwards.
func TestServerBesideACommand(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "pgserver")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", bin, "./pgserver").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	for _, c := range []struct {
		name   string
		args   []string
		status int
	}{
		{"status", []string{"--", "sh", "-c", `echo "$` + pg.Env + `"; exit 7`}, 7},
		{"signal", []string{"--", "sh", "-c", `echo "$` + pg.Env + `"; kill -TERM $$`}, 128 + 15},
		{"no command", nil, 2},
		{"unknown command", []string{"--", "no-such-command"}, 127},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), bin, c.args...)
			out, err := cmd.Output()
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != c.status {
				t.Errorf("ended with %v, want status %d", err, c.status)
			}
			if len(out) == 0 {
				return
			}
			u, err := url.Parse(strings.TrimSpace(string(out)))
			if err != nil || u.Scheme != "postgres" {
				t.Fatalf("the command saw %q, %v", out, err)
			}
			if _, err := os.Stat(u.Query().Get("host")); !os.IsNotExist(err) {
				t.Errorf("the server's folder is left: %v", err)
			}
		})
	}
}

// A test process that is killed takes its server along, folder and all.
func TestKilledOwnerLeavesNothing(t *testing.T) {
	if os.Getenv("MERGEFLOW_TEST_OWNER") != "" {
		s, err := pg.Start(t.Context(), pg.Options{})
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString(s.DSN("postgres") + "\n")
		select {} // until it is killed
	}
	t.Parallel()
	owner := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledOwnerLeavesNothing$")
	owner.Env = append(os.Environ(), "MERGEFLOW_TEST_OWNER=1")
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	dir := u.Query().Get("host")
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // killed
	for end := time.Now().Add(20 * time.Second); ; {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is left", dir)
		}
		<-time.After(5 * time.Millisecond)
	}
}
