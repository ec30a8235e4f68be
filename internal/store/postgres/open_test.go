package postgres_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

func TestMigrateFromManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	dsn := pg.Empty(t)
	db := open(t, dsn)
	if v, err := db.Schema(t.Context()); v != 0 || err != nil {
		t.Errorf("an empty database has schema %d, %v", v, err)
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := postgres.Migrate(t.Context(), dsn); err != nil {
				t.Errorf("migrate: %v", err)
			}
		})
	}
	all.Wait()
	if v, err := db.Schema(t.Context()); v < 2 || err != nil {
		t.Errorf("schema %d, %v", v, err)
	}
	if _, err := db.Now(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestErrorsKeepThePassword(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-word"
	for _, dsn := range []string{
		"postgres://u:" + secret + "@127.0.0.1:1/d",
		"postgres://u:" + secret + "@127.0.0.1:port/d",
		"host=127.0.0.1 port=1 password=" + secret + " connect_timeout=x",
		"postgres://u:" + secret + "%zz@h/d",
	} {
		_, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn})
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("open: %v", err)
		}
		if err := postgres.Migrate(t.Context(), dsn); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("migrate: %v", err)
		}
	}
}

// A listener whose connection is lost comes back, and wakes for what it missed.
func TestListenComesBack(t *testing.T) {
	t.Parallel()
	dsn := pg.Database(t)
	db := open(t, dsn)
	ctx, cancel := context.WithCancel(t.Context())
	woken, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- db.Listen(ctx, func() { woken <- struct{}{} }) }()
	<-woken // it listens
	c := connect(t, dsn)
	var killed int
	if err := c.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE 'LISTEN%'`).Scan(&killed); err != nil || killed != 1 {
		t.Fatalf("ended %d connections, %v", killed, err)
	}
	<-woken // and again
	if err := open(t, dsn).Wake(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-woken // another process's wake-up
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Errorf("listen ended with %v", err)
	}
}

func TestPollOnlyListensToNothing(t *testing.T) {
	t.Parallel()
	db, err := postgres.Open(t.Context(), postgres.Options{DSN: pg.Database(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Listen(t.Context(), func() { t.Error("woken") }); err != nil {
		t.Errorf("listen: %v", err)
	}
	if err := db.Wake(t.Context()); err != nil {
		t.Errorf("wake: %v", err)
	}
}

func TestUnstorableJSON(t *testing.T) {
	t.Parallel()
	for json, want := range map[string]bool{
		`{}`:                     false,
		`{"a":"\\u0000"}`:        false, // a backslash and a text
		`{"a":"\u0000"}`:         true,
		`{"a":"\\\u0000"}`:       true,
		`{"\u0000":1}`:           true,
		`{"a":"\uD83D\uDE00"}`:   false,
		`{"a":"\ud83d"}`:         true,
		`{"a":"\ud83d x"}`:       true,
		`{"a":"\ud83d\ud83d"}`:   true,
		`{"a":"\ude00"}`:         true,
		`{"a":"\ud83d\n\ude00"}`: true,
		`{"a":"é\n\t\u00e9"}`:    false,
	} {
		if got := postgres.Unstorable([]byte(json)); got != want {
			t.Errorf("%s: %v", json, got)
		}
	}
}

func TestIDsHaveOneSpelling(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"01890a5d-ac96-774b-bcce-b302099a8057":          true,
		"01890A5D-AC96-774B-BCCE-B302099A8057":          false,
		"01890a5dac96774bbcceb302099a8057":              false,
		"{01890a5d-ac96-774b-bcce-b302099a8057}":        false,
		"urn:uuid:01890a5d-ac96-774b-bcce-b302099a8057": false,
		"01890a5d-ac96-774b-bcce-b302099a805g":          false,
		"":                                              false,
	} {
		if got := postgres.IsID(id); got != want {
			t.Errorf("%q: %v", id, got)
		}
	}
}
