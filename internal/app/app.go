// Package app puts a server together: store, forge, index, notifications,
// engine, API and page, from one configuration. It is the only product package
// that knows every driver. Tests and the demo start it on port 0.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/forge/localgit"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
	"github.com/mergeflow/mergeflow/internal/telemetry"
	"github.com/mergeflow/mergeflow/internal/webui"
)

// Options are what an app is made of. Config is required.
type Options struct {
	Config  *config.Live
	Version string
	Log     io.Writer // where the log goes; nil: nowhere
}

// App is one server. Start and Stop are called once each; the other methods
// are safe for concurrent use.
type App struct {
	o    Options
	cfg  *config.Config // as at the start; live values are read from o.Config
	tele *telemetry.Telemetry

	store  store.Store
	host   *localgit.Host
	engine *engine.Engine
	server *http.Server
	addr   string

	failed  chan error
	closing chan struct{} // closed when streams should end
	undo    []func() error
	follow  context.CancelFunc
	rest    sync.WaitGroup
}

// New checks what can be checked without touching anything. Its errors name
// the configuration's key.
func New(o Options) (*App, error) {
	cfg := o.Config.Current()
	if err := permitted(cfg); err != nil {
		return nil, err
	}
	a := &App{o: o, cfg: cfg, failed: make(chan error, 1), closing: make(chan struct{})}
	var err error
	a.tele, err = telemetry.New(telemetry.Options{
		Level: cfg.Log.Level, Format: cfg.Log.Format, Out: o.Log, Version: o.Version, Stats: a.stats,
	})
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return a, nil
}

// permitted refuses what this version can't do safely, or can't do at all.
func permitted(cfg *config.Config) error {
	if !cfg.Loopback() {
		return fmt.Errorf("listen: %s can be reached from outside, and there are no tokens yet that could keep others out; "+
			"listen on loopback (127.0.0.1:8080)", cfg.Listen)
	}
	if cfg.TokensRequired() {
		return errors.New("auth.tokens_required: there are no tokens yet, so nobody could do anything; leave it at auto")
	}
	if kind := cfg.Forges[pull.LocalForge].Kind; kind != "localgit" {
		return fmt.Errorf("forges.%s.kind: %s is not built yet; it must be localgit", pull.LocalForge, kind)
	}
	return nil
}

// Start opens everything and serves. When it fails, what it had opened is
// closed again. ctx bounds the start alone.
func (a *App) Start(ctx context.Context) error {
	if err := a.start(ctx); err != nil {
		return errors.Join(err, a.close())
	}
	return nil
}

func (a *App) start(ctx context.Context) error {
	cfg, log := a.cfg, a.tele.Log
	if _, err := git.Check(ctx); err != nil {
		return err
	}
	if err := makeDir("data_dir", cfg.DataDir); err != nil {
		return err
	}
	// The address first: it is the likeliest to be taken, and links need the port.
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	a.onClose(func() error { return ignoreClosed(l.Close()) })
	if tcp, ok := l.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return fmt.Errorf("listen: %s is no loopback address here", cfg.Listen)
	}
	a.addr = l.Addr().String()
	if a.store, err = openStore(ctx, cfg); err != nil {
		return err
	}
	a.onClose(a.store.Close)
	handler, err := a.wire(ctx)
	if err != nil {
		return err
	}
	for name, f := range cfg.Forges {
		if f.Kind != "localgit" {
			log.Warn("this forge is not built yet and has no effect", "forge", name, "kind", f.Kind)
		}
	}

	follow, cancel := context.WithCancel(context.Background())
	a.follow = cancel
	a.rest.Go(func() { a.o.Config.Watch(follow, a.changed, a.notChanged) })
	a.engine.Start()
	a.server = httpapi.NewServer(handler, log)
	go func() {
		if err := a.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.failed <- fmt.Errorf("listen: %w", err)
		}
	}()
	log.Info("started", "addr", a.addr, "database", cfg.DatabaseShown(), "data_dir", cfg.DataDir, "version", a.o.Version)
	return nil
}

