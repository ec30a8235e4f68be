package postgres_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/mergeflow/mergeflow/internal/store/postgres"
	"github.com/mergeflow/mergeflow/internal/store/storetest"
	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// openBench opens a database on a server that runs as in production.
func openBench(b *testing.B) (*postgres.DB, string) {
	b.Helper()
	dsn := pg.Durable(b)
	db, err := postgres.Open(b.Context(), postgres.Options{DSN: dsn, MaxConns: 4})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	return db, dsn
}

func BenchmarkTransitions(b *testing.B) {
	for _, perCommit := range []int{1, 200} {
		b.Run(fmt.Sprint(perCommit), func(b *testing.B) {
			ctx := context.Background()
			db, dsn := openBench(b)
			l := storetest.NewLoad(b, db, 400)
			l.Run(ctx, 800, 200) // warm up
			c := connect(b, dsn)
			wal := func() (n int64) {
				if err := c.QueryRow(ctx, "SELECT pg_current_wal_lsn() - '0/0'").Scan(&n); err != nil {
					b.Fatal(err)
				}
				return n
			}
			before := wal()
			b.ResetTimer()
			l.Run(ctx, b.N, perCommit)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "transitions/s")
			b.ReportMetric(float64(wal()-before)/float64(b.N), "WAL-B/transition")
			db.Close() // a server process hands in its counts when it ends
			for table, unit := range map[string]string{"saga_instances": "HOT-sagas", "outbox_events": "HOT-outbox"} {
				b.ReportMetric(hotShare(b, dsn, table), unit)
			}
		})
	}
}

// hotShare is how much of a table's updates touched no index.
func hotShare(b *testing.B, dsn, table string) float64 {
	b.Helper()
	c := connect(b, dsn)
	for {
		var others int
		if err := c.QueryRow(b.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mergeflow'").Scan(&others); err != nil {
			b.Fatal(err)
		}
		if others == 0 {
			break
		}
	}
	var share float64
	err := c.QueryRow(b.Context(), "SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1) FROM pg_stat_all_tables WHERE relname = $1", table).Scan(&share)
	if err != nil {
		b.Fatal(err)
	}
	return share
}

func BenchmarkGroupedOverSingle(b *testing.B) {
	db, _ := openBench(b)
	storetest.GroupedOverSingle(b, db)
}
