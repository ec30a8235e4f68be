package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"
)

// WatchEvent is one event of a watched operation: an entry of its history, or
// the operation as it stands after the entries before.
type WatchEvent struct {
	ID        string        // of an entry: where to resume (after); empty for a snapshot
	Entry     *HistoryEntry // nil for a snapshot
	Operation *Operation    // nil for an entry
}

// How long a watch bears an unreachable server, and how it pauses.
const (
	watchPatience = 30 * time.Second
	watchPause    = 200 * time.Millisecond
	watchPauseMax = 3 * time.Second
	eventLimit    = 4 << 20 // bytes of one line
)

// Watch follows an operation from the entry after the one named by after (empty:
// from the beginning) until it is final. A connection that breaks is resumed
// where it broke, for up to half a minute without an answer; entries never
// repeat. The iterator ends after the first error, and without one after the
// snapshot of a final state.
func (c *Client) Watch(ctx context.Context, id, after string) iter.Seq2[WatchEvent, error] {
	return func(yield func(WatchEvent, error) bool) {
		w := watcher{client: c, path: operationPath(id) + "/watch", after: after}
		for w.run(ctx, yield) {
		}
	}
}

type watcher struct {
	client *Client
	path   string
	after  string
	once   bool      // it was connected
	since  time.Time // of the silence
	pause  time.Duration
}

// run follows one connection; it is true when another one should be tried.
func (w *watcher) run(ctx context.Context, yield func(WatchEvent, error) bool) bool {
	header := http.Header{"Accept": {"text/event-stream"}}
	if w.after != "" {
		header.Set("Last-Event-Id", w.after)
	}
	resp, err := w.client.open(ctx, http.MethodGet, w.path, nil, nil, header)
	if err == nil {
		w.once = true
		var over bool
		if over, err = w.read(resp.Body, yield); over {
			return false
		}
	}
	if refused, ok := errors.AsType[*Error](err); ctx.Err() != nil || !w.once || ok && refused.Status < 500 {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		yield(WatchEvent{}, err)
		return false
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	if time.Since(w.since) > watchPatience {
		yield(WatchEvent{}, err)
		return false
	}
	w.pause = min(max(2*w.pause, watchPause), watchPauseMax)
	select {
	case <-time.After(w.pause):
		return true
	case <-ctx.Done():
		yield(WatchEvent{}, ctx.Err())
		return false
	}
}

// read hands on the events of one connection. over means that the watch has
// ended: at a final state, or because the reader wants no more.
func (w *watcher) read(body io.ReadCloser, yield func(WatchEvent, error) bool) (over bool, err error) {
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, eventLimit)
	var kind, id string
	var data strings.Builder
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			kind = value
		case "id":
			id = value
		case "data":
			data.WriteString(value)
		}
		if lines.Text() != "" || data.Len() == 0 {
			continue
		}
		ev, err := decodeEvent(kind, id, data.String())
		if err != nil {
			return false, err
		}
		w.since, w.pause = time.Time{}, 0
		if ev.ID != "" {
			w.after = ev.ID
		}
		if !yield(ev, nil) || ev.Operation != nil && ev.Operation.Final() {
			return true, nil
		}
		kind, id = "", ""
		data.Reset()
	}
	if err := lines.Err(); err != nil {
		return false, err
	}
	return false, io.ErrUnexpectedEOF
}

func decodeEvent(kind, id, data string) (WatchEvent, error) {
	ev := WatchEvent{ID: id}
	var into any
	switch kind {
	case eventOperation:
		ev.Operation = &Operation{}
		into = ev.Operation
	default:
		ev.Entry = &HistoryEntry{}
		into = ev.Entry
	}
	if err := json.Unmarshal([]byte(data), into); err != nil {
		return ev, fmt.Errorf("event %q: %w", kind, err)
	}
	return ev, nil
}
