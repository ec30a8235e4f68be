package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// ledger is what PostgreSQL counts about itself.
type ledger struct{ wal, images, commits, inserted, updated, deleted, sagas, hot float64 }

// ledger reads the counts once nobody else is connected: a server process hands
// in its own when it ends.
func (d *database) ledger() ledger {
	d.tb.Helper()
	d.exec("SELECT pg_stat_force_next_flush()")
	for end := time.Now().Add(time.Minute); d.number("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mergeflow'") > 0; {
		if time.Now().After(end) {
			d.tb.Fatal("an instance is still connected")
		}
	}
	return ledger{
		wal:      d.number("SELECT pg_current_wal_lsn() - '0/0'"),
		images:   d.number("SELECT wal_fpi FROM pg_stat_wal"),
		commits:  d.number("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"),
		inserted: d.number("SELECT sum(n_tup_ins) FROM pg_stat_user_tables"),
		updated:  d.number("SELECT sum(n_tup_upd) FROM pg_stat_user_tables"),
		deleted:  d.number("SELECT sum(n_tup_del) FROM pg_stat_user_tables"),
		sagas:    d.number("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'saga_instances'"),
		hot:      d.number("SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'saga_instances'"),
	}
}

const costTitle = "What a transition costs PostgreSQL"

// costs says what the transitions between two ledgers cost the database.
func costs(driver, name string, before, after ledger, transitions float64, wal bound) {
	title := costTitle
	measurements.add(title, driver, name+": WAL a transition", (after.wal-before.wal)/transitions, bytesLong, wal)
	measurements.add(title, driver, name+": pages written whole into the WAL, a transition", (after.images-before.images)/transitions, count, bound{})
	measurements.add(title, driver, name+": rows inserted a transition", (after.inserted-before.inserted)/transitions, count, bound{})
	measurements.add(title, driver, name+": rows updated a transition", (after.updated-before.updated)/transitions, count, bound{})
	measurements.add(title, driver, name+": rows deleted a transition", (after.deleted-before.deleted)/transitions, count, bound{})
	measurements.add(title, driver, name+": commits a transition", (after.commits-before.commits)/transitions, count, bound{})
	measurements.add(title, driver, name+": HOT among the updates of saga rows", (after.hot-before.hot)/(after.sagas-before.sagas), percent, atLeast(0.60))
}

// ledgers counts what the database writes: for sagas that are due all at once,
// and for sagas that come one by one through the product's own door.
func ledgers(b *testing.B, d *database) {
	n := max(2000, sized(20_000))
	for _, c := range []struct {
		s    shape
		name string
		wal  bound
	}{
		{readyCore(b), "core flow, 50 bytes of data", atMost(1229)},
		{readyPull(b), fmt.Sprintf("flow pull, %d bytes of data", len(pullData)), bound{}},
	} {
		d.settle()
		for range n / 500 {
			d.feed(c.s, 500)
		}
		before := d.ledger()
		p := start(b, d, throughput)
		await(b, n*steps, p)
		p.stop()
		costs(d.driver, c.name, before, d.ledger(), float64(n*steps), c.wal)
	}
	oneByOne(b, d, max(1000, sized(5000)))
	measurements.explain(costTitle, "The core flow writes what every flow writes: the saga, its history and its command. Flow pull also writes its pull request's row. Both\n"+
		"are due all at once, with 200 workers. *One by one* is flow pull with production's options while eight callers start sagas through the\n"+
		"store's own door; a start counts as a transition there, as it writes history too.")
}

// oneByOne starts sagas as users do, several at a time, while an instance with
// production's options carries them forward. The start counts as a transition:
// it writes the first entry of the history.
func oneByOne(b *testing.B, d *database, n int) {
	db, err := options{Driver: d.driver, DSN: d.dsn}.open(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if _, err := db.CreateRepo(ctx, store.Repo{Name: "one-by-one", DefaultBranch: "main", MergeStyle: "merge"}); err != nil {
		b.Fatal(err)
	}
	pulls := make([]string, n)
	for i := range pulls {
		p, err := db.CreatePull(ctx, store.Pull{ID: uuid.Must(uuid.NewV7()).String(), Forge: "default", Repo: "one-by-one", Source: "f", Target: "main",
			Title: "Raise the limits", ForgeState: "open"}, nil)
		if err != nil {
			b.Fatal(err)
		}
		pulls[i] = p.ID
	}
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
	d.settle()
	before := d.ledger()
	if db, err = (options{Driver: d.driver, DSN: d.dsn}).open(b.Context()); err != nil {
		b.Fatal(err)
	}
	p := start(b, d, options{})
	var wg sync.WaitGroup
	const callers = 8
	for caller := range callers {
		wg.Go(func() {
			for i := caller; i < n; i += callers {
				_, err := db.StartPull(ctx, pulls[i], func(q store.Pull, _ *store.Locked, now time.Time) (store.StartPull, error) {
					row := saga.Row{ID: uuid.Must(uuid.NewV7()).String(), AggregateID: q.ID, CreatedAt: now, About: saga.About{Project: q.Repo, Title: q.Title},
						Data: saga.Patch(pull.Data{PullID: q.ID, Repo: q.Repo, IID: q.IID, Source: q.Source, Target: q.Target, Title: q.Title})}
					s, err := saga.Start(pull.Table, row, pull.Validating, "ada", "", saga.Settings{})
					return store.StartPull{New: s, Status: string(pull.StatusMerging)}, err
				})
				if err != nil {
					b.Error(err)
					return
				}
				if i%10 == 0 {
					_ = db.Wake(ctx) // as the door does; a lost one is what the poll is for
				}
			}
		})
	}
	wg.Wait()
	await(b, n*steps, p)
	p.stop()
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
	costs(d.driver, "flow pull, one by one", before, d.ledger(), float64(n*(steps+1)), bound{})
}
