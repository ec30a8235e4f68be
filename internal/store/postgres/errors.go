package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mergeflow/mergeflow/internal/store"
)

// SQLSTATEs that are told apart; the first two characters are the class.
const (
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
)

// errCut: the connection died before COMMIT was sent, so nothing is written.
var errCut = errors.New("the connection was lost")

// wrap says what was asked, and maps the database's refusals to the store's.
func wrap(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%s: %w", op, store.ErrNotFound)
	case isRefusal(err):
		return fmt.Errorf("%s: %w: %w", op, store.ErrConflict, err)
	case codeOf(err) == lockNotAvailable:
		return fmt.Errorf("%s: %w", op, store.ErrBusy)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// wrapCreate is wrap where a key that is taken means that the thing exists.
func wrapCreate(op string, err error) error {
	if codeOf(err) == uniqueViolation {
		return fmt.Errorf("%s: %w", op, store.ErrExists)
	}
	return wrap(op, err)
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// isRefusal: a value or a constraint; the same write would be refused again.
func isRefusal(err error) bool {
	c := codeOf(err)
	return len(c) == 5 && (c[:2] == "22" || c[:2] == "23")
}

// isRepeatable: nothing was written, and the same may well work now.
func isRepeatable(err error) bool {
	c := codeOf(err)
	return c == serializationFailure || c == deadlockDetected || errors.Is(err, errCut)
}

// isCut: the server's answer is missing, or it ended the session.
func isCut(conn *pgx.Conn, err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.SeverityUnlocalized == "FATAL" || e.SeverityUnlocalized == "PANIC"
	}
	return conn.IsClosed()
}

// pause waits a little, longer with each try; false when ctx ended.
func pause(ctx context.Context, try int) bool {
	d := time.Duration(float64(try+1) * float64(10*time.Millisecond) * (0.5 + rand.Float64()))
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
