package outbound_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mergeflow/mergeflow/internal/outbound"
	"github.com/mergeflow/mergeflow/internal/testkit/proxy"
)

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func constant(s string) func() string { return func() string { return s } }

func TestACallCarriesWhatItShould(t *testing.T) {
	t.Parallel()
	type seen struct {
		header http.Header
		body   string
		method string
	}
	got := make(chan seen, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.Header, string(body), r.Method}
		fmt.Fprint(w, `{"ok":true}`)
	})
	const secret = "a plain secret"
	c := outbound.New(outbound.Options{Secret: constant(secret)})
	resp, err := c.Do(t.Context(), outbound.Request{URL: s.URL + "/x", Body: map[string]string{"a": "<b>"}, IdempotencyKey: "op:1"})
	if err != nil || string(resp.Body) != `{"ok":true}` || resp.Status != 200 {
		t.Fatalf("%+v, %v", resp, err)
	}
	g := <-got
	for name, want := range map[string]string{
		"Authorization": "Bearer " + secret, "Idempotency-Key": "op:1", "Webhook-Id": "op:1",
		"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "mergeflow",
	} {
		if g.header.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, g.header.Get(name), want)
		}
	}
	if g.method != "POST" {
		t.Errorf("method %s", g.method)
	}
	if err := outbound.VerifySignature(g.header, secret, []byte(g.body)); err != nil {
		t.Error(err)
	}
	wh, _ := webhooks.NewWebhookRaw([]byte(secret))
	if err := wh.Verify([]byte(g.body), g.header); err != nil {
		t.Errorf("the library's own check: %v", err)
	}
}

func TestWithoutASecretNothingIsSigned(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("Webhook-Signature") != "" {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	for _, secret := range []func() string{nil, constant("")} {
		c := outbound.New(outbound.Options{Secret: secret})
		if _, err := c.Do(t.Context(), outbound.Request{URL: s.URL, Body: 1}); err != nil {
			t.Error(err)
		}
	}
}

func TestSecretsMayChangeWhileRunning(t *testing.T) {
	t.Parallel()
	var secret atomic.Value
	secret.Store("one")
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if outbound.VerifyBearer(r.Header, secret.Load().(string)) != nil {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	c := outbound.New(outbound.Options{Secret: func() string { return secret.Load().(string) }})
	for _, next := range []string{"one", "two"} {
		secret.Store(next)
		if _, err := c.Do(t.Context(), outbound.Request{URL: s.URL}); err != nil {
			t.Errorf("%s: %v", next, err)
		}
	}
}

func TestStatusesAreClassified(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var code int
		fmt.Sscanf(r.URL.Path, "/%d", &code)
		w.WriteHeader(code)
	})
	c := outbound.New(outbound.Options{})
	for code, transient := range map[int]bool{
		304: true, 400: false, 401: false, 404: false, 408: true, 409: false, 410: false, 422: false, 425: true, 429: true, 500: true, 502: true, 503: true, 501: true,
	} {
		_, err := c.Do(t.Context(), outbound.Request{URL: fmt.Sprintf("%s/%d", s.URL, code)})
		e, ok := errors.AsType[*outbound.Error](err)
		if !ok || e.Status != code || e.Transient() != transient {
			t.Errorf("%d: %v", code, err)
		}
	}
	for _, code := range []int{200, 201, 202, 204} {
		if _, err := c.Do(t.Context(), outbound.Request{URL: fmt.Sprintf("%s/%d", s.URL, code)}); err != nil {
			t.Errorf("%d: %v", code, err)
		}
	}
}

func TestErrorsHoldNoSecret(t *testing.T) {
	t.Parallel()
	const secret = `s3cr"et/ü%`
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, "bad: %s %q\ns3cr\x01\"et/ü%% \x00%s", r.Header.Get("Authorization"), r.Header.Get("Authorization"), strings.Repeat("long ", 1000))
	})
	gone := serve(t, nil)
	gone.Close()
	c := outbound.New(outbound.Options{Secret: constant(secret)})
	for _, url := range []string{s.URL + "/token-in-path?key=in-query", gone.URL + "/token-in-path?key=in-query"} {
		_, err := c.Do(t.Context(), outbound.Request{URL: url})
		if err == nil {
			t.Fatal("no error")
		}
		for _, leak := range []string{secret, `s3cr\"et`, "token-in-path", "in-query", "\n", "\x00"} {
			if strings.Contains(err.Error(), leak) {
				t.Errorf("%q is in %q", leak, err)
			}
		}
		if len(err.Error()) > 500 || !strings.Contains(err.Error(), "http://127.0.0.1:") {
			t.Errorf("%q", err)
		}
	}
	c = outbound.New(outbound.Options{Secret: constant("whsec_this is no base64")})
	if _, err := c.Do(t.Context(), outbound.Request{URL: s.URL}); err == nil || strings.Contains(err.Error(), "this is no") {
		t.Errorf("%v", err)
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("followed to another host") })
	var moved atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/out":
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		case "/see-other":
			http.Redirect(w, r, "/moved", http.StatusSeeOther)
		case "/same":
			http.Redirect(w, r, "/moved", http.StatusPermanentRedirect)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusTemporaryRedirect)
		case "/moved":
			body, _ := io.ReadAll(r.Body)
			if r.Method != "POST" || string(body) != "1" || r.Header.Get("Authorization") == "" {
				t.Errorf("%s %q", r.Method, body)
			}
			moved.Add(1)
		}
	})
	c := outbound.New(outbound.Options{Secret: constant("x")})
	for path, follows := range map[string]bool{"/out": false, "/see-other": false, "/loop": false, "/same": true} {
		_, err := c.Do(t.Context(), outbound.Request{URL: s.URL + path, Body: 1, IdempotencyKey: "k"})
		if e, ok := errors.AsType[*outbound.Error](err); follows != (err == nil) || !follows && (!ok || e.Status/100 != 3) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if moved.Load() != 1 {
		t.Errorf("followed %d times", moved.Load())
	}
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 101)) })
	c := outbound.New(outbound.Options{MaxResponse: 100})
	if _, err := c.Do(t.Context(), outbound.Request{URL: s.URL}); err == nil || !strings.Contains(err.Error(), "100 bytes") {
		t.Error(err)
	}
}

