// Package httpapi is the outer contract over HTTP, version 1: typed endpoints
// with their OpenAPI document, one mapping from errors to answers (errors.go),
// and the Go client beside the handlers (client.go), so that both sides of
// every call are read together.
//
// A request passes, in this order: request id, log and recovery; the Host check
// and the cross-origin check (guard.go); the mux with its 404 and 405 as
// problems; for bodies the checks of body.go; then the handler. Handlers
// translate and nothing else: what is allowed is decided by the flows.
package httpapi
