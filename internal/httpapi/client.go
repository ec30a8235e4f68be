package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client calls the API: one method for each endpoint. What the server refuses
// comes back as *Error; anything else means that there was no usable answer,
// and after a write that its outcome is unknown. The zero value but for BaseURL
// is ready; methods are safe for concurrent use.
type Client struct {
	BaseURL string // "http://127.0.0.1:8080"
	Token   string // sent as a bearer token; empty where none is required
	// HTTP makes the calls; nil is a client that follows no redirect, because
	// one could carry a write or the token somewhere else.
	HTTP *http.Client
}

// The limits of one call that is no stream.
const (
	callLimit   = time.Minute
	answerLimit = 64 << 20 // bytes
)

var plainClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// RepoQuery selects repositories.
type RepoQuery struct {
	Query string // part of the name
	Limit int    // of one page; 0: the server's default
}

// PullQuery selects pull requests.
type PullQuery struct {
	Repo   string
	Status string // open, merging, merged, merge-failed, closed
	Query  string // part of the title
	Limit  int
}

// OperationQuery selects operations. Empty members select all.
type OperationQuery struct {
	Flow, Status, State, Subject, Target, Project string
	Query                                         string // part of title, subject, target or project
	Limit                                         int    // of one page; 0: the server's default
}

// CreateRepo creates a local repository.
func (c *Client) CreateRepo(ctx context.Context, in NewRepository) (Repository, error) {
	return call[Repository](ctx, c, http.MethodPost, "/v1/repos", nil, in)
}

// Repo reads a repository.
func (c *Client) Repo(ctx context.Context, name string) (Repository, error) {
	return call[Repository](ctx, c, http.MethodGet, "/v1/repos/"+url.PathEscape(name), nil, nil)
}

// Repos lists repositories by name, page after page.
func (c *Client) Repos(ctx context.Context, q RepoQuery) iter.Seq2[Repository, error] {
	return pages[Repository](ctx, c, "/v1/repos", query("q", q.Query, "limit", number(q.Limit)))
}

// SetStatus reports a commit status.
func (c *Client) SetStatus(ctx context.Context, repo, sha string, in NewStatus) (CommitStatus, error) {
	return call[CommitStatus](ctx, c, http.MethodPost, "/v1/repos/"+url.PathEscape(repo)+"/statuses/"+url.PathEscape(sha), nil, in)
}

// CreatePull opens a pull request.
func (c *Client) CreatePull(ctx context.Context, in NewPull) (Pull, error) {
	return call[Pull](ctx, c, http.MethodPost, "/v1/pulls", nil, in)
}

// Pull reads a pull request.
func (c *Client) Pull(ctx context.Context, id string) (Pull, error) {
	return call[Pull](ctx, c, http.MethodGet, "/v1/pulls/"+url.PathEscape(id), nil, nil)
}

// Pulls lists pull requests, newest first, page after page.
func (c *Client) Pulls(ctx context.Context, q PullQuery) iter.Seq2[Pull, error] {
	return pages[Pull](ctx, c, "/v1/pulls", query("repo", q.Repo, "status", q.Status, "q", q.Query, "limit", number(q.Limit)))
}

// MergePull asks for the merge of a pull request, of exactly the head sha where
// one is given, and answers the operation that does it.
func (c *Client) MergePull(ctx context.Context, id, sha string) (Accepted, error) {
	return call[Accepted](ctx, c, http.MethodPost, "/v1/pulls/"+url.PathEscape(id)+"/merge", nil, MergeInput{SHA: sha})
}

// ClosePull ends a pull request without a merge.
func (c *Client) ClosePull(ctx context.Context, id, reason string) (Pull, error) {
	return call[Pull](ctx, c, http.MethodPost, "/v1/pulls/"+url.PathEscape(id)+"/close", nil, Reason{Reason: reason})
}

// AddWatchers adds those who are not there yet.
func (c *Client) AddWatchers(ctx context.Context, id string, names ...string) (Pull, error) {
	return call[Pull](ctx, c, http.MethodPost, "/v1/pulls/"+url.PathEscape(id)+"/watchers", nil, WatchersInput{Watchers: names})
}

// Operation reads an operation.
func (c *Client) Operation(ctx context.Context, id string) (Operation, error) {
	return call[Operation](ctx, c, http.MethodGet, operationPath(id), nil, nil)
}

