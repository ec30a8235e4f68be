// Package telemetry makes the process observable: a log whose level can change
// while it runs, and metrics in a registry of its own, served for Prometheus.
//
// The engine knows none of this. It tells an interface of its own, which
// *Telemetry satisfies, what happened after it was committed.
//
// Labels are bounded: flows, states, commands and events come from tables, and
// should some code ever pass a user's text, the series end at a fixed number
// and the rest is counted as "other".
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Options say what to make.
type Options struct {
	Level   string    // debug, info, warn or error; empty: info
	Format  string    // text or json; empty: text
	Out     io.Writer // where the log goes, usually os.Stderr; nil: nowhere
	Version string
	Commit  string
	Stats   Stats            // asked at a scrape; nil: no figures from the database
	Now     func() time.Time // for the ages that Stats gives; nil: time.Now
}

// Telemetry is the log and the metrics. All methods are quick, never block and
// are safe for concurrent use.
type Telemetry struct {
	Log *slog.Logger

	level    slog.LevelVar
	registry *prometheus.Registry

	transitions *prometheus.CounterVec
	steps       *prometheus.HistogramVec
	batches     prometheus.Histogram
	commits     prometheus.Histogram
	claims      prometheus.Counter
	claimed     prometheus.Counter
	leasesLost  prometheus.Counter
	late        prometheus.Counter
	panics      *prometheus.CounterVec
	callbacks   *prometheus.CounterVec

	labels labels
}

// New makes the log and the metrics. Its errors are a level or a format that
// doesn't exist.
func New(o Options) (*Telemetry, error) {
	t := &Telemetry{registry: prometheus.NewRegistry()}
	if o.Level == "" {
		o.Level = "info"
	}
	if err := t.SetLevel(o.Level); err != nil {
		return nil, err
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &slog.HandlerOptions{Level: &t.level}
	switch o.Format {
	case "", "text":
		t.Log = slog.New(slog.NewTextHandler(o.Out, h))
	case "json":
		t.Log = slog.New(slog.NewJSONHandler(o.Out, h))
	default:
		return nil, fmt.Errorf("telemetry: no log format %q", o.Format)
	}

	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	t.transitions = counter("mergeflow_transitions_total", "Committed transitions.", "flow", "from", "to", "event")
	t.steps = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "mergeflow_step_duration_seconds", Help: "How long steps took, by outcome.",
		Buckets: []float64{.001, .005, .025, .1, .5, 1, 5, 15, 60, 300},
	}, []string{"flow", "command", "outcome"})
	t.batches = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "mergeflow_commit_batch_size", Help: "Sagas per committed transaction.",
		Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500},
	})
	t.commits = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "mergeflow_commit_duration_seconds", Help: "How long those transactions took.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
	})
	t.claims = prometheus.NewCounter(prometheus.CounterOpts{Name: "mergeflow_claims_total", Help: "Claims that found work."})
	t.claimed = prometheus.NewCounter(prometheus.CounterOpts{Name: "mergeflow_claimed_commands_total", Help: "Commands that were leased."})
	t.leasesLost = prometheus.NewCounter(prometheus.CounterOpts{Name: "mergeflow_leases_lost_total", Help: "Leases that ended before their step did."})
	t.late = prometheus.NewCounter(prometheus.CounterOpts{Name: "mergeflow_late_results_total", Help: "Results that came after their lease and changed no state."})
	t.panics = counter("mergeflow_step_panics_total", "Steps that panicked.", "command")
	t.callbacks = counter("mergeflow_callbacks_total", "Callbacks by verdict.", "source", "verdict")
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "mergeflow_build_info", Help: "Always 1; the labels say what runs."},
		[]string{"version", "commit", "go_version"})
	build.WithLabelValues(o.Version, o.Commit, runtime.Version()).Set(1)

	t.registry.MustRegister(t.transitions, t.steps, t.batches, t.commits, t.claims, t.claimed, t.leasesLost, t.late,
		t.panics, t.callbacks, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if o.Stats != nil {
		t.registry.MustRegister(&gauges{stats: o.Stats, now: o.Now, log: t.Log})
	}
	return t, nil
}

// SetLevel changes what is logged from now on: debug, info, warn or error.
func (t *Telemetry) SetLevel(level string) error {
	switch level {
	case "debug":
		t.level.Set(slog.LevelDebug)
	case "info":
		t.level.Set(slog.LevelInfo)
	case "warn":
		t.level.Set(slog.LevelWarn)
	case "error":
		t.level.Set(slog.LevelError)
	default:
		return fmt.Errorf("telemetry: no log level %q", level)
	}
	return nil
}

// Handler serves the metrics. Scrapes that overlap share one collection.
func (t *Telemetry) Handler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{
		ErrorLog:       errorLog{t.Log},
		ErrorHandling:  promhttp.ContinueOnError,
		CoalesceGather: true,
	})
}

// errorLog lets the handler write to the log.
type errorLog struct{ log *slog.Logger }

func (l errorLog) Println(v ...any) { l.log.Error("metrics", "error", fmt.Sprint(v...)) }

// Transition counts one committed transition.
func (t *Telemetry) Transition(flow, from, to, event string) {
	t.transitions.WithLabelValues(t.labels.bound("flow", flow), t.labels.bound("state", from),
		t.labels.bound("state", to), t.labels.bound("event", event)).Inc()
}

// Step notes how long one execution of a command took and how it ended.
func (t *Telemetry) Step(flow, command, outcome string, took time.Duration) {
	t.steps.WithLabelValues(t.labels.bound("flow", flow), t.labels.bound("command", command),
		t.labels.bound("outcome", outcome)).Observe(took.Seconds())
}

// Commit notes one transaction of so many sagas.
func (t *Telemetry) Commit(batch int, took time.Duration) {
	t.batches.Observe(float64(batch))
	t.commits.Observe(took.Seconds())
}

// Claimed counts one claim of n commands; one that found nothing isn't counted.
func (t *Telemetry) Claimed(n int) {
	if n > 0 {
		t.claims.Inc()
		t.claimed.Add(float64(n))
	}
}

// LeaseLost counts a lease that ended before its step did.
func (t *Telemetry) LeaseLost() { t.leasesLost.Inc() }

// Late counts a result that came after its lease.
func (t *Telemetry) Late() { t.late.Inc() }

// Panic counts a step that panicked.
func (t *Telemetry) Panic(command string) {
	t.panics.WithLabelValues(t.labels.bound("command", command)).Inc()
}

// Callback counts a callback by its endpoint and verdict.
func (t *Telemetry) Callback(source, verdict string) {
	t.callbacks.WithLabelValues(t.labels.bound("source", source), t.labels.bound("verdict", verdict)).Inc()
}
