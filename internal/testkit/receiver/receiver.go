// Package receiver is a sink for the notifications that mergeflow sends to
// watchers: it keeps each delivery, counts repeats, and fails on demand. The
// demo program and scripts run it too, so it knows nothing of tests.
package receiver

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/outbound"
	"github.com/mergeflow/mergeflow/internal/testkit/breakable"
)

// Option changes how a receiver starts.
type Option func(*Receiver)

// WithAddr listens on addr instead of a free port of 127.0.0.1.
func WithAddr(addr string) Option { return func(r *Receiver) { r.addr = addr } }

// WithSecret refuses deliveries that don't carry the secret and its signature.
func WithSecret(secret string) Option { return func(r *Receiver) { r.secret = secret } }

// Receiver is a running one. It is safe for concurrent use.
type Receiver struct {
	addr   string
	secret string
	faults breakable.Switch
	server *breakable.Server

	mu         sync.Mutex
	deliveries []Delivery
	places     map[[2]string]int // in deliveries, by delivery id and watcher
	refused    map[string]int    // status by watcher
}

// Delivery is one message to one watcher, however often it came.
type Delivery struct {
	notify.Message
	Times int `json:"times"`
}

// hookPath is where the deliveries go.
const hookPath = "/hook"

// Start starts one that works. GET /deliveries tells what it got, POST /control
// makes it fail.
func Start(options ...Option) (*Receiver, error) {
	r := &Receiver{places: map[[2]string]int{}, refused: map[string]int{}}
	for _, o := range options {
		o(r)
	}
	mux := http.NewServeMux()
	mux.Handle("/control", &r.faults)
	mux.HandleFunc("GET /deliveries", func(w http.ResponseWriter, _ *http.Request) {
		breakable.WriteJSON(w, map[string]any{"items": r.Deliveries()})
	})
	mux.Handle("POST "+hookPath, r.faults.Wrap(http.HandlerFunc(r.serve)))
	var err error
	r.server, err = breakable.Serve(r.addr, mux)
	return r, err
}

// URL is what goes into `notify.webhook.url`.
func (r *Receiver) URL() string { return r.server.URL + hookPath }

// ControlURL takes a breakable.Setting by POST.
func (r *Receiver) ControlURL() string { return r.server.URL + "/control" }

// Close stops it, hanging calls included.
func (r *Receiver) Close() error { return r.server.Close() }

// Set makes the deliveries to come fail, or work again.
func (r *Receiver) Set(mode breakable.Mode) error { return r.faults.Set(breakable.Setting{Mode: mode}) }

// SetTimes is Set for a number of deliveries; after them it works again.
func (r *Receiver) SetTimes(mode breakable.Mode, times int) error {
	return r.faults.Set(breakable.Setting{Mode: mode, Times: times})
}

// Refuse answers one watcher's deliveries with a status; 0 takes them again.
func (r *Receiver) Refuse(watcher string, status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused[watcher] = status
}

// Calls is how many deliveries have arrived, whatever became of them.
func (r *Receiver) Calls() int { return r.faults.Calls(hookPath) }

// AwaitCalls waits until at least n deliveries have arrived.
func (r *Receiver) AwaitCalls(ctx context.Context, n int) error {
	return r.faults.Await(ctx, hookPath, n)
}

// Deliveries are the ones that were taken, in the order of their first arrival.
func (r *Receiver) Deliveries() []Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Delivery{}, r.deliveries...)
}

func (r *Receiver) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	if r.secret != "" && (outbound.VerifyBearer(req.Header, r.secret) != nil || outbound.VerifySignature(req.Header, r.secret, body) != nil) {
		http.Error(w, outbound.ErrNotAuthentic.Error(), http.StatusUnauthorized)
		return
	}
	var m notify.Message
	if err := json.Unmarshal(body, &m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if m.DeliveryID == "" || m.Watcher == "" || m.DeliveryID != req.Header.Get("Idempotency-Key") {
		http.Error(w, "deliveryId, the same as the Idempotency-Key, and watcher are needed", http.StatusUnprocessableEntity)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if status := r.refused[m.Watcher]; status != 0 {
		http.Error(w, "as told: not for "+m.Watcher, status)
		return
	}
	key := [2]string{m.DeliveryID, m.Watcher}
	at, known := r.places[key]
	if !known {
		at = len(r.deliveries)
		r.places[key] = at
		r.deliveries = append(r.deliveries, Delivery{Message: m})
	}
	r.deliveries[at].Times++
	w.WriteHeader(http.StatusNoContent)
}
