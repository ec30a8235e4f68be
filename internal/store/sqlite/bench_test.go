package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
	"github.com/mergeflow/mergeflow/internal/store/storetest"
)

// openBench opens a file on a disk, with all that makes a commit durable.
func openBench(b *testing.B) store.Store {
	b.Helper()
	db, err := sqlite.Open(b.Context(), sqlite.Options{Path: filepath.Join(b.TempDir(), "bench.db")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	return db
}

func BenchmarkTransitions(b *testing.B) {
	for _, perCommit := range []int{1, 200} {
		b.Run(fmt.Sprint(perCommit), func(b *testing.B) {
			ctx := context.Background()
			l := storetest.NewLoad(b, openBench(b), 400)
			l.Run(ctx, 800, 200) // warm up
			b.ResetTimer()
			l.Run(ctx, b.N, perCommit)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "transitions/s")
		})
	}
}

func BenchmarkGroupedOverSingle(b *testing.B) { storetest.GroupedOverSingle(b, openBench(b)) }
