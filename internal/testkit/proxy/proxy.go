// Package proxy is a TCP proxy that breaks connections on demand, so that a
// test can lose an answer, or the way, between a client and a real server. It
// knows no protocol above TCP. The demo program and scripts use it too, so it
// knows nothing of tests.
package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Mode is what happens to the connections. It is asked at every piece of data,
// so that a change holds for the connections that are open already, too.
type Mode struct {
	kind  kind
	bytes int64
}

type kind uint8

const (
	pass kind = iota
	reset
	hang
	cut
	closeAfterRequest
)

// The modes. A connection that has lost data stays lost when the mode changes.
var (
	// Pass forwards everything.
	Pass = Mode{}
	// Reset answers every connection, and the first data on an open one, with a reset.
	Reset = Mode{kind: reset}
	// Hang accepts and swallows everything; nothing is answered or closed.
	Hang = Mode{kind: hang}
	// CloseAfterRequest forwards what the client says and closes when the
	// server begins to answer: it was done, and nobody knows.
	CloseAfterRequest = Mode{kind: closeAfterRequest}
)

// CutAfter forwards this many bytes of answers on each connection, then closes it.
func CutAfter(bytes int64) Mode { return Mode{kind: cut, bytes: bytes} }

// TB is the part of testing.TB that New needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// Proxy is a running proxy. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   string

	mu       sync.Mutex
	mode     Mode
	accepted int
	open     map[net.Conn]struct{} // both sides; nil after Close
	all      sync.WaitGroup
}

// New starts a proxy that ends with the test.
func New(t TB, target string) *Proxy {
	t.Helper()
	p, err := Start(target)
	if err != nil {
		t.Fatalf("proxy: %v", err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// Start starts a proxy for target (host:port) on a free port of 127.0.0.1.
func Start(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, target: target, open: map[net.Conn]struct{}{}}
	p.all.Go(p.accept)
	return p, nil
}

// Addr is the proxy's host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Set changes the mode.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
}

// Accepted is how many connections have come.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// DropAll resets every open connection.
func (p *Proxy) DropAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		abort(c)
	}
}

// Close stops the proxy and its connections, and waits for their end.
func (p *Proxy) Close() error {
	err := p.listener.Close()
	p.mu.Lock()
	for c := range p.open {
		_ = c.Close()
	}
	p.open = nil
	p.mu.Unlock()
	p.all.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (p *Proxy) now() Mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

// keep remembers a connection so that Close and DropAll reach it, and counts it
// as so many accepted ones.
func (p *Proxy) keep(c net.Conn, accepted int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted += accepted
	if p.open == nil {
		_ = c.Close()
		return false
	}
	p.open[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = c.Close()
	delete(p.open, c)
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.keep(c, 1) {
			p.all.Go(func() { p.serve(c) })
		}
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.drop(client)
	switch p.now().kind {
	case reset:
		abort(client)
		return
	case hang:
		_, _ = io.Copy(io.Discard, client)
		return
	}
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		abort(client)
		return
	}
	if !p.keep(server, 0) {
		return
	}
	defer p.drop(server)

	l := link{p: p, client: client, server: server}
	up := make(chan struct{})
	p.all.Go(func() {
		defer close(up)
		l.pump(server, client, l.request)
	})
	l.pump(client, server, l.answer)
	// The server is done; a client that hangs stays until it leaves.
	if !l.isLost() {
		_ = client.Close()
	}
	<-up
}

// link is one connection through the proxy.
type link struct {
	p              *Proxy
	client, server net.Conn
	answered       int64 // bytes; only pump(client, server) touches it

	mu   sync.Mutex
	lost bool // has swallowed data: nothing passes any more
}

func (l *link) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

func (l *link) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// pump moves data until one side ends; decide says what of a piece goes on,
// and whether the connection does.
func (l *link) pump(to, from net.Conn, decide func([]byte) ([]byte, bool)) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			piece, goOn := decide(buf[:n])
			if len(piece) > 0 {
				if _, werr := to.Write(piece); werr != nil && err == nil {
					err = werr
				}
			}
			if !goOn {
				_ = l.client.Close()
				_ = l.server.Close()
				return
			}
		}
		if err != nil {
			if c, ok := to.(*net.TCPConn); ok && err == io.EOF && !l.isLost() {
				_ = c.CloseWrite() // half a close passes as half a close
			} else if from == l.client {
				_ = l.server.Close()
			}
			return
		}
	}
}

func (l *link) request(piece []byte) ([]byte, bool) {
	switch l.p.now().kind {
	case reset:
		abort(l.client)
		return nil, false
	case hang:
		l.lose()
	}
	if l.isLost() {
		return nil, true
	}
	return piece, true
}

func (l *link) answer(piece []byte) ([]byte, bool) {
	m := l.p.now()
	switch m.kind {
	case reset:
		abort(l.client)
		return nil, false
	case hang:
		l.lose()
	case closeAfterRequest:
		return nil, false
	case cut:
		left := max(0, m.bytes-l.answered)
		if int64(len(piece)) >= left {
			return piece[:left], false
		}
	}
	if l.isLost() {
		return nil, true
	}
	l.answered += int64(len(piece))
	return piece, true
}

// abort closes with a reset instead of a farewell.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}
