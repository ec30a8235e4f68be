// Package indexer is a code index behind HTTP, as `search.kind: http` expects
// one: POST /index, GET /search, and POST /control to make it fail. With an
// index behind it it answers real queries; without one it remembers what it was
// told to cover. The demo program and scripts run it too, so it knows nothing
// of tests.
package indexer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/mergeflow/mergeflow/internal/outbound"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/testkit/breakable"
)

// Option changes how an indexer starts.
type Option func(*Indexer)

// WithAddr listens on addr instead of a free port of 127.0.0.1.
func WithAddr(addr string) Option { return func(x *Indexer) { x.addr = addr } }

// WithSecret refuses calls that don't carry the secret and its signature.
func WithSecret(secret string) Option { return func(x *Indexer) { x.secret = secret } }

// WithIndex puts an index behind it.
func WithIndex(index search.Index) Option { return func(x *Indexer) { x.index = index } }

// Indexer is a running one. It is safe for concurrent use.
type Indexer struct {
	addr   string
	secret string
	index  search.Index
	faults breakable.Switch
	server *breakable.Server

	mu      sync.Mutex
	covered map[[2]string]string // by repository and branch
	done    []Call
	hits    []search.Hit
}

// Call is one call to /index that was performed.
type Call struct {
	Target search.Target
	Key    string // its Idempotency-Key
}

// Start starts one that works.
func Start(options ...Option) (*Indexer, error) {
	x := &Indexer{covered: map[[2]string]string{}}
	for _, o := range options {
		o(x)
	}
	mux := http.NewServeMux()
	mux.Handle("/control", &x.faults)
	mux.Handle("POST /index", x.faults.Wrap(x.authentic(x.serveIndex)))
	mux.Handle("GET /search", x.faults.Wrap(x.authentic(x.serveSearch)))
	var err error
	x.server, err = breakable.Serve(x.addr, mux)
	return x, err
}

// URL is what goes into `search.url`.
func (x *Indexer) URL() string { return x.server.URL }

// Close stops it, hanging calls included.
func (x *Indexer) Close() error { return x.server.Close() }

// Set makes the calls to come fail, or work again.
func (x *Indexer) Set(mode breakable.Mode) error { return x.faults.Set(breakable.Setting{Mode: mode}) }

// SetTimes is Set for a number of calls; after them it works again.
func (x *Indexer) SetTimes(mode breakable.Mode, times int) error {
	return x.faults.Set(breakable.Setting{Mode: mode, Times: times})
}

// Calls is how many calls to /index have arrived, whatever became of them.
func (x *Indexer) Calls() int { return x.faults.Calls("/index") }

// Searches is how many calls to /search have arrived.
func (x *Indexer) Searches() int { return x.faults.Calls("/search") }

// AwaitCalls waits until at least n calls to /index have arrived.
func (x *Indexer) AwaitCalls(ctx context.Context, n int) error {
	return x.faults.Await(ctx, "/index", n)
}

// Done are the calls to /index that were performed, in order.
func (x *Indexer) Done() []Call {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]Call(nil), x.done...)
}

// Covered is the commit that a branch was last indexed at; empty when never.
func (x *Indexer) Covered(repo, branch string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.covered[[2]string{repo, branch}]
}

// Put makes hits known that /search answers where no index stands behind it.
func (x *Indexer) Put(hits ...search.Hit) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hits = append(x.hits, hits...)
}

// authentic lets a call pass that knows the secret.
func (x *Indexer) authentic(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		if x.secret != "" && (outbound.VerifyBearer(r.Header, x.secret) != nil || outbound.VerifySignature(r.Header, x.secret, body) != nil) {
			http.Error(w, outbound.ErrNotAuthentic.Error(), http.StatusUnauthorized)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next(w, r)
	})
}

func (x *Indexer) serveIndex(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Repo        string `json:"repo"`
		Branch      string `json:"branch"`
		Commit      string `json:"commit"`
		OperationID string `json:"operationId"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if in.Repo == "" || in.Branch == "" || in.Commit == "" {
		http.Error(w, "repo, branch and commit are needed", http.StatusUnprocessableEntity)
		return
	}
	t := search.Target(in)
	if x.index != nil {
		if err := x.index.Index(r.Context(), t); err != nil {
			refuse(w, err)
			return
		}
	}
	x.mu.Lock()
	x.covered[[2]string{t.Repo, t.Branch}] = t.Commit
	x.done = append(x.done, Call{Target: t, Key: r.Header.Get("Idempotency-Key")})
	x.mu.Unlock()
	breakable.WriteJSON(w, map[string]string{"covered": t.Commit})
}

func (x *Indexer) serveSearch(w http.ResponseWriter, r *http.Request) {
	q := search.Query{Repo: r.FormValue("repo"), Text: r.FormValue("q")}
	hits := []search.Hit{}
	if x.index != nil {
		found, err := x.index.Search(r.Context(), q)
		if err != nil {
			refuse(w, err)
			return
		}
		hits = append(hits, found...)
	} else {
		x.mu.Lock()
		for _, h := range x.hits {
			if (q.Repo == "" || q.Repo == h.Repo) && strings.Contains(strings.ToLower(h.Text), strings.ToLower(q.Text)) {
				hits = append(hits, h)
			}
		}
		x.mu.Unlock()
	}
	breakable.WriteJSON(w, map[string]any{"items": hits})
}

// refuse answers what the index answered, so that the caller can tell what is
// worth another try.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	if e, ok := errors.AsType[*search.Error](err); ok && !e.Transient {
		status = http.StatusUnprocessableEntity
	}
	http.Error(w, err.Error(), status)
}