func TestACallEndsWithItsTimeAndItsContext(t *testing.T) {
	t.Parallel()
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c := outbound.New(outbound.Options{Timeout: 20 * time.Millisecond})
	if _, err := c.Do(t.Context(), outbound.Request{URL: s.URL}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := outbound.New(outbound.Options{}).Do(ctx, outbound.Request{URL: s.URL}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A connection that breaks after the request went out must not make net/http
// send it again: the effect may be there, and the next try begins with a look.
func TestALostAnswerIsNotRepeated(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := serve(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	p := proxy.New(t, s.Listener.Addr().String())
	c := outbound.New(outbound.Options{})
	call := func() error {
		_, err := c.Do(t.Context(), outbound.Request{URL: "http://" + p.Addr(), Body: 1, IdempotencyKey: "k"})
		return err
	}
	if err := call(); err != nil { // leaves a connection to be used again
		t.Fatal(err)
	}
	p.Set(proxy.CloseAfterRequest)
	err := call()
	if _, answered := errors.AsType[*outbound.Error](err); err == nil || answered {
		t.Errorf("got %v, want an error that leaves it open", err)
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

func TestSecretsInEverySpelling(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef01234567")
	encoded := base64.StdEncoding.EncodeToString(key)
	body := []byte("{}")
	for secret, keys := range map[string][]string{
		"whsec_" + encoded: {string(key)},
		encoded:            {string(key), encoded}, // either reading of it
		"no base64!":       {"no base64!"},
	} {
		h := http.Header{}
		if err := outbound.Sign(h, secret, "id", time.Now(), body); err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			wh, _ := webhooks.NewWebhookRaw([]byte(k))
			if err := wh.Verify(body, h); err != nil {
				t.Errorf("%s by %s: %v", secret, k, err)
			}
		}
		if err := outbound.VerifySignature(h, secret, body); err != nil {
			t.Errorf("%s: %v", secret, err)
		}
		for _, bad := range []func() error{
			func() error { return outbound.VerifySignature(h, secret, []byte("{} ")) },
			func() error { return outbound.VerifySignature(h, secret+"x", body) },
			func() error { return outbound.VerifySignature(h, "", body) },
			func() error { return outbound.VerifySignature(http.Header{}, secret, body) },
		} {
			if err := bad(); !errors.Is(err, outbound.ErrNotAuthentic) {
				t.Errorf("%s: accepted: %v", secret, err)
			}
		}
	}
	old := http.Header{}
	if err := outbound.Sign(old, "s", "id", time.Now().Add(-6*time.Minute), body); err != nil {
		t.Fatal(err)
	}
	if outbound.VerifySignature(old, "s", body) == nil {
		t.Error("took an old signature")
	}
	for header, ok := range map[string]bool{"Bearer s": true, "Bearer s ": false, "bearer": false, "Bearer ": false, "": false, "Basic s": false} {
		if err := outbound.VerifyBearer(http.Header{"Authorization": {header}}, "s"); (err == nil) != ok {
			t.Errorf("%q: %v", header, err)
		}
	}
	if outbound.VerifyBearer(http.Header{"Authorization": {"Bearer "}}, "") == nil {
		t.Error("an empty secret let somebody in")
	}
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	for url, ok := range map[string]bool{
		"http://host/x": true, "https://host:1/x?y=1": true, "http://[::1]:8080": true,
		"": false, "host": false, "ftp://host": false, "http://": false, "http://:80": false, "http://u:pass@host": false, "http://h/#pass": false, "http://pass\x7f": false,
	} {
		err := outbound.CheckURL(url)
		if (err == nil) != ok {
			t.Errorf("%q: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "pass") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
