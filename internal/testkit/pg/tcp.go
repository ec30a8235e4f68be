package pg

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TCP answers a DSN for the same database by way of a free port on 127.0.0.1,
// for as long as the test runs. The server itself never opens a port: the test
// process forwards to its socket, so that no two tests can race for a number.
func TCP(t testing.TB, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	network, address := Address(t, dsn)
	var forwards sync.WaitGroup
	var mu sync.Mutex
	ended, open := false, map[net.Conn]bool{}
	forwards.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed by the test's end
			}
			server, err := net.Dial(network, address)
			if err != nil {
				client.Close()
				continue
			}
			mu.Lock()
			if ended {
				client.Close()
				server.Close()
			}
			open[client], open[server] = true, true
			mu.Unlock()
			for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
				forwards.Go(func() {
					_, _ = io.Copy(way[0], way[1]) // either side may go at any time
					way[0].Close()
					way[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		ended = true
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		forwards.Wait()
	})
	q := u.Query()
	q.Del("host")
	q.Del("port")
	u.Host, u.RawQuery = l.Addr().String(), q.Encode()
	return u.String()
}

// Address is where a DSN's server listens, in the words of net.Dial: what a
// proxy needs to stand in between.
func Address(t testing.TB, dsn string) (network, address string) {
	t.Helper()
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return pgconn.NetworkAddress(c.Host, c.Port)
}