// wire connects the parts, from the store outwards, and answers what is served.
func (a *App) wire(ctx context.Context) (http.Handler, error) {
	cfg, log := a.cfg, a.tele.Log
	public := cfg.PublicURLAt(a.addr)
	host := localgit.New(localgit.Options{
		Dir: filepath.Join(cfg.DataDir, "repos"), Store: a.store, ApprovalStore: a.store, Forge: pull.LocalForge, Log: log,
		PullURL: func(p store.Pull) string { return public + "/v1/pulls/" + url.PathEscape(p.ID) },
	})
	a.host = host
	forges := func(name string) (forge.Forge, bool) { return host, name == pull.LocalForge }
	index, closeIndex, err := openIndex(ctx, cfg, host)
	if err != nil {
		return nil, err
	}
	a.onClose(closeIndex)
	notify, err := notifier(cfg)
	if err != nil {
		return nil, err
	}
	steps := &pull.Steps{Forges: forges, Notifier: notify, Index: index, Store: a.store}
	changes, err := a.changeSteps(host)
	if err != nil {
		return nil, err
	}
	a.engine, err = engine.New(engine.Options{
		Store: a.store, Flows: []engine.Flow{steps.Flow(), changes.Flow()}, Settings: settings(a.o.Config.Current), Observer: a.tele, Log: log,
		Workers: cfg.Engine.Workers, Lease: cfg.Engine.Lease, Poll: cfg.Engine.Poll,
	})
	if err != nil {
		return nil, err
	}
	service := a.changeService(host)
	pulls := &pull.Service{Store: a.store, Host: host, Forges: forges, Engine: a.engine,
		Carrier: service.Carrier}
	api := httpapi.Options{
		Store: a.store, Engine: a.engine, Flows: Flows(), Pulls: pulls, Host: host, Index: index,
		Git:     host.GitHandler("/git/", anybody),
		Changes: service, OnCallback: a.tele.Callback,
		ApprovalSecrets: func() []string { return config.Values(a.o.Config.Current().Approval.CallbackSecret) },
		DeploySecrets:   func() []string { return config.Values(a.o.Config.Current().Deploy.Secret) },
		Metrics:         a.tele.Handler(), PublicURL: public, Version: a.o.Version, Log: log, Closing: a.closing,
	}
	api.Page = webui.New(api.Operations(), log)
	return httpapi.New(api)
}

// anybody may read and write: only this machine reaches the server (permitted).
func anybody(*http.Request, bool) error { return nil }

func (a *App) stats(ctx context.Context) (store.Stats, error) {
	return a.store.Stats(ctx, a.engine.Kinds())
}

// changed takes over live values that are not asked for at each use.
func (a *App) changed(_, cfg *config.Config) {
	if err := a.tele.SetLevel(cfg.Log.Level); err != nil {
		a.tele.Log.Error("log.level", "error", err)
	}
	a.engine.Wake(context.Background()) // a shorter deadline may be due already
	a.tele.Log.Info("configuration changed")
}

func (a *App) notChanged(err error) { a.tele.Log.Error("configuration", "error", err) }

// Addr is where it listens, HOST:PORT, once Start has returned.
func (a *App) Addr() string { return a.addr }

// URL is the address for this machine's clients.
func (a *App) URL() string { return "http://" + a.addr }

// Source reads what was merged, for an index outside, once Start has returned.
func (a *App) Source() search.Source { return a.host }

// Failed gives the error that ended serving by itself, if that happens.
func (a *App) Failed() <-chan error { return a.failed }

// Stop takes no more connections, lets calls and then steps finish while ctx
// lasts, gives back what is left, and closes everything. What was cut off is
// found by the next start.
func (a *App) Stop(ctx context.Context) error {
	if a.server == nil {
		return nil
	}
	close(a.closing)
	// Half of the time is the steps': a stuck push must not cost them theirs.
	calls, cancel := half(ctx)
	defer cancel()
	if err := a.server.Shutdown(calls); err != nil {
		a.tele.Log.Warn("calls that did not end were cut off", "error", err)
		_ = a.server.Close() // says only that connections broke, which is meant
	}
	if err := a.engine.Stop(ctx); err != nil {
		a.tele.Log.Warn("steps that did not end were cut off; they go on at the next start", "error", err)
	}
	a.follow()
	a.rest.Wait()
	err := a.close()
	a.tele.Log.Info("stopped")
	return err
}

// half ends after half of what is left of ctx.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/2)
}

func (a *App) onClose(f func() error) { a.undo = append(a.undo, f) }

// close undoes what Start opened, the last first.
func (a *App) close() error {
	var errs []error
	for i := len(a.undo) - 1; i >= 0; i-- {
		errs = append(errs, a.undo[i]())
	}
	a.undo = nil
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
