package httpapi

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/store"
)

// The sizes of a page.
const (
	pageDefault = 100
	pageMax     = 500
)

// A cursor is opaque to its users: the place of the last item that they saw.
// Each list has a kind of its own, so that one list's cursor is refused by another.

func encodeCursor(kind string, parts ...string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind + "." + strings.Join(parts, ".")))
}

// decodeCursor answers what encodeCursor was given; ok is false for anything else.
func decodeCursor(kind, cursor string, parts int) (out []string, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || badText(string(b)) != "" {
		return nil, false
	}
	rest, ok := strings.CutPrefix(string(b), kind+".")
	if !ok {
		return nil, false
	}
	out = strings.SplitN(rest, ".", parts)
	return out, len(out) == parts
}

func badCursor() *Error { return invalid("cursor", "is none that this list gave out") }

func timeCursor(kind string, at time.Time, id string) string {
	return encodeCursor(kind, strconv.FormatInt(at.UnixMicro(), 36), id)
}

// readTimeCursor is nil for the first page.
func readTimeCursor(kind, cursor string) (*store.Cursor, error) {
	if cursor == "" {
		return nil, nil
	}
	parts, ok := decodeCursor(kind, cursor, 2)
	if !ok {
		return nil, badCursor()
	}
	micros, err := strconv.ParseInt(parts[0], 36, 64)
	id, isID := canonicalID(parts[1])
	if err != nil || !isID {
		return nil, badCursor()
	}
	return &store.Cursor{At: time.UnixMicro(micros).UTC(), ID: id}, nil
}

// readNameCursor is empty for the first page.
func readNameCursor(kind, cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	parts, ok := decodeCursor(kind, cursor, 1)
	if !ok || parts[0] == "" {
		return "", badCursor()
	}
	return parts[0], nil
}

// markText is a place in a history, as streams and cursors write it.
func markText(m store.Mark) string {
	return strconv.FormatInt(m.Seq, 10) + "." + strconv.FormatInt(m.Note, 10)
}

func readMark(s string) (store.Mark, bool) {
	seq, note, ok := strings.Cut(s, ".")
	var m store.Mark
	var err1, err2 error
	m.Seq, err1 = strconv.ParseInt(seq, 10, 64)
	m.Note, err2 = strconv.ParseInt(note, 10, 64)
	return m, ok && err1 == nil && err2 == nil && m.Seq >= 0 && m.Note >= 0
}

// canonicalID is a uuid as the stores write it. What is none names nothing.
func canonicalID(s string) (string, bool) {
	if len(s) != 36 {
		return "", false
	}
	id, err := uuid.Parse(s)
	return id.String(), err == nil
}

// pageOf cuts a page of limit items from what was read, one more than it holds;
// next makes the cursor from the last item of a page that isn't the last.
func pageOf[R, T any](rows []R, limit int, show func(R) T, next func(R) string) List[T] {
	out := List[T]{Items: make([]T, 0, min(len(rows), limit))}
	if len(rows) > limit {
		rows = rows[:limit]
		out.Next = next(rows[limit-1])
	}
	for _, r := range rows {
		out.Items = append(out.Items, show(r))
	}
	return out
}