// Operations lists operations, newest first, page after page.
func (c *Client) Operations(ctx context.Context, q OperationQuery) iter.Seq2[Operation, error] {
	return pages[Operation](ctx, c, "/v1/operations", query("flow", q.Flow, "status", q.Status, "state", q.State,
		"subject", q.Subject, "target", q.Target, "project", q.Project, "q", q.Query, "limit", number(q.Limit)))
}

// History lists an operation's transitions and notes, oldest first.
func (c *Client) History(ctx context.Context, id string) iter.Seq2[HistoryEntry, error] {
	return pages[HistoryEntry](ctx, c, operationPath(id)+"/history", nil)
}

// Retry re-enters the step that failed, and nothing before it.
func (c *Client) Retry(ctx context.Context, id, reason string) (Accepted, error) {
	return c.act(ctx, id, "retry", reason)
}

// Resume keeps waiting where a wait has run out.
func (c *Client) Resume(ctx context.Context, id, reason string) (Accepted, error) {
	return c.act(ctx, id, "resume", reason)
}

// Fail gives up a wait.
func (c *Client) Fail(ctx context.Context, id, reason string) (Accepted, error) {
	return c.act(ctx, id, "fail", reason)
}

// Close ends an operation that has not merged.
func (c *Client) Close(ctx context.Context, id, reason string) (Accepted, error) {
	return c.act(ctx, id, "close", reason)
}

func (c *Client) act(ctx context.Context, id, action, reason string) (Accepted, error) {
	return call[Accepted](ctx, c, http.MethodPost, operationPath(id)+"/"+action, nil, Reason{Reason: reason})
}

// Search finds lines that hold text in what was merged, in all repositories
// where repo is empty.
func (c *Client) Search(ctx context.Context, repo, text string) ([]Hit, error) {
	l, err := call[List[Hit]](ctx, c, http.MethodGet, "/v1/search", query("repo", repo, "q", text), nil)
	return l.Items, err
}

// Stats counts operations.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	return call[Stats](ctx, c, http.MethodGet, "/v1/stats", nil, nil)
}

// Ready is nil when the server can do its work.
func (c *Client) Ready(ctx context.Context) error {
	_, err := call[Health](ctx, c, http.MethodGet, "/readyz", nil, nil)
	return err
}

func operationPath(id string) string { return "/v1/operations/" + url.PathEscape(id) }

func query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// pages follows next until there is none. It stops at the first error.
func pages[T any](ctx context.Context, c *Client, path string, q url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		q := clone(q)
		for {
			page, err := call[List[T]](ctx, c, http.MethodGet, path, q, nil)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			q.Set("cursor", page.Next)
		}
	}
}

// clone copies a query, so that an iterator can be used twice.
func clone(q url.Values) url.Values {
	out := url.Values{}
	for k, v := range q {
		out[k] = v
	}
	return out
}

// call makes one call and reads its answer.
func call[T any](ctx context.Context, c *Client, method, path string, q url.Values, body any) (T, error) {
	return callWith[T](ctx, c, method, path, q, body, nil)
}

func callWith[T any](ctx context.Context, c *Client, method, path string, q url.Values, body any, header http.Header) (T, error) {
	var out T
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := c.open(ctx, method, path, q, body, header)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit+1))
	if err != nil {
		return out, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if len(b) > answerLimit {
		return out, fmt.Errorf("%s %s: the answer is larger than %d bytes", method, path, answerLimit)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return out, fmt.Errorf("%s %s: the answer is not what this version expects: %w", method, path, err)
	}
	return out, nil
}

// open sends a request and answers the response of a success, which the caller
// closes, or the server's *Error.
func (c *Client) open(ctx context.Context, method, path string, q url.Values, body any, header http.Header) (*http.Response, error) {
	address := strings.TrimRight(c.BaseURL, "/") + path
	if len(q) > 0 {
		address += "?" + q.Encode()
	}
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, address, content)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := cmp.Or(c.HTTP, plainClient).Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

// refusal reads a problem; an answer that is none still says its status.
func refusal(resp *http.Response) *Error {
	e := &Error{}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || json.Unmarshal(b, e) != nil || e.Code == "" {
		*e = Error{Title: http.StatusText(resp.StatusCode), Code: fmt.Sprintf("http-%d", resp.StatusCode), Detail: "the answer is none of mergeflow's"}
	}
	e.Status = resp.StatusCode
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.retryAfter = time.Duration(s) * time.Second
	}
	return e
}
