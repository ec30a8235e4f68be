package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

const defaultServer = "http://127.0.0.1:8080"

// client is the API's client with a tape of what it was answered, because
// `-o json` promises the API's own bodies.
type client struct {
	*httpapi.Client
	tape *tape
}

// body is the last answer.
func (c *client) body() []byte {
	if n := len(c.tape.answers); n > 0 {
		return c.tape.answers[n-1]
	}
	return nil
}

// tape records the bodies of answers that are no streams. One command runs on
// one goroutine, so nothing is locked.
type tape struct {
	next    http.RoundTripper
	answers [][]byte
}

// answerLimit bounds what is read of one answer, the client's own limit and a
// byte, so that the client is the one to complain.
const answerLimit = 64<<20 + 1

// RoundTrip makes the call and hands on a copy of the answer's body.
func (t *tape) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("User-Agent", "mergeflow/"+Version)
	resp, err := t.next.RoundTrip(r)
	if err != nil || strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return resp, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	t.answers = append(t.answers, body)
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// clientFlags are what every command that talks to a server has.
func (s *session) clientFlags(c *cobra.Command) *cobra.Command {
	f := c.PersistentFlags()
	f.StringVar(&s.server, "server", s.variable("MERGEFLOW_SERVER", defaultServer), "the server's address (MERGEFLOW_SERVER)")
	// The variable is read later: help would print it as the default.
	f.StringVar(&s.token, "token", "", "who you are to the server (MERGEFLOW_TOKEN)")
	f.StringVarP(&s.format, "output", "o", formatText, "text, json (what the API answers) or yaml")
	return c
}

// variable is an environment variable; of two with one name the later counts.
func (s *session) variable(name, otherwise string) string {
	for _, kv := range s.env {
		if k, v, _ := strings.Cut(kv, "="); k == name && v != "" {
			otherwise = v
		}
	}
	return otherwise
}

// client checks the flags that every client command has.
func (s *session) client(c *cobra.Command) (*client, error) {
	if err := oneOf(c, "output", formatText, formatJSON, formatYAML); err != nil {
		return nil, err
	}
	u, err := url.Parse(s.server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, usageOf(c, fmt.Errorf("flag --server must be an address like %s", defaultServer))
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, usageOf(c, errors.New("flag --server must be an address only, without user, query or fragment"))
	}
	t := &tape{next: http.DefaultTransport}
	return &client{tape: t, Client: &httpapi.Client{
		BaseURL: s.server, Token: or(s.token, s.variable("MERGEFLOW_TOKEN", "")),
		HTTP: &http.Client{
			Transport: t,
			// A redirect could carry a write, or the token, somewhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}}, nil
}

// failure turns an error of the API's client into how the command ends.
func (c *client) failure(err error) error {
	if e, ok := errors.AsType[*httpapi.Error](err); ok {
		return refused(e, c.body())
	}
	if e, ok := errors.AsType[*failure](err); ok {
		return e
	}
	f := &failure{exit: exitFailed, code: "unreachable", detail: c.BaseURL + ": " + err.Error()}
	switch e, isURL := errors.AsType[*url.Error](err); {
	case errors.Is(err, context.Canceled):
		f.code, f.detail = "interrupted", "what the server has begun goes on"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.detail = "nothing answers at " + c.BaseURL
		f.hint = "start it with `mergeflow serve`, or name it with --server or MERGEFLOW_SERVER"
	case isURL:
		f.detail = c.BaseURL + ": " + e.Err.Error()
	default:
		f.code = "bad-answer"
	}
	return f
}

// refused is an answer that is no success.
func refused(e *httpapi.Error, body []byte) *failure {
	f := &failure{exit: exitFailed, code: e.Code, detail: or(e.Detail, e.Title), hint: hint(e)}
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		f.body = body
	}
	for _, x := range e.Errors {
		f.fields = append(f.fields, field{path: x.Location, message: x.Message})
	}
	switch e.Status {
	case http.StatusNotFound:
		f.exit = exitNotFound
	case http.StatusConflict, http.StatusUnauthorized, http.StatusForbidden, http.StatusPreconditionFailed:
		f.exit = exitRefused
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		f.exit = exitUsage
		if e.Code == "no-change" { // understood, and there is nothing to do
			f.exit = exitRefused
		}
	}
	return f
}

// hint says what a person can do about a refusal, as a command where there is one.
func hint(e *httpapi.Error) string {
	switch e.Code {
	case "merge-in-progress":
		return "mergeflow watch " + or(e.OperationID, "OP")
	case "retry-instead":
		return "mergeflow retry " + or(e.OperationID, "OP") + " --reason R"
	case "binding-in-progress":
		return "mergeflow watch " + or(e.OperationID, "OP")
	case "idempotency-mismatch":
		return "use another key for another change"
	case "no-change":
		return "the files say so already"
	case "overloaded":
		return "try again in a few seconds"
	case "pull-closed":
		return "open another one with mergeflow pr create"
	case "already-merged":
		if e.OperationID != "" {
			return "mergeflow get " + e.OperationID
		}
	case "head-moved":
		return "look at the new head with mergeflow pr get, then ask again"
	case "nothing-to-merge":
		return "push the change first"
	case "not-allowed-now":
		if len(e.Allowed) > 0 {
			return "allowed now: " + strings.Join(e.Allowed, ", ")
		}
		return "mergeflow get shows how it stands"
	}
	return ""
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
