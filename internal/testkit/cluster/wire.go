package cluster

import (
	"bufio"
	bin "encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

// Wire stands between mergeflow and PostgreSQL and understands enough of the
// protocol to break a connection at a commit: before the server hears of it, or
// when it has committed and its answer is on the way. It is safe for concurrent use.
type Wire struct {
	// DSN is the database by way of the wire.
	DSN string

	listener         net.Listener
	network, address string

	mu    sync.Mutex
	next  *Cut
	open  map[net.Conn]bool
	ended bool
	all   sync.WaitGroup
}

// Cut is one broken commit, to come.
type Cut struct {
	// After lets the server commit and keeps its answer back.
	After bool
	// Of says which transactions are meant, by their statements; nil: any.
	Of *regexp.Regexp
	// Done is closed when the connection is broken.
	Done chan struct{}
}

// NewWire starts a wire to a database. It ends with the test.
func NewWire(t testing.TB, dsn string) *Wire {
	t.Helper()
	w := &Wire{open: map[net.Conn]bool{}}
	w.network, w.address = pg.Address(t, dsn)
	var err error
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Host, u.RawQuery = w.listener.Addr().String(), "sslmode=disable"
	w.DSN = u.String()
	w.all.Go(w.accept)
	t.Cleanup(func() {
		w.listener.Close()
		w.mu.Lock()
		w.ended = true
		for c := range w.open {
			c.Close()
		}
		w.mu.Unlock()
		w.all.Wait()
	})
	return w
}

// Break breaks the next commit that the cut means.
func (w *Wire) Break(c *Cut) {
	c.Done = make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = c
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(w.network, w.address)
		if err != nil {
			client.Close()
			continue
		}
		w.mu.Lock()
		if w.ended {
			client.Close()
			server.Close()
		}
		w.open[client], w.open[server] = true, true
		w.mu.Unlock()
		s := &session{wire: w, client: client, server: server, prepared: map[string]string{}, wait: 1} // the greeting
		w.all.Go(s.ask)
		w.all.Go(s.answer)
	}
}

// session is one connection.
type session struct {
	wire           *Wire
	client, server net.Conn

	// What the client says, in its own goroutine.
	prepared map[string]string // statements by name
	inTx     bool
	said     []string // the statements of the transaction so far

	mu   sync.Mutex
	wait int  // answers that are still to come
	cut  *Cut // its commit is the last of them
}

func (s *session) end() {
	s.client.Close()
	s.server.Close()
}

// ask carries what the client says, in groups that end where it waits for an
// answer: a group with a commit goes, or doesn't, as a whole.
func (s *session) ask() {
	defer s.end()
	r := bufio.NewReaderSize(s.client, 1<<16)
	hello, err := startup(r)
	if err != nil {
		return
	}
	if _, err := s.server.Write(hello); err != nil {
		return
	}
	var group []byte
	for {
		kind, message, err := read(r)
		if err != nil {
			return
		}
		group = append(group, message...)
		commits := false
		switch kind {
		case 'P':
			name, rest := text(message[5:])
			s.prepared[name], _ = text(rest)
		case 'B':
			_, rest := text(message[5:])
			name, _ := text(rest)
			s.say(s.prepared[name])
		case 'Q':
			sql, _ := text(message[5:])
			s.say(sql)
		}
		switch kind {
		case 'S', 'Q':
			commits = !s.inTx && len(s.said) > 0
		case 'H', 'X': // what came so far is wanted now
		default:
			continue
		}
		if commits {
			c := s.wire.take(s.said)
			s.said = nil
			if c != nil && !c.After {
				s.end()
				close(c.Done)
				return
			}
			s.mu.Lock()
			s.cut = c
			s.mu.Unlock()
		}
		if kind == 'S' || kind == 'Q' {
			s.mu.Lock()
			s.wait++
			s.mu.Unlock()
		}
		if _, err := s.server.Write(group); err != nil {
			return
		}
		group = group[:0]
	}
}

// say notes a statement. Outside a transaction each commits by itself.
func (s *session) say(sql string) {
	switch word, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(sql)), " "); strings.TrimSuffix(word, ";") {
	case "begin":
		s.inTx, s.said = true, nil
	case "commit":
		s.inTx = false
	case "rollback":
		s.inTx, s.said = false, nil
	default:
		if s.inTx || writing.MatchString(sql) {
			s.said = append(s.said, sql)
		}
	}
}

var writing = regexp.MustCompile(`(?i)\binsert into\b|\bdelete from\b|\bupdate \w+ (\w+ )?set\b`)

// take is the cut that means this transaction; a transaction that wrote nothing
// is none.
func (w *Wire) take(said []string) *Cut {
	all := strings.Join(said, "\n")
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.next
	if c == nil || !writing.MatchString(all) || c.Of != nil && !c.Of.MatchString(all) {
		return nil
	}
	w.next = nil
	return c
}

// answer carries what the server says, up to a commit that is cut.
func (s *session) answer() {
	defer s.end()
	r := bufio.NewReaderSize(s.server, 1<<16)
	var kept []byte
	failed := false
	for {
		kind, message, err := read(r)
		if err != nil {
			return
		}
		s.mu.Lock()
		cut := s.cut
		if s.wait > 1 {
			cut = nil // what comes first was asked before
		}
		if kind == 'Z' {
			s.wait--
			if cut != nil {
				s.cut = nil
			}
		}
		s.mu.Unlock()
		if cut != nil {
			kept = append(kept, message...)
			failed = failed || kind == 'E'
			if kind != 'Z' {
				continue
			}
			if !failed {
				s.end()
				close(cut.Done)
				return
			}
			// It did not commit: not what was asked for.
			s.wire.again(cut)
			message, kept, failed = kept, nil, false
		}
		if _, err := s.client.Write(message); err != nil {
			return
		}
	}
}

func (w *Wire) again(c *Cut) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = c
}

// errCancelled ends a connection by which the driver asks the server to give up
// what a lost connection was doing: in a network that is torn it never arrives.
var errCancelled = errors.New("a request to cancel")

func startup(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(8)
	if err != nil {
		return nil, err
	}
	if bin.BigEndian.Uint32(head[4:]) == 80877102 {
		return nil, errCancelled
	}
	hello := make([]byte, bin.BigEndian.Uint32(head))
	_, err = io.ReadFull(r, hello)
	return hello, err
}

// read reads one message, its kind and length included.
func read(r *bufio.Reader) (kind byte, message []byte, err error) {
	head, err := r.Peek(5)
	if err != nil {
		return 0, nil, err
	}
	message = make([]byte, 1+bin.BigEndian.Uint32(head[1:]))
	_, err = io.ReadFull(r, message)
	return message[0], message, err
}

// text cuts a text that ends in a zero byte off the front.
func text(b []byte) (string, []byte) {
	s, rest, _ := strings.Cut(string(b), "\x00")
	return s, []byte(rest)
}
