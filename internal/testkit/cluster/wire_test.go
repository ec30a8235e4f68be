package cluster

import (
	"context"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// What the wire cuts is or is not committed, as asked, and the client sees a
// lost connection either way.
func TestWireCutsAtTheCommit(t *testing.T) {
	t.Parallel()
	dsn := pg.Empty(t)
	w := NewWire(t, dsn)
	direct, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close(context.Background())
	if _, err := direct.Exec(t.Context(), "CREATE TABLE t (n int PRIMARY KEY); CREATE TABLE other (n int)"); err != nil {
		t.Fatal(err)
	}
	ways := map[string]func(c *pgx.Conn, n int) error{
		"alone": func(c *pgx.Conn, n int) error {
			_, err := c.Exec(t.Context(), "INSERT INTO t VALUES ($1)", n)
			return err
		},
		"in a transaction": func(c *pgx.Conn, n int) error {
			tx, err := c.Begin(t.Context())
			if err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), "INSERT INTO t VALUES ($1)", n); err != nil {
				return err
			}
			return tx.Commit(t.Context())
		},
		"in a batch": func(c *pgx.Conn, n int) error {
			b := &pgx.Batch{}
			b.Queue("BEGIN")
			b.Queue("INSERT INTO t VALUES ($1)", n)
			b.Queue("COMMIT")
			return c.SendBatch(t.Context(), b).Close()
		},
	}
	n := 0
	for way, write := range ways {
		for _, after := range []bool{false, true} {
			n++
			what := fmt.Sprintf("%s, after: %v", way, after)
			c, err := pgx.Connect(t.Context(), w.DSN)
			if err != nil {
				t.Fatal(err)
			}
			cut := &Cut{After: after, Of: regexp.MustCompile("INTO t ")}
			w.Break(cut)
			// Neither a read nor another table's write is meant, nor a write that fails.
			var none *int
			if err := c.QueryRow(t.Context(), "SELECT max(n) FROM t WHERE n < 0").Scan(&none); err != nil {
				t.Errorf("%s: a read: %v", what, err)
			}
			if _, err := c.Exec(t.Context(), "INSERT INTO other VALUES ($1)", n); err != nil {
				t.Errorf("%s: another table: %v", what, err)
			}
			if after {
				if _, err := c.Exec(t.Context(), "INSERT INTO t VALUES (NULL)"); err == nil || c.IsClosed() {
					t.Errorf("%s: a write that fails: %v, closed %v", what, err, c.IsClosed())
				}
			}
			if err := write(c, n); err == nil || !c.IsClosed() {
				t.Errorf("%s: %v, closed %v", what, err, c.IsClosed())
			}
			select {
			case <-cut.Done:
			case <-time.After(patience):
				t.Fatalf("%s: not cut", what)
			}
			var there bool
			if err := direct.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM t WHERE n = $1)", n).Scan(&there); err != nil || there != after {
				t.Errorf("%s: committed %v, %v", what, there, err)
			}
		}
	}
}
