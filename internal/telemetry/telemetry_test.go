package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/store"
)

var _ engine.Observer = (*Telemetry)(nil)

func mustNew(t *testing.T, o Options) *Telemetry {
	t.Helper()
	x, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func scrape(t *testing.T, x *Telemetry) string {
	t.Helper()
	w := httptest.NewRecorder()
	x.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("answered %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func want(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains("\n"+page, "\n"+l+"\n") {
			t.Errorf("no line %q in:\n%s", l, page)
		}
	}
}

func TestWhatTheEngineTells(t *testing.T) {
	t.Parallel()
	x := mustNew(t, Options{Version: "1.2.3", Commit: "abc"})
	x.Transition("pull", "MERGING", "NOTIFYING", "ok")
	x.Transition("pull", "MERGING", "NOTIFYING", "ok")
	x.Step("pull", "Merge", "ok", 30*time.Millisecond)
	x.Step("pull", "Merge", "failed", 2*time.Second)
	x.Commit(7, 3*time.Millisecond)
	x.Claimed(5)
	x.Claimed(0)
	x.LeaseLost()
	x.Late()
	x.Panic("Merge")
	x.Callback("deploy", "duplicate")
	page := scrape(t, x)
	want(t, page,
		`mergeflow_transitions_total{event="ok",flow="pull",from="MERGING",to="NOTIFYING"} 2`,
		`mergeflow_step_duration_seconds_bucket{command="Merge",flow="pull",outcome="ok",le="0.025"} 0`,
		`mergeflow_step_duration_seconds_bucket{command="Merge",flow="pull",outcome="ok",le="0.1"} 1`,
		`mergeflow_step_duration_seconds_sum{command="Merge",flow="pull",outcome="failed"} 2`,
		`mergeflow_commit_batch_size_bucket{le="5"} 0`,
		`mergeflow_commit_batch_size_bucket{le="10"} 1`,
		`mergeflow_commit_duration_seconds_bucket{le="0.005"} 1`,
		`mergeflow_claims_total 1`,
		`mergeflow_claimed_commands_total 5`,
		`mergeflow_leases_lost_total 1`,
		`mergeflow_late_results_total 1`,
		`mergeflow_step_panics_total{command="Merge"} 1`,
		`mergeflow_callbacks_total{source="deploy",verdict="duplicate"} 1`,
	)
	if !strings.Contains(page, `mergeflow_build_info{commit="abc",go_version="go`) || !strings.Contains(page, `version="1.2.3"} 1`) {
		t.Error("no build info")
	}
	if !strings.Contains(page, "go_goroutines ") || !strings.Contains(page, "process_open_fds ") {
		t.Error("nothing about the process")
	}
	if strings.Contains(page, "mergeflow_store_up") {
		t.Error("figures of a store that there isn't")
	}
}

func TestStatsAtTheScrape(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	asked, fail := 0, error(nil)
	var log bytes.Buffer
	x := mustNew(t, Options{
		Out: &log,
		Now: func() time.Time { return now },
		Stats: func(ctx context.Context) (store.Stats, error) {
			asked++
			if _, ok := ctx.Deadline(); !ok {
				t.Error("a scrape could wait for ever")
			}
			return store.Stats{
				States: []store.StateCount{{Flow: "pull", State: "MERGED", Count: 9}, {Flow: "pull", State: "MERGING", Open: true, Count: int64(asked)}},
				Due:    3, Leased: 2, Parked: 1, Oldest: now.Add(-90 * time.Second),
			}, fail
		},
	})
	page := scrape(t, x)
	want(t, page,
		`mergeflow_store_up 1`, `mergeflow_commands_due 3`, `mergeflow_commands_leased 2`, `mergeflow_commands_parked 1`,
		`mergeflow_oldest_due_seconds 90`,
		`mergeflow_sagas{flow="pull",open="false",state="MERGED"} 9`, `mergeflow_sagas{flow="pull",open="true",state="MERGING"} 1`)

	now = now.Add(time.Second)
	want(t, scrape(t, x), `mergeflow_sagas{flow="pull",open="true",state="MERGING"} 1`)
	now = now.Add(statsMaxAge)
	want(t, scrape(t, x), `mergeflow_sagas{flow="pull",open="true",state="MERGING"} 2`)

	fail = errors.New("connection refused")
	for range 2 {
		now = now.Add(statsMaxAge)
		page = scrape(t, x)
		want(t, page, `mergeflow_store_up 0`)
		if strings.Contains(page, "mergeflow_sagas{") || !strings.Contains(page, "mergeflow_claims_total") {
			t.Error("old figures are shown as new, or the others are gone")
		}
	}
	if n := strings.Count(log.String(), "connection refused"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	x := mustNew(t, Options{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for k := range maxValues {
				x.Panic(fmt.Sprintf("command %d-%d", i, k))
			}
			x.Panic(strings.Repeat("x", 1000))
		})
	}
	wg.Wait()
	page := scrape(t, x)
	if n := strings.Count(page, "mergeflow_step_panics_total{"); n != maxValues+1 {
		t.Errorf("%d series", n)
	}
	want(t, page, fmt.Sprintf(`mergeflow_step_panics_total{command="other"} %d`, 3*maxValues+4))
}

func TestLogLevelIsLive(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	x := mustNew(t, Options{Level: "warn", Format: "json", Out: &out})
	x.Log.Info("one")
	if err := x.SetLevel("debug"); err != nil {
		t.Fatal(err)
	}
	x.Log.Debug("two", "n", 1)
	if err := x.SetLevel("loud"); err == nil {
		t.Error("a level that doesn't exist")
	}
	if err := x.SetLevel("error"); err != nil {
		t.Fatal(err)
	}
	x.Log.Warn("three")
	if got := out.String(); strings.Contains(got, "one") || !strings.Contains(got, `"msg":"two","n":1}`) || strings.Contains(got, "three") {
		t.Errorf("logged: %s", got)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	mustNew(t, Options{Out: &out}).Log.Info("hello", "n", 1)
	if !strings.Contains(out.String(), "level=INFO msg=hello n=1") {
		t.Errorf("logged: %s", out.String())
	}
	for _, o := range []Options{{Level: "loud"}, {Format: "xml"}} {
		if _, err := New(o); err == nil {
			t.Errorf("no complaint about %+v", o)
		}
	}
}
