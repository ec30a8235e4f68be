package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func open(t testing.TB, o Options) *DB {
	t.Helper()
	db, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

const kind = "f/1/RUN/Do"

// start stores a saga with one due command, by way of a pull request.
func start(t testing.TB, db *DB, change func(*saga.CommandRow)) saga.Row {
	t.Helper()
	ctx := t.Context()
	_, err := db.CreateRepo(ctx, store.Repo{Name: "r", DefaultBranch: "main", MergeStyle: "merge"})
	if err != nil && !errors.Is(err, store.ErrExists) {
		t.Fatal(err)
	}
	p, err := db.CreatePull(ctx, store.Pull{Repo: "r", Source: "s", Target: "main", Title: "t"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	row, err := db.StartPull(ctx, p.ID, func(p store.Pull, _ *store.Locked, now time.Time) (store.StartPull, error) {
		r := saga.Row{ID: uuid.Must(uuid.NewV7()).String(), Flow: "f", FlowVersion: 1, AggregateID: p.ID, State: "RUN", Version: 1,
			CreatedAt: now, UpdatedAt: now, WaitingSince: now, Command: &saga.CommandRow{Type: kind, AvailableAt: now, QueuedSince: now}}
		if change != nil {
			change(r.Command)
		}
		return store.StartPull{Status: "merging", New: saga.Decision{Row: r, Moves: []saga.Move{{Seq: 1, Event: saga.Created, To: "RUN", Actor: "x"}}}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func claimAll(t testing.TB, db *DB, lease time.Duration) []store.Claimed {
	t.Helper()
	cs, err := db.Claim(t.Context(), store.Claim{Kinds: []store.ClaimKind{{Type: kind, Cap: 1000, Deadline: time.Hour}}, Max: 1000, Lease: lease, Queued: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

func TestReopenClearsLeases(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "m.db")
	db := open(t, Options{Path: path})
	row := start(t, db, nil)
	held := start(t, db, func(c *saga.CommandRow) {
		c.HeldFor, c.AvailableAt = uuid.NewString(), c.AvailableAt.Add(time.Hour)
	})
	later := start(t, db, func(c *saga.CommandRow) { c.AvailableAt = c.AvailableAt.Add(time.Hour) })
	if cs := claimAll(t, db, time.Hour); len(cs) != 1 || cs[0].Row.ID != row.ID {
		t.Fatalf("claimed %+v", cs)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Saga(t.Context(), row.ID); err == nil {
		t.Error("a closed database answers")
	}

	db = open(t, Options{Path: path})
	var got []string
	for _, c := range claimAll(t, db, time.Hour) {
		got = append(got, c.Row.ID)
		if c.Row.ID == row.ID && c.Row.Command.Attempt != 2 {
			t.Errorf("the dead worker's attempt doesn't count: %+v", c.Row.Command)
		}
	}
	if want := []string{row.ID, held.ID}; !slices.Equal(got, want) {
		t.Errorf("claimed %v after the restart, want %v and not the later %s", got, want, later.ID)
	}
}

func TestOneProcessOwnsTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "m.db")
	db := open(t, Options{Path: path})
	_, err := Open(t.Context(), Options{Path: path})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("process %d since", os.Getpid())) {
		t.Errorf("second open: %v", err)
	}
	if err := Migrate(t.Context(), path); !errors.Is(err, ErrInUse) {
		t.Errorf("migrate beside an owner: %v", err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("the owner: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	if err := Migrate(t.Context(), path); err != nil {
		t.Errorf("migrate after the owner is gone: %v", err)
	}
}

func TestOpenFailures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, filepath.Join(dir, "no", "folder.db"), dir} {
		if db, err := Open(t.Context(), Options{Path: path}); err == nil || db != nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// A failed open gives the file up.
	if err := os.Remove(text); err != nil {
		t.Fatal(err)
	}
	open(t, Options{Path: text})
}

func TestDurability(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Path: filepath.Join(t.TempDir(), "m.db")})
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000"} {
		err := db.write(t.Context(), "pragma", func(s *session) error {
			got, err := one(s, scanText, "PRAGMA "+pragma)
			if got != want {
				t.Errorf("%s is %s, want %s", pragma, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	err := db.read(t.Context(), "write by the read pool", func(q querier) error {
		_, err := all(q, scanInt, `DELETE FROM outbox_events RETURNING 1`)
		return err
	})
	if err == nil {
		t.Error("the read pool wrote")
	}
}

// A read doesn't wait for the writer, nor a cancelled write for its turn.
func TestTurns(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Path: filepath.Join(t.TempDir(), "m.db")})
	row := start(t, db, nil)
	err := db.write(t.Context(), "hold the turn", func(*session) error {
		if r, err := db.Saga(t.Context(), row.ID); err != nil || r.ID != row.ID {
			t.Errorf("a read beside a writer: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := db.Claim(ctx, store.Claim{Max: 1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second writer: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Both databases have the same migrations, tables and columns, so that a query
// or a page that knows one knows the other.
func TestSameSchemaAsPostgres(t *testing.T) {
	t.Parallel()
	read := func(dir string) map[string]map[string][]string {
		out := map[string]map[string][]string{}
		files, err := filepath.Glob(filepath.Join(dir, "*.sql"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", dir, files, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			out[filepath.Base(f)] = columns(string(b))
		}
		return out
	}
	want, got := read("../postgres/migrations"), read("migrations")
	for file, tables := range want {
		for table, cols := range tables {
			if !slices.Equal(got[file][table], cols) {
				t.Errorf("%s, %s: columns %v, PostgreSQL has %v", file, table, got[file][table], cols)
			}
		}
		if len(got[file]) != len(tables) {
			t.Errorf("%s: %d tables, PostgreSQL has %d", file, len(got[file]), len(tables))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d migrations, PostgreSQL has %d", len(got), len(want))
	}
}

var (
	tableDef  = regexp.MustCompile(`(?ms)^CREATE TABLE (\w+) \((.*?)^\)`)
	columnDef = regexp.MustCompile(`(?m)^    ([a-z_]+) +\w`)
)

// columns lists a migration's tables with their columns, sorted.
func columns(sql string) map[string][]string {
	out := map[string][]string{}
	for _, m := range tableDef.FindAllStringSubmatch(sql, -1) {
		for _, c := range columnDef.FindAllStringSubmatch(m[2], -1) {
			out[m[1]] = append(out[m[1]], c[1])
		}
		slices.Sort(out[m[1]])
	}
	return out
}

// A closed database holds no file open, whatever was asked of it before.
func TestCloseLeavesNoFileOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mergeflow.db")
	db := open(t, Options{Path: path})
	files := func() (n int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fds {
			if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, path) {
				n++
			}
		}
		return n
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.CreateRepo(t.Context(), store.Repo{Name: "r", DefaultBranch: "main", MergeStyle: "merge"}); err != nil {
		t.Fatal(err)
	}
	if files() == 0 {
		t.Error("an open database shows no open file: this test sees nothing")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if n := files(); n > 0 {
		t.Errorf("%d files are still open", n)
	}
}
