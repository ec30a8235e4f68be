package httpapi

import (
	"context"
	"iter"
	"net/http"
	"net/url"
)

// Submit asks for a change. With a key, the same body again answers the same.
func (c *Client) Submit(ctx context.Context, in NewChange, key string) (Accepted, error) {
	h := http.Header{}
	if key != "" {
		h.Set("Idempotency-Key", key)
	}
	return callWith[Accepted](ctx, c, http.MethodPost, "/v1/changes", nil, in, h)
}

// Plan says what a change would do. Nothing is written.
func (c *Client) Plan(ctx context.Context, in NewChange) (Plan, error) {
	return call[Plan](ctx, c, http.MethodPost, "/v1/changes:plan", nil, in)
}

// Approval votes on an operation: decision is approved, rejected or withdrawn.
func (c *Client) Approval(ctx context.Context, id string, in ApprovalInput) (Accepted, error) {
	return call[Accepted](ctx, c, http.MethodPost, operationPath(id)+"/approval", nil, in)
}

// Callbacks lists an operation's callbacks with their verdicts, oldest first.
func (c *Client) Callbacks(ctx context.Context, id string) iter.Seq2[CallbackEntry, error] {
	return pages[CallbackEntry](ctx, c, operationPath(id)+"/callbacks", nil)
}

// Binding reads what a subject has of a target.
func (c *Client) Binding(ctx context.Context, subject, target string) (Binding, error) {
	return call[Binding](ctx, c, http.MethodGet, "/v1/bindings/"+url.PathEscape(subject)+"/"+url.PathEscape(target), nil, nil)
}

// ApprovalCallback sends what an approval system would.
func (c *Client) ApprovalCallback(ctx context.Context, in ApprovalCallback) (Verdict, error) {
	return call[Verdict](ctx, c, http.MethodPost, "/v1/callbacks/approval", nil, in)
}

// DeployCallback sends what a deploy pipeline would.
func (c *Client) DeployCallback(ctx context.Context, in DeployCallback) (Verdict, error) {
	return call[Verdict](ctx, c, http.MethodPost, "/v1/callbacks/deploy", nil, in)
}
