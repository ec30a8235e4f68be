package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	wakeChannel = "mergeflow_wake"
	// wakeGap is how long wake-ups are gathered before one is sent.
	wakeGap = 10 * time.Millisecond
	// wakeLimit bounds the sending of one.
	wakeLimit = 5 * time.Second
)

// waker gathers wake-ups. A NOTIFY takes a lock at COMMIT that all of the
// server's databases share, so it is sent rarely and never by a transaction
// that writes.
type waker struct {
	mu      sync.Mutex
	timer   *time.Timer // nil when none is on its way
	sending sync.WaitGroup
	stopped bool
}

// Wake tells other processes, within about 10 ms, that something is due. One
// that can't be sent is left out: the poll finds what is due.
func (db *DB) Wake(ctx context.Context) error {
	if !db.notify {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &db.wake
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.timer != nil {
		return nil
	}
	w.sending.Add(1)
	w.timer = time.AfterFunc(wakeGap, func() {
		defer w.sending.Done()
		w.mu.Lock()
		w.timer = nil // what becomes due from here on needs another one
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), wakeLimit)
		defer cancel()
		_, _ = db.pool.Exec(ctx, "SELECT pg_notify($1, $2)", wakeChannel, db.id)
	})
	return nil
}

// stop sends no more, and waits for the one that is being sent.
func (w *waker) stop() {
	w.mu.Lock()
	w.stopped = true
	if w.timer != nil && w.timer.Stop() {
		w.timer = nil
		w.sending.Done()
	}
	w.mu.Unlock()
	w.sending.Wait()
}

// Listen hears other processes' wake-ups on a connection of its own, and
// reconnects when that is lost. Each new connection wakes once: nobody knows
// what was missed. It answers the context's error.
func (db *DB) Listen(ctx context.Context, wake func()) error {
	if !db.notify {
		return nil
	}
	for try := 0; ctx.Err() == nil; try = min(try+1, 200) {
		if db.listen(ctx, wake) {
			try = 0
		}
		pause(ctx, 5*try) // from 50 ms to about 10 s
	}
	return ctx.Err()
}

// listen answers whether it ever listened.
func (db *DB) listen(ctx context.Context, wake func()) (listened bool) {
	conn, err := pgx.ConnectConfig(ctx, db.pool.Config().ConnConfig)
	if err != nil {
		return false
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "LISTEN "+wakeChannel); err != nil {
		return false
	}
	wake()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true
		}
		if n.Payload != db.id {
			wake()
		}
	}
}
