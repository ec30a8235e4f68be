// Package httpindex asks a code index elsewhere by HTTP: POST {url}/index makes
// it cover a commit, GET {url}/search queries it. docs/api.md has the protocol.
package httpindex

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mergeflow/mergeflow/internal/outbound"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
)

// Limits of an answer to a query.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// Options says where the index is.
type Options struct {
	URL     string
	Secret  func() string // asked at every call; nil: none
	Timeout time.Duration // of one call; 0 means outbound.DefaultTimeout
}

// Index is the driver. It is safe for concurrent use.
type Index struct {
	base   *url.URL
	client *outbound.Client
}

var _ search.Index = (*Index)(nil)

// New checks the URL and opens nothing.
func New(o Options) (*Index, error) {
	if err := outbound.CheckURL(o.URL); err != nil {
		return nil, fmt.Errorf("search.url: %w", err)
	}
	base, err := url.Parse(o.URL)
	if err != nil {
		return nil, errors.New("search.url: not a URL")
	}
	return &Index{base: base, client: outbound.New(outbound.Options{Secret: o.Secret, Timeout: o.Timeout})}, nil
}

// Close lets go of idle connections.
func (x *Index) Close() { x.client.Close() }

// Covers answers false: the protocol has no such question, and asking for the
// same commit again is harmless.
func (x *Index) Covers(context.Context, search.Target) (bool, error) { return false, nil }

// Index asks for the commit. A 2xx means that it is covered.
func (x *Index) Index(ctx context.Context, t search.Target) error {
	_, err := x.client.Do(ctx, outbound.Request{
		Method: http.MethodPost,
		URL:    x.base.JoinPath("index").String(),
		Body: struct {
			Repo        string `json:"repo"`
			Branch      string `json:"branch"`
			Commit      string `json:"commit"`
			OperationID string `json:"operationId"`
		}(t),
		IdempotencyKey: t.OperationID + ":" + t.Commit,
	})
	return answered("index", err)
}

// Search asks the index and holds its answer to what was asked for: the
// repository, the order, the limit.
func (x *Index) Search(ctx context.Context, q search.Query) ([]search.Hit, error) {
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	q.Limit = min(q.Limit, maxLimit)
	u := x.base.JoinPath("search")
	values := u.Query()
	values.Set("q", q.Text)
	if q.Repo != "" {
		values.Set("repo", q.Repo)
	}
	u.RawQuery = values.Encode()
	resp, err := x.client.Do(ctx, outbound.Request{Method: http.MethodGet, URL: u.String()})
	if err != nil {
		return nil, answered("search", err)
	}
	var answer struct {
		Items []search.Hit `json:"items"`
	}
	if err := json.Unmarshal(resp.Body, &answer); err != nil {
		return nil, &search.Error{Op: "search", Status: resp.Status, Detail: saga.Clean("not the JSON that was expected: "+err.Error(), 200), Transient: true}
	}
	hits := slices.DeleteFunc(answer.Items, func(h search.Hit) bool { return q.Repo != "" && h.Repo != q.Repo })
	slices.SortStableFunc(hits, func(a, b search.Hit) int {
		return cmp.Or(strings.Compare(a.Repo, b.Repo), strings.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line))
	})
	hits = hits[:min(len(hits), q.Limit)]
	for i := range hits {
		before, _, _ := strings.Cut(strings.ToLower(hits[i].Text), strings.ToLower(q.Text))
		hits[i].Text = search.Excerpt(hits[i].Text, utf8.RuneCountInString(before))
	}
	return hits, nil
}

// answered turns an answer that was no success into the package's error.
func answered(op string, err error) error {
	if e, ok := errors.AsType[*outbound.Error](err); ok {
		return &search.Error{Op: op, Status: e.Status, Detail: e.Detail, Transient: e.Transient()}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}
