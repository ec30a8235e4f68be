package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// pingTimeout bounds a readiness probe's look at the database.
const pingTimeout = 2 * time.Second

type healthOut struct {
	CacheControl string `header:"Cache-Control"`
	Body         Health
}

func (a *api) healthRoutes(mux *http.ServeMux) {
	register(a, get("live", "/livez", "The process runs"), func(context.Context, *struct{}) (*healthOut, error) { return healthy(), nil })
	register(a, get("ready", "/readyz", "The database answers and the worker loop turns", 503), a.ready)
	a.raw(mux, get("openapi", "/openapi.json", "This document"), "application/json", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(a.document)
	}))
	if a.Metrics != nil {
		a.raw(mux, get("metrics", "/metrics", "Metrics in Prometheus' format"), "text/plain", a.Metrics)
	}
}

func healthy() *healthOut { return &healthOut{CacheControl: "no-store", Body: Health{Status: "ok"}} }

func (a *api) ready(ctx context.Context, _ *struct{}) (*healthOut, error) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	what, err := "the database does not answer", a.Store.Ping(ctx)
	if err == nil {
		what, err = "the worker loop stalls", a.Engine.Healthy()
	}
	if err != nil {
		a.Log.WarnContext(ctx, "not ready", "request", requestIDOf(ctx), "reason", what, "error", err)
		e := newError(http.StatusServiceUnavailable, "not-ready", what)
		e.retryAfter = retryPause
		return nil, e
	}
	return healthy(), nil
}

// raw serves and documents an endpoint that answers no JSON of ours.
func (a *api) raw(mux *http.ServeMux, op huma.Operation, content string, h http.Handler) {
	op.Responses = map[string]*huma.Response{"200": {Description: http.StatusText(http.StatusOK), Content: map[string]*huma.MediaType{content: {}}}}
	a.huma.OpenAPI().AddOperation(&op)
	mux.Handle("GET "+op.Path, h)
}
