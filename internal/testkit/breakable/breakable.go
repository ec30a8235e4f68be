// Package breakable makes an HTTP service fail on demand: a switch in front of a
// handler, with the two failures that matter kept apart, "failed, not applied"
// (a status, hang) and "failed, but applied" (lost). The demo program and
// scripts use it too, so it knows nothing of tests.
package breakable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Mode is what happens to the calls.
type Mode string

// The modes. Every HTTP status from 300 to 599 is one too: the call is answered
// with it and not performed.
const (
	OK   Mode = "ok"
	Hang Mode = "hang" // not performed, never answered
	Slow Mode = "slow" // performed and answered after a pause
	Lost Mode = "lost" // performed, and the connection broken instead of an answer
)

// Status is the mode that answers with this status.
func Status(code int) Mode { return Mode(strconv.Itoa(code)) }

func (m Mode) status() int {
	code, err := strconv.Atoi(string(m))
	if err != nil || code < 300 || code > 599 {
		return 0
	}
	return code
}

// Setting is a mode and for how many calls it holds; 0 is until the next Set.
type Setting struct {
	Mode  Mode `json:"mode"`
	Times int  `json:"times,omitempty"`
}

// SlowFor is the pause of mode Slow.
const SlowFor = 500 * time.Millisecond

// maxBody bounds a call's body in bytes.
const maxBody = 4 << 20

// Switch stands in front of a handler. The zero value lets everything pass. It
// is safe for concurrent use.
type Switch struct {
	mu      sync.Mutex
	setting Setting
	calls   map[string]int // by path
	moved   chan struct{}  // closed when a call arrives
}

// Set changes the mode for the calls to come; those that hang go on hanging.
func (s *Switch) Set(set Setting) error {
	switch set.Mode {
	case OK, Hang, Slow, Lost:
	default:
		if set.Mode.status() == 0 {
			return fmt.Errorf("unknown mode %q", set.Mode)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setting = set
	return nil
}

// Calls is how many calls to a path have arrived, the failed ones included.
func (s *Switch) Calls(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[path]
}

// Await waits until at least n calls to a path have arrived.
func (s *Switch) Await(ctx context.Context, path string, n int) error {
	for {
		s.mu.Lock()
		got := s.calls[path]
		if s.moved == nil {
			s.moved = make(chan struct{})
		}
		moved := s.moved
		s.mu.Unlock()
		if got >= n {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d calls to %s: %w", got, n, path, ctx.Err())
		}
	}
}

// arrive counts a call and says what happens to it.
func (s *Switch) arrive(path string) Mode {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[path]++
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
	m := s.setting.Mode
	if s.setting.Times > 0 {
		if s.setting.Times--; s.setting.Times == 0 {
			s.setting.Mode = OK
		}
	}
	return m
}

// Wrap puts the switch in front of a handler.
func (s *Switch) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		mode := s.arrive(r.URL.Path)
		switch mode {
		case "", OK:
			next.ServeHTTP(w, r)
		case Hang:
			// The server notices a client that leaves only once it has the body.
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		case Slow:
			pause := time.NewTimer(SlowFor)
			defer pause.Stop()
			select {
			case <-pause.C:
				next.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		case Lost:
			next.ServeHTTP(&nowhere{}, r)
			panic(http.ErrAbortHandler)
		default:
			http.Error(w, fmt.Sprintf(`{"error":"as told: %s"}`, mode), mode.status())
		}
	})
}

// ServeHTTP is the control endpoint: GET tells the setting, POST and PUT change it.
func (s *Switch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		var set Setting
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&set); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := s.Set(set); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	s.mu.Lock()
	set := s.setting
	s.mu.Unlock()
	if set.Mode == "" {
		set.Mode = OK
	}
	WriteJSON(w, set)
}

// WriteJSON answers 200 with a value.
func WriteJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that left is its own loss
}

// nowhere takes an answer that nobody gets.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header {
	if n.header == nil {
		n.header = http.Header{}
	}
	return n.header
}
func (*nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (*nowhere) WriteHeader(int)             {}

// Server is a running service.
type Server struct {
	URL  string // http://host:port
	http *http.Server
	done chan error
}

// Serve starts a handler on addr; an empty one is a free port of 127.0.0.1.
func Serve(addr string, h http.Handler) (*Server, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &Server{
		URL:  "http://" + l.Addr().String(),
		http: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute},
		done: make(chan error, 1),
	}
	go func() { s.done <- s.http.Serve(l) }()
	return s, nil
}

// Close breaks every connection, those of hanging calls too. It is for once.
func (s *Server) Close() error {
	err := s.http.Close()
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
