package httpapi

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"
)

type requestIDKey struct{}

func requestIDOf(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// observe gives each request an id, survives panics and writes one log line.
func (a *api) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if !isRequestID(id) {
			id = rand.Text()
		}
		began, rec := time.Now(), &recorder{ResponseWriter: w}
		rec.Header().Set("X-Request-Id", id)
		rec.Header().Set("X-Content-Type-Options", "nosniff")
		r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
		defer func() {
			cause := recover()
			if cause != nil && cause != http.ErrAbortHandler {
				a.Log.ErrorContext(r.Context(), "request panicked", "request", id, "panic", cause, "stack", string(debug.Stack()))
				if rec.status == 0 {
					e := newError(http.StatusInternalServerError, codeInternal, "")
					e.RequestID = id
					e.write(rec)
					cause = nil
				}
			}
			a.Log.Log(r.Context(), levelOf(r, rec.status), "request", "request", id, "method", r.Method,
				"path", r.URL.Path, "status", rec.status, "took", time.Since(began).Round(time.Microsecond))
			if cause != nil {
				// Cut the connection: half an answer must not pass for a whole one.
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

func isRequestID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.')
	}) < 0
}

// levelOf keeps probes and pollers out of the ordinary log.
func levelOf(r *http.Request, status int) slog.Level {
	switch {
	case status >= 500:
		return slog.LevelError
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// recorder remembers the status.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController through.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush is for handlers that ask the writer itself.
func (w *recorder) Flush() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// guard refuses what a browser was made to send by a foreign page: a write from
// another origin, and on loopback any request under a foreign name (DNS rebinding).
func (a *api) guard(next http.Handler, public *url.URL) (http.Handler, error) {
	origins := http.NewCrossOriginProtection()
	if public.Host != "" {
		if err := origins.AddTrustedOrigin(public.Scheme + "://" + public.Host); err != nil {
			return nil, err
		}
	}
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		newError(http.StatusForbidden, "cross-origin", "a page of another origin may not write here").write(w)
	}))
	checked := origins.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hostAllowed(r, public.Hostname()) {
			newError(http.StatusForbidden, "host-not-allowed", "this server answers on loopback under its own name only; set public_url to add one").write(w)
			return
		}
		checked.ServeHTTP(w, r)
	}), nil
}

func hostAllowed(r *http.Request, public string) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok || !local.IP.IsLoopback() || r.Host == "" {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return true
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || host != "" && host == strings.ToLower(public)
}

// withProblems turns the mux's own plain 404 and 405 into problems.
func withProblems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r) // again, because only this sets the path's values
			return
		}
		own := &silent{header: http.Header{}}
		h.ServeHTTP(own, r)
		switch own.status {
		case http.StatusNotFound:
			notFound("there is nothing at " + r.URL.Path).write(w)
		case http.StatusMethodNotAllowed:
			w.Header().Set("Allow", own.header.Get("Allow"))
			newError(own.status, codeOf(own.status), "allowed here: "+own.header.Get("Allow")).write(w)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// silent takes an answer's status and headers and drops its body.
type silent struct {
	header http.Header
	status int
}

func (s *silent) Header() http.Header         { return s.header }
func (s *silent) Write(b []byte) (int, error) { return len(b), nil }
func (s *silent) WriteHeader(status int)      { s.status = status }

// checkText refuses paths and queries that hold what no database can: NUL and
// broken UTF-8. Git's own paths are git's business.
func checkText(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/git/") {
			next.ServeHTTP(w, r)
			return
		}
		if badText(r.URL.Path) != "" {
			notFound("the path " + badText(r.URL.Path)).write(w)
			return
		}
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			newError(http.StatusBadRequest, codeOf(http.StatusBadRequest), "the query can't be read").write(w)
			return
		}
		for name, values := range query {
			for _, v := range append(values, name) {
				if bad := badText(v); bad != "" {
					invalid(strings.ToValidUTF8(name, "\uFFFD"), bad).write(w)
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// badText says what is wrong with a text, or nothing.
func badText(s string) string {
	switch {
	case strings.ContainsRune(s, 0):
		return "must not hold a NUL character"
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	}
	return ""
}
