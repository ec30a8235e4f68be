// Package webhook asks an approval system outside: a signed request, answered
// later by a callback. The system may offer to be asked (GET) and to take a
// request back (DELETE); one that offers neither works too.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/outbound"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// Options say whom to ask.
type Options struct {
	URL    string
	Secret func() string // may change live; nil: none
}

// Approver is a running driver. It is safe for concurrent use.
type Approver struct {
	url    string
	client *outbound.Client
}

var _ approval.Approver = (*Approver)(nil)

// New checks the URL. Nothing is sent yet.
func New(o Options) (*Approver, error) {
	if err := outbound.CheckURL(o.URL); err != nil {
		return nil, fmt.Errorf("approval.url: %w", err)
	}
	return &Approver{url: strings.TrimRight(o.URL, "/"), client: outbound.New(outbound.Options{Secret: o.Secret})}, nil
}

// Close lets go of idle connections.
func (a *Approver) Close() { a.client.Close() }

// Send posts the request under its approval id.
func (a *Approver) Send(ctx context.Context, r approval.Request) error {
	_, err := a.client.Do(ctx, outbound.Request{URL: a.url, Body: r, IdempotencyKey: r.ApprovalID})
	return sorted(err)
}

// Look asks for the decision. A system that doesn't know the request or the
// question answers 404, 405, 410 or 501: then it can't be asked.
func (a *Approver) Look(ctx context.Context, id string) (approval.Answer, bool, error) {
	resp, err := a.client.Do(ctx, outbound.Request{Method: http.MethodGet, URL: a.url + "/" + url.PathEscape(id)})
	if cannot(err) {
		return approval.Answer{}, false, nil
	}
	if err != nil {
		return approval.Answer{}, false, sorted(err)
	}
	var body struct {
		Decision string `json:"decision"`
		By       string `json:"by"`
		Reason   string `json:"reason"`
	}
	if err := json.Unmarshal(resp.Body, &body); err != nil {
		return approval.Answer{}, false, &approval.Error{Status: resp.Status, Detail: "the answer is no JSON"}
	}
	out := approval.Answer{By: saga.Clean(body.By, 200), Reason: saga.Clean(body.Reason, 1000)}
	switch d := approval.Decision(body.Decision); d {
	case approval.Approved, approval.Rejected, approval.Withdrawn:
		out.Decision = d
	case approval.None, "pending":
	default:
		return approval.Answer{}, false, &approval.Error{Status: resp.Status, Detail: "unknown decision " + saga.Clean(body.Decision, 50)}
	}
	return out, true, nil
}

// Withdraw takes the request back, where the system knows it and the question.
func (a *Approver) Withdraw(ctx context.Context, id string) error {
	_, err := a.client.Do(ctx, outbound.Request{Method: http.MethodDelete, URL: a.url + "/" + url.PathEscape(id), IdempotencyKey: "withdraw-" + id})
	if cannot(err) {
		return nil
	}
	return sorted(err)
}

func cannot(err error) bool {
	e, ok := errors.AsType[*outbound.Error](err)
	if !ok {
		return false
	}
	switch e.Status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone, http.StatusNotImplemented:
		return true
	}
	return false
}

func sorted(err error) error {
	if e, ok := errors.AsType[*outbound.Error](err); ok {
		return &approval.Error{Status: e.Status, Detail: e.Detail, Transient: e.Transient()}
	}
	return err
}
