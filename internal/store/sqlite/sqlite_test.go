package sqlite

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/store/storetest"
)

// settable is a clock that stands still until it is moved.
type settable struct{ offset atomic.Int64 }

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.FixedZone("", 3600))

func (c *settable) Now() time.Time           { return epoch.Add(time.Duration(c.offset.Load())) }
func (c *settable) Advance(by time.Duration) { c.offset.Add(int64(by)) }

func env(path func(testing.TB) string) func(testing.TB) storetest.Env {
	return func(t testing.TB) storetest.Env {
		var c settable
		db, err := Open(t.Context(), Options{Path: path(t), Clock: c.Now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		return storetest.Env{Store: db, Advance: c.Advance, Exec: func(sql string) {
			t.Helper()
			if err := db.write(t.Context(), sql, func(s *session) error {
				_, err := s.exec(sql)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}}
	}
}

func TestConformanceFile(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Harness{Open: env(func(t testing.TB) string { return filepath.Join(t.TempDir(), "with ?#% in.db") })})
}

func TestConformanceMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Harness{Open: env(func(testing.TB) string { return Memory })})
}
