// Package outbound makes the calls that mergeflow makes to services it does not
// know: JSON over HTTP with a bearer secret, a Standard Webhooks signature, an
// idempotency key, limits on time and size, and errors that hold no secret.
//
// It repeats nothing by itself. The durable schedule of the engine does, after
// a look where one is possible.
package outbound

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"
)

// Limits that hold where Options says nothing.
const (
	DefaultTimeout     = 30 * time.Second
	DefaultMaxResponse = 8 << 20 // bytes
	maxRedirects       = 3
	errorBodyBytes     = 4 << 10
)

// Options says how a Client calls.
type Options struct {
	// Secret is asked at every call, so that it may change while the program
	// runs. nil, or an empty answer: the calls carry no secret.
	Secret func() string
	// Timeout ends a call even when its context would go on; 0 means DefaultTimeout.
	Timeout time.Duration
	// MaxResponse bounds an answer in bytes; 0 means DefaultMaxResponse.
	MaxResponse int64
	// UserAgent names the program; empty means "mergeflow".
	UserAgent string
}

// Client calls one service. It is safe for concurrent use.
type Client struct {
	o    Options
	http *http.Client
}

// New makes a client with connections of its own. It opens nothing.
func New(o Options) *Client {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.MaxResponse <= 0 {
		o.MaxResponse = DefaultMaxResponse
	}
	if o.UserAgent == "" {
		o.UserAgent = "mergeflow"
	}
	return &Client{o: o, http: &http.Client{
		CheckRedirect: sameService,
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:    10 * time.Second,
			ForceAttemptHTTP2:      true,
			MaxIdleConns:           32,
			MaxIdleConnsPerHost:    16,
			MaxConnsPerHost:        64,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true, // MaxResponse counts the bytes that arrive
		},
	}}
}

// Request is one call.
type Request struct {
	Method string // empty: POST
	URL    string // absolute, see CheckURL
	Body   any    // sent as JSON; nil sends none
	// IdempotencyKey is the same for every try of one effect. It is the
	// signature's message id too; without one each call gets an id of its own.
	IdempotencyKey string
}

// Response is a 2xx answer.
type Response struct {
	Status int
	Body   []byte
}

// Do makes one call and reads its whole answer. Its error is *Error where the
// service answered anything but 2xx; any other error leaves open whether the
// call had an effect. No error holds the secret or more of the URL than its
// scheme, host and port.
func (c *Client) Do(ctx context.Context, r Request) (Response, error) {
	if err := CheckURL(r.URL); err != nil {
		return Response{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()

	var secret string
	if c.o.Secret != nil {
		secret = c.o.Secret()
	}
	req, err := c.request(ctx, r, secret)
	if err != nil {
		return Response{}, err
	}
	call := req.Method + " " + place(req.URL)

	resp, err := c.http.Do(req)
	if err != nil {
		return Response{}, fmt.Errorf("%s: %w", call, withoutURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		// What can't be read of a refusal's body doesn't matter.
		body, _ := io.ReadAll(io.LimitReader(resp.Body, errorBodyBytes))
		e := &Error{Call: call, Status: resp.StatusCode, Detail: excerpt(body, secret)}
		if resp.StatusCode/100 == 3 {
			e.Detail = "a redirect that is not followed"
		}
		return Response{}, e
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, c.o.MaxResponse+1))
	if err != nil {
		return Response{}, fmt.Errorf("%s: reading the answer: %w", call, withoutURL(err))
	}
	if int64(len(body)) > c.o.MaxResponse {
		return Response{}, fmt.Errorf("%s: the answer has more than %d bytes", call, c.o.MaxResponse)
	}
	return Response{Status: resp.StatusCode, Body: body}, nil
}

// Close lets go of idle connections; calls under way go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) request(ctx context.Context, r Request, secret string) (*http.Request, error) {
	method := r.Method
	if method == "" {
		method = http.MethodPost
	}
	var body []byte
	var reader io.Reader
	if r.Body != nil {
		var err error
		if body, err = json.Marshal(r.Body); err != nil {
			return nil, fmt.Errorf("encode the call: %w", err)
		}
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL, reader)
	if err != nil {
		return nil, withoutURL(err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.o.UserAgent)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.IdempotencyKey != "" {
		// Spelt in small letters, which is the same header on the wire: under
		// its canonical name net/http would take the key as leave to send the
		// request again behind our back when a connection breaks.
		req.Header["idempotency-key"] = []string{r.IdempotencyKey}
	}
	if secret == "" {
		return req, nil
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	id := r.IdempotencyKey
	if id == "" {
		id = uuid.NewString()
	}
	if err := Sign(req.Header, secret, id, time.Now(), body); err != nil {
		return nil, err
	}
	return req, nil
}

// CheckURL says whether a URL can be called: absolute, http or https, no user
// (that is what the secret is for), no fragment. Its error does not repeat the URL.
func CheckURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return errors.New("not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("a URL that begins with http:// or https:// is needed")
	case u.Host == "" || u.Hostname() == "":
		return errors.New("the URL names no host")
	case u.User != nil:
		return errors.New("the URL holds a user; use the secret instead")
	case u.Fragment != "":
		return errors.New("the URL holds a fragment")
	}
	return nil
}

// sameService lets a redirect pass that stays with the service and repeats the
// call as it was. A POST that comes back as a GET would look like a success
// that nobody has performed; another host must not see what we send.
func sameService(req *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) > maxRedirects || req.Method != first.Method || req.URL.Scheme != first.URL.Scheme || req.URL.Host != first.URL.Host || req.URL.User != nil {
		return http.ErrUseLastResponse
	}
	return nil
}
