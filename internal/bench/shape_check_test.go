package bench

import (
	"testing"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// What is written in bulk is what the product would have written: its audit
// finds nothing, before and after an instance has finished what is due.
func TestLoadHasTheRightShape(t *testing.T) {
	t.Parallel()
	for driver, open := range map[string]func(testing.TB) *database{
		onPostgres: func(tb testing.TB) *database { return openPostgres(tb, pg.Database(tb)) },
		onSQLite:   newSQLite,
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			d.load(finishedPull(t), 10)
			d.load(waitingChange(t), 10)
			for _, s := range []shape{readyPull(t), readyCore(t)} {
				d.feed(s, 10)
			}
			audit(t, d)
			p := start(t, d, options{Workers: 4})
			await(t, 20*steps, p)
			left := p.stop()
			if left.Goroutines > 0 || left.Files > 0 {
				t.Errorf("an instance leaves %d goroutines and %d files behind", left.Goroutines, left.Files)
			}
			audit(t, d)
			if n := d.number("SELECT count(*) FROM saga_instances WHERE closed_at IS NOT NULL"); n != 30 {
				t.Errorf("%v of 30 sagas are finished", n)
			}
			if n := d.number("SELECT count(*) FROM saga_history"); n != 30*(steps+1)+10 {
				t.Errorf("%v history rows", n)
			}
			if n := d.number("SELECT count(*) FROM pull_requests WHERE saga_status = 'merged' AND merge_commit <> ''"); n != 20 {
				t.Errorf("%v of 20 pull requests are merged", n)
			}
		})
	}
}

func audit(t *testing.T, d *database) {
	t.Helper()
	db, err := options{Driver: d.driver, DSN: d.dsn}.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	found, err := db.Audit(t.Context(), []store.AuditFlow{store.AuditOf(core), store.AuditOf(pull.Table), store.AuditOf(change.Table)}, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Errorf("%s: %s %s", f.Invariant, f.SagaID, f.Detail)
	}
}
