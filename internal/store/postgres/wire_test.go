package postgres_test

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// wire stands between a store and its server and can break the connection that
// carries a given text, once.
type wire struct {
	dsn     string
	network string
	address string

	asks atomic.Int64 // requests, each of which ends with a Sync

	mu     sync.Mutex
	ended  bool
	lonely bool // no further connection gets through
	open   map[net.Conn]bool
	cut    *cut
	onward sync.WaitGroup
}

// cut says when a connection breaks, and what still gets through.
type cut struct {
	text     string
	asked    bool // in what the store sends, else in what it is answered
	withheld bool // the text itself doesn't get through
	done     chan struct{}
}

func newWire(t testing.TB, dsn string) *wire {
	t.Helper()
	w := &wire{open: map[net.Conn]bool{}}
	w.network, w.address = pg.Address(t, dsn)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Host, u.RawQuery = l.Addr().String(), ""
	w.dsn = u.String()
	w.onward.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.carry(c)
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.mu.Lock()
		w.ended = true
		for c := range w.open {
			c.Close()
		}
		w.mu.Unlock()
		w.onward.Wait()
	})
	return w
}

func (w *wire) carry(client net.Conn) {
	server, err := net.Dial(w.network, w.address)
	if err != nil {
		client.Close()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.lonely {
		client.Close()
		server.Close()
		return
	}
	w.open[client], w.open[server] = true, true
	w.onward.Go(func() { w.copy(server, client, true) })
	w.onward.Go(func() { w.copy(client, server, false) })
}

func (w *wire) copy(to, from net.Conn, asked bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 1<<16)
	for leaving := (*cut)(nil); ; {
		n, err := from.Read(buf)
		if asked && bytes.HasPrefix(buf[:n], cancelRequest) {
			return
		}
		if asked && bytes.HasSuffix(buf[:n], endOfRequest) {
			w.asks.Add(1)
		}
		if n > 0 {
			c := leaving
			if c == nil {
				c = w.cutFor(buf[:n], asked)
			}
			if c == nil || !c.withheld {
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
			if c != nil && asked && !c.withheld && !bytes.HasSuffix(buf[:n], endOfRequest) {
				leaving = c
				continue
			}
			if c != nil {
				// The answer's way ends too, whatever the server still says.
				if asked {
					from.Close()
				}
				close(c.done)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

var (
	// endOfRequest is the protocol's Sync message.
	endOfRequest = []byte{'S', 0, 0, 0, 4}
	// cancelRequest is how a connection begins by which the driver asks the
	// server to give up what a lost connection was doing. It never gets through:
	// in a network that is torn the server goes on.
	cancelRequest = []byte{0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e}
)

func (w *wire) cutFor(b []byte, asked bool) *cut {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.cut
	if c == nil || c.asked != asked || !bytes.Contains(b, []byte(c.text)) {
		return nil
	}
	w.cut = nil
	return c
}

func (w *wire) arm(c *cut) <-chan struct{} {
	c.done = make(chan struct{})
	w.mu.Lock()
	w.cut = c
	w.mu.Unlock()
	return c.done
}

// loseAnswer lets the server do what it says it did, and never says so.
func (w *wire) loseAnswer(text string) <-chan struct{} {
	return w.arm(&cut{text: text, withheld: true})
}

// loseRequest breaks the connection before the server is asked.
func (w *wire) loseRequest(text string) <-chan struct{} {
	return w.arm(&cut{text: text, asked: true, withheld: true})
}

// askAndLeave breaks the connection as soon as the server has been asked.
func (w *wire) askAndLeave(text string) <-chan struct{} { return w.arm(&cut{text: text, asked: true}) }

// refuseOthers lets no connection through beside those that are open.
func (w *wire) refuseOthers() {
	w.mu.Lock()
	w.lonely = true
	w.mu.Unlock()
}
