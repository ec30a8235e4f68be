package sqlite

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/mergeflow/mergeflow/internal/store"
)

// wrap says what was asked, and maps the database's refusals to the store's.
func wrap(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%s: %w", op, store.ErrNotFound)
	case isRefusal(err) && !errors.Is(err, store.ErrConflict):
		return fmt.Errorf("%s: %w: %w", op, store.ErrConflict, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// isRefusal: a constraint or a value; the same write would be refused again.
func isRefusal(err error) bool {
	switch codeOf(err) & 0xff {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG:
		return true
	}
	return errors.Is(err, store.ErrConflict)
}

// isTaken: a unique key is there already.
func isTaken(err error) bool {
	c := codeOf(err)
	return c == sqlite3.SQLITE_CONSTRAINT_UNIQUE || c == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
}

func codeOf(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return 0
}

// SQLite stores what PostgreSQL refuses. The checks below refuse it here too,
// so that a saga behaves the same on both.

// checkText refuses NUL and broken UTF-8. The value is no part of the error.
func checkText(what string, texts ...string) error {
	for _, t := range texts {
		if strings.IndexByte(t, 0) >= 0 || !utf8.ValidString(t) {
			return fmt.Errorf("%w: %s holds NUL or broken UTF-8", store.ErrConflict, what)
		}
	}
	return nil
}

// checkID refuses what is no uuid; empty ids are null.
func checkID(what string, ids ...string) error {
	for _, id := range ids {
		if id != "" && (len(id) != 36 || uuid.Validate(id) != nil) {
			return fmt.Errorf("%w: %s is no uuid", store.ErrConflict, what)
		}
	}
	return nil
}

// checkJSON refuses what is no JSON, and strings that no text can hold: an
// escaped NUL, half a surrogate pair.
func checkJSON(what string, j json.RawMessage) error {
	if len(j) == 0 {
		return nil
	}
	if !utf8.Valid(j) || !json.Valid(j) || hasBadEscape(j) {
		return fmt.Errorf("%w: %s is no JSON that a database can hold", store.ErrConflict, what)
	}
	return nil
}

// hasBadEscape looks through valid JSON, where a backslash is always part of
// an escape in a string and \u always has four digits.
func hasBadEscape(j []byte) bool {
	unit := func(i int) (u rune) { // of the \uXXXX at i, or -1
		if i+6 > len(j) || j[i] != '\\' || j[i+1] != 'u' {
			return -1
		}
		for _, c := range j[i+2 : i+6] {
			u = u<<4 | rune(hexValue(c))
		}
		return u
	}
	for i := bytes.IndexByte(j, '\\'); i >= 0 && i < len(j); {
		switch u := unit(i); {
		case u == 0, u >= 0xdc00 && u < 0xe000:
			return true
		case u >= 0xd800 && u < 0xdc00:
			if low := unit(i + 6); low < 0xdc00 || low >= 0xe000 {
				return true
			}
			i += 12
		default:
			i += 2
		}
		next := bytes.IndexByte(j[i:], '\\')
		if next < 0 {
			return false
		}
		i += next
	}
	return false
}

func hexValue(c byte) byte {
	switch {
	case c >= 'a':
		return c - 'a' + 10
	case c >= 'A':
		return c - 'A' + 10
	}
	return c - '0'
}
