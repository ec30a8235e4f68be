package proxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mergeflow/mergeflow/internal/testkit/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const answer = "0123456789"

// behind starts a server behind a proxy and a client that keeps connections.
func behind(t *testing.T) (*proxy.Proxy, func(context.Context) (string, error), *atomic.Int32) {
	t.Helper()
	var calls atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(w, strings.NewReader(answer))
	}))
	t.Cleanup(s.Close)
	p := proxy.New(t, s.Listener.Addr().String())
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	c := &http.Client{Transport: tr}
	return p, func(ctx context.Context) (string, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+p.Addr(), strings.NewReader("body"))
		if err != nil {
			return "", err
		}
		resp, err := c.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}, &calls
}

func TestModes(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} { // with a connection that is open already
		p, call, calls := behind(t)
		warm := func() {
			p.Set(proxy.Pass)
			if got, err := call(t.Context()); err != nil || got != answer {
				t.Fatalf("%q, %v", got, err)
			}
			calls.Store(0)
		}
		if open {
			warm()
		}

		p.Set(proxy.Reset)
		if _, err := call(t.Context()); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("reset: %v", err)
		}
		if calls.Load() != 0 {
			t.Error("reset: the server was asked")
		}

		warm()
		p.Set(proxy.CloseAfterRequest)
		if got, err := call(t.Context()); err == nil {
			t.Errorf("close after request: %q", got)
		}
		if calls.Load() != 1 {
			t.Errorf("close after request: the server was asked %d times", calls.Load())
		}

		warm()
		p.Set(proxy.CutAfter(60)) // within the head of the first answer, or the second one's
		if got, err := call(t.Context()); err == nil {
			t.Errorf("cut: %q", got)
		}

		warm()
		p.Set(proxy.Hang)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		if got, err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("hang: %q, %v", got, err)
		}
		cancel()
		if calls.Load() != 0 {
			t.Error("hang: the server was asked")
		}
		warm()
	}
}

func TestCutCountsBytes(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, answer)
		_, _ = io.Copy(io.Discard, c)
	}()
	p := proxy.New(t, l.Addr().String())
	p.Set(proxy.CutAfter(4))
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, _ := io.ReadAll(c); string(got) != answer[:4] {
		t.Errorf("got %q", got)
	}
	if p.Accepted() != 1 {
		t.Errorf("accepted %d", p.Accepted())
	}
}

func TestHalfAClosePasses(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c) // needs the client's end
		_, _ = c.Write(append(b, " heard"...))
	}()
	p := proxy.New(t, l.Addr().String())
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "hello")
	_ = c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "hello heard" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDropAllAndClose(t *testing.T) {
	t.Parallel()
	p, err := proxy.Start("127.0.0.1:1") // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	p.Set(proxy.Hang)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	a := dial()
	for deadline := time.Now().Add(5 * time.Second); p.Accepted() < 1 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	p.DropAll()
	if _, err := a.Read(make([]byte, 1)); err == nil {
		t.Error("dropped, and still open")
	}
	p.Set(proxy.Pass)
	if c, err := net.Dial("tcp", p.Addr()); err == nil { // the reset may be faster than the dial
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the target is down, and the connection lives")
		}
		_ = c.Close()
	}
	p.Set(proxy.Hang)
	b := dial()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := b.Read(make([]byte, 1)); err == nil {
		t.Error("closed, and still open")
	}
	if err := p.Close(); err != nil {
		t.Errorf("a second close: %v", err)
	}
}
