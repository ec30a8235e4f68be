package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// Environment of a run: the share of the full sizes, and the page to write.
const (
	scaleEnv = "BENCH_SCALE"
	pageEnv  = "BENCH_PAGE"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(asProcess); spec != "" {
		var o options
		err := json.Unmarshal([]byte(spec), &o)
		if err == nil {
			err = instance(o, os.Stdin, os.Stdout)
		}
		exit(err)
	}
	code := m.Run()
	measurements.print(os.Stdout)
	if page := os.Getenv(pageEnv); page != "" && code == 0 {
		exit(writePage(page, measurements.markdown()))
	}
	os.Exit(code)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// scale is 1 for the sizes that are promised.
var scale = func() float64 {
	if v, err := strconv.ParseFloat(os.Getenv(scaleEnv), 64); err == nil && v > 0 {
		return v
	}
	return 0.02
}()

func sized(n int) int { return max(1, int(float64(n)*scale)) }

// perRound is how many sagas a round carries to their end.
func perRound() int { return min(max(sized(2000), 600), 2000) }

// rounds is how often each variant is measured.
func rounds() int { return min(max(sized(24), 5), 24) }

// lasting is a duration of the full run, and at least some seconds.
func lasting(d time.Duration) time.Duration {
	return max(time.Duration(float64(d)*scale), 6*time.Second)
}

func each(b *testing.B, run func(b *testing.B, open func(testing.TB) *database)) {
	b.Run(onPostgres, func(b *testing.B) {
		for b.Loop() {
			run(b, newPostgres)
		}
	})
	b.Run(onSQLite, func(b *testing.B) {
		for b.Loop() {
			run(b, newSQLite)
		}
	})
}

func BenchmarkGrowth(b *testing.B) {
	each(b, func(b *testing.B, open func(testing.TB) *database) {
		dbs := []*database{open(b)}
		for i := range 3 {
			if dbs[0].driver == onPostgres {
				dbs = append(dbs, dbs[0].sibling(b, fmt.Sprint("growth_", i+1)))
				continue
			}
			dbs = append(dbs, open(b))
		}
		growth(b, dbs)
	})
}

func BenchmarkGrouping(b *testing.B) {
	each(b, func(b *testing.B, open func(testing.TB) *database) {
		d := open(b)
		if d.driver == onPostgres {
			grouping(b, d, d.sibling(b, "engines"))
			return
		}
		grouping(b, d, open(b))
	})
}

func BenchmarkLedger(b *testing.B) {
	for b.Loop() {
		ledgers(b, newPostgres(b))
	}
}

func BenchmarkIdle(b *testing.B) {
	each(b, func(b *testing.B, open func(testing.TB) *database) { idleCost(b, open(b)) })
}

func BenchmarkProcesses(b *testing.B) {
	for b.Loop() {
		processes(b, newPostgres(b))
	}
}

func BenchmarkSnapshot(b *testing.B) {
	each(b, func(b *testing.B, open func(testing.TB) *database) { snapshot(b, open(b)) })
}

func BenchmarkMemory(b *testing.B) {
	each(b, func(b *testing.B, open func(testing.TB) *database) { memory(b, open(b)) })
}
