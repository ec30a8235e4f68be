package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mergeflow/mergeflow/internal/store"
)

// Stats asks the store for its counts (store.Sagas.Stats with the command kinds
// that this instance knows).
type Stats func(context.Context) (store.Stats, error)

const (
	statsPatience = 5 * time.Second // a scrape must not wait for a slow database
	statsMaxAge   = 5 * time.Second // nor may many scrapers load it
)

var (
	descSagas = prometheus.NewDesc("mergeflow_sagas", "Sagas by flow and state.", []string{"flow", "state", "open"}, nil)
	descDue   = prometheus.NewDesc("mergeflow_commands_due", "Commands that are due and unleased.", nil, nil)
	descLease = prometheus.NewDesc("mergeflow_commands_leased", "Commands that a worker holds.", nil, nil)
	descPark  = prometheus.NewDesc("mergeflow_commands_parked", "Due commands of kinds that this instance doesn't know.", nil, nil)
	descAge   = prometheus.NewDesc("mergeflow_oldest_due_seconds", "For how long the oldest due command has been due.", nil, nil)
	descUp    = prometheus.NewDesc("mergeflow_store_up", "1 when the database gave the figures beside this one; 0: they are missing.", nil, nil)
)

// gauges collects the store's figures at a scrape.
type gauges struct {
	stats Stats
	now   func() time.Time
	log   *slog.Logger

	mu   sync.Mutex
	last store.Stats
	at   time.Time
	err  error
}

func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSagas, descDue, descLease, descPark, descAge, descUp} {
		ch <- d
	}
}

// Collect gives no figures at all rather than old ones when the store can't be asked.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	now := g.now()
	s, err := g.ask(now)
	if err != nil {
		gauge(descUp, 0)
		return
	}
	gauge(descUp, 1)
	gauge(descDue, float64(s.Due))
	gauge(descLease, float64(s.Leased))
	gauge(descPark, float64(s.Parked))
	age := 0.0
	if !s.Oldest.IsZero() {
		age = max(0, now.Sub(s.Oldest).Seconds())
	}
	gauge(descAge, age)
	for _, c := range s.States {
		open := "false"
		if c.Open {
			open = "true"
		}
		gauge(descSagas, float64(c.Count), c.Flow, string(c.State), open)
	}
}

func (g *gauges) ask(now time.Time) (store.Stats, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.at.IsZero() && now.Sub(g.at) < statsMaxAge {
		return g.last, g.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), statsPatience)
	defer cancel()
	before := g.err
	g.last, g.err = g.stats(ctx)
	g.at = now
	if g.err != nil && before == nil {
		g.log.Warn("metrics: the store gives no figures", "error", g.err)
	}
	return g.last, g.err
}
