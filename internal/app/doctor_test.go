package app_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/app"
	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// What is broken in the data is named, with its operation.
func TestDoctorFindsWhatIsBroken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, "")
	op := w.submit("a", "1", "")
	w.await(op, "APPROVAL_SENT")
	file := filepath.Join(w.s.data, "mergeflow.db")
	cfg := configured(t, w.s.data, "sqlite:"+file)
	if all := app.Diagnose(context.Background(), cfg, true); slices.ContainsFunc(all, func(x app.Examined) bool { return !x.OK }) {
		t.Errorf("a healthy server: %+v", all)
	}
	db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`DELETE FROM outbox_events`); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, x := range app.Diagnose(context.Background(), cfg, true) {
		found = found || x.What == "I3" && !x.OK && x.Saga == op && strings.Contains(x.Detail, "no command")
	}
	if !found {
		t.Error("a waiting operation without a command was not found")
	}
}

// A database that this program doesn't know is named as such, and nothing more
// is asked of it.
func TestDoctorLooksAtTheSchema(t *testing.T) {
	t.Parallel()
	for schema, want := range map[int]string{
		1:  "mergeflow migrate brings it up to date",
		99: "a newer mergeflow has been here",
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "mergeflow.db")
		db, err := sql.Open("sqlite", file)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{`CREATE TABLE goose_db_version (version_id INTEGER, is_applied INTEGER)`, fmt.Sprintf(`INSERT INTO goose_db_version VALUES (%d, 1)`, schema)} {
			if _, err := db.Exec(q); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		last := diagnosed(t, dir, "sqlite:"+file)
		if last.What != "database" || last.OK || !strings.Contains(last.Detail, fmt.Sprint("its schema is ", schema)) || !strings.Contains(last.Detail, want) {
			t.Errorf("schema %d: %+v", schema, last)
		}
	}
}

// A database that can't be reached is one line, without its password.
func TestDoctorWithoutADatabase(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	last := diagnosed(t, t.TempDir(), "postgres://ada:geheim@"+addr+"/x?sslmode=disable")
	if last.What != "database" || last.OK || strings.Contains(last.Detail, "geheim") {
		t.Errorf("%+v", last)
	}
	// An empty one is reached, and has no schema yet.
	last = diagnosed(t, t.TempDir(), pg.Empty(t))
	if last.What != "database" || last.OK || !strings.Contains(last.Detail, "its schema is 0") {
		t.Errorf("%+v", last)
	}
}

func TestDoctorComparesClocks(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	cfg := configured(t, t.TempDir(), dsn)
	clock := func() app.Examined {
		all := app.Diagnose(t.Context(), cfg, false)
		return all[len(all)-1]
	}
	if c := clock(); c.What != "clock" || !c.OK {
		t.Errorf("%+v", c)
	}
	pg.Advance(t, dsn, time.Hour)
	if c := clock(); c.What != "clock" || c.OK || !strings.Contains(c.Detail, "are 1h0m0") {
		t.Errorf("%+v", c)
	}
}

// Beside a server that doesn't run nothing is made, and nothing is left.
func TestDoctorLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := configured(t, dir, "sqlite:"+filepath.Join(dir, "x.db"))
	if _, err := app.Migrate(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	look := func() (out []string) {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%s %x", f.Name(), sha256.Sum256(b)))
		}
		return out
	}
	before := look()
	for _, x := range app.Diagnose(t.Context(), cfg, true) {
		if !x.OK {
			t.Errorf("%+v", x)
		}
	}
	if after := look(); !slices.Equal(before, after) {
		t.Errorf("the folder was %q and is %q", before, after)
	}
}

func configured(t *testing.T, dir, database string) *config.Config {
	t.Helper()
	cfg, err := config.Load(app.ConfigOptions("", nil, map[string]any{"data_dir": dir, "database": database}))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// diagnosed is the last thing that a diagnosis with data looked at.
func diagnosed(t *testing.T, dir, database string) app.Examined {
	t.Helper()
	all := app.Diagnose(t.Context(), configured(t, dir, database), true)
	return all[len(all)-1]
}
