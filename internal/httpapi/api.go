package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Store is what the API reads, and the one thing that it writes by itself.
type Store interface {
	OperationStore
	History(ctx context.Context, id string, after store.Mark, limit int) ([]store.Entry, error)
	Stats(ctx context.Context, known []string) (store.Stats, error)
	Repo(ctx context.Context, name string) (store.Repo, error)
	Repos(ctx context.Context, f store.RepoFilter) ([]store.Repo, error)
	Pulls(ctx context.Context, f store.PullFilter) ([]store.Pull, error)
	AddWatchers(ctx context.Context, pullID string, names []string) error
	Ping(ctx context.Context) error
}

// Engine is what the API asks of the engine.
type Engine interface {
	Send(ctx context.Context, sagaID string, ev saga.Event) (saga.Decision, error)
	Subscribe(sagaID string) (<-chan struct{}, func())
	Settings() saga.Settings
	Kinds() []string
	Healthy() error
}

// Options are what the API is made of. Store, Engine, Flows, Pulls, Host and
// Index are required.
type Options struct {
	Store  Store
	Engine Engine
	Flows  []*saga.Flow // every table this instance knows, old versions included
	Pulls  *pull.Service
	Host   forge.Host
	Index  search.Index
	// Changes is flow change; nil: its endpoints are not served.
	Changes *change.Service
	// The secrets that callbacks may be signed with, all valid at once; asked at
	// every call. None: callbacks are believed from this machine only.
	ApprovalSecrets, DeploySecrets func() []string
	OnCallback                     func(kind, verdict string) // nil: nobody counts

	Git     http.Handler // below /git/; nil: not served
	Metrics http.Handler // /metrics; nil: not served
	Page    http.Handler // / and /operations/{id}; nil: not served

	PublicURL string // where links lead and browsers come from; empty: links are paths
	Version   string
	Log       *slog.Logger // nil: discarded
	// Closing, when closed, ends the streams, so that a server can shut down
	// while people watch; they resume elsewhere.
	Closing <-chan struct{}

	poll, heartbeat time.Duration // of streams; tests shorten them
}

// Operations reads operations as the API shows them; the pages share it.
func (o Options) Operations() *Operations {
	return &Operations{store: o.Store, flows: o.Flows, settings: o.Engine.Settings, base: strings.TrimRight(o.PublicURL, "/")}
}

// The limits of one API call.
const (
	bodyLimit = 1 << 20 // bytes of a body
	// of a change's: its files have at most 4 MiB, and JSON may escape them
	changeBodyLimit = 9 << 20
	bodyTimeout     = 15 * time.Second // until it has arrived
	callTimeout     = 50 * time.Second // for the work; a stream has none
)

type api struct {
	Options
	ops      *Operations
	huma     huma.API
	document []byte
}

// New builds the whole HTTP surface. It does no I/O.
func New(o Options) (http.Handler, error) {
	if o.Store == nil || o.Engine == nil || len(o.Flows) == 0 || o.Pulls == nil || o.Host == nil || o.Index == nil {
		return nil, errors.New("httpapi: store, engine, flows, pulls, host and index are required")
	}
	public, err := url.Parse(o.PublicURL)
	if err != nil || o.PublicURL != "" && (public.Host == "" || public.Scheme != "http" && public.Scheme != "https") {
		return nil, fmt.Errorf("httpapi: public URL %q is no http or https address", o.PublicURL)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.poll <= 0 {
		o.poll = time.Second
	}
	if o.heartbeat <= 0 {
		o.heartbeat = 15 * time.Second
	}
	mux := http.NewServeMux()
	a := &api{Options: o, ops: o.Operations(), huma: humago.New(mux, humaConfig(o.Version))}
	a.routes(mux)
	openAnswers(a.huma.OpenAPI())
	if a.document, err = json.Marshal(a.huma.OpenAPI()); err != nil {
		return nil, fmt.Errorf("httpapi: OpenAPI document: %w", err)
	}
	guarded, err := a.guard(checkText(checkBody(withProblems(mux))), public)
	if err != nil {
		return nil, err
	}
	return a.observe(guarded), nil
}

// NewServer is a server with the time limits that this API needs: headers must
// come soon, bodies are timed by their handlers, and streams and git transfers
// may take as long as they move.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	if log != nil {
		s.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	}
	return s
}

func (a *api) routes(mux *http.ServeMux) {
	a.operationRoutes()
	a.pullRoutes()
	a.repoRoutes()
	if a.Changes != nil {
		a.changeRoutes()
	}
	a.searchRoutes()
	a.healthRoutes(mux)
	if a.Git != nil {
		mux.Handle("/git/", a.Git)
	}
	if a.Page != nil {
		mux.Handle("GET /{$}", a.Page)
		mux.Handle("GET /operations/{id}", a.Page)
	}
}

// actor is who writes where no tokens are required.
const actor = "local"
