package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// The events of a stream. An entry's id is its place in the history ("seq.note"),
// where a reader resumes; a snapshot has none, so that it moves no reader.
const (
	kindTransition = "transition"
	kindNote       = "note"
	eventOperation = "operation"

	entryBatch   = 200
	writeTimeout = 15 * time.Second // a reader that takes longer is dropped; it can resume
)

type watchIn struct {
	ID          string `path:"id"`
	LastEventID string `header:"Last-Event-ID" doc:"Resume after this event"`
}

func (a *api) watchRoute() {
	op := get("watch-operation", "/v1/operations/{id}/watch", "Follow an operation: its history so far, then what happens, as server-sent events", 404, 422)
	op.Description = "Events: `transition` and `note` hold an entry of the history, and their id, `seq.note`, is where Last-Event-ID resumes. " +
		"`operation` holds the operation as it stands after them. The stream ends after the `operation` of a final state."
	op.Responses = map[string]*huma.Response{"200": {
		Description: "The stream", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}},
	}}
	register(a, op, func(ctx context.Context, in *watchIn) (*huma.StreamResponse, error) {
		row, err := a.ops.row(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		var after store.Mark
		if in.LastEventID != "" {
			var ok bool
			if after, ok = readMark(in.LastEventID); !ok {
				return nil, invalid("Last-Event-ID", "is no event of this stream")
			}
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			r, w := humago.Unwrap(hc)
			a.watch(w, r, row.ID, after)
		}}, nil
	})
}

// watch writes events until the operation is final, the reader leaves or the
// server closes. It reads when this instance has committed something, and now
// and then for what other instances commit.
func (a *api) watch(w http.ResponseWriter, r *http.Request, id string, after store.Mark) {
	signal, cancel := a.Engine.Subscribe(id)
	defer cancel()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy's buffer would hold events back
	w.WriteHeader(http.StatusOK)
	s := &stream{api: a, w: w, control: http.NewResponseController(w), id: id, after: after}
	if r.Method == http.MethodHead || s.write([]byte("retry: 1000\n\n")) != nil {
		return
	}
	poll, heartbeat := time.NewTicker(a.poll), time.NewTicker(a.heartbeat)
	defer poll.Stop()
	defer heartbeat.Stop()
	for {
		over, err := s.catchUp(r.Context())
		if err != nil && r.Context().Err() == nil {
			a.Log.WarnContext(r.Context(), "a watch ended early", "request", requestIDOf(r.Context()), "operation", id, "error", err)
		}
		if over || err != nil {
			return
		}
		for waiting := true; waiting; {
			select {
			case <-signal:
				waiting = false
			case <-poll.C:
				waiting = false
			case <-heartbeat.C:
				if s.write([]byte(":\n\n")) != nil {
					return
				}
			case <-r.Context().Done():
				return
			case <-a.Closing:
				return
			}
		}
	}
}

// stream is one reader's place.
type stream struct {
	*api
	w       http.ResponseWriter
	control *http.ResponseController
	id      string
	after   store.Mark
	version string // of the last snapshot
}

// catchUp sends what is new. over is true after a final state.
func (s *stream) catchUp(ctx context.Context) (over bool, err error) {
	for {
		row, err := s.Store.Saga(ctx, s.id)
		if err != nil {
			return false, err
		}
		sent, err := s.entries(ctx)
		if err != nil {
			return false, err
		}
		if sent && s.after.Seq > row.Version {
			continue // it moved between the two reads: a snapshot must not lag behind its entries
		}
		return !row.ClosedAt.IsZero(), s.snapshot(row)
	}
}

func (s *stream) entries(ctx context.Context) (sent bool, err error) {
	for {
		entries, err := s.Store.History(ctx, s.id, s.after, entryBatch)
		if err != nil {
			return sent, err
		}
		for _, e := range entries {
			entry := showEntry(e)
			if err := s.event(entry.Kind, markText(e.Mark), entry); err != nil {
				return sent, err
			}
			s.after, sent = e.Mark, true
		}
		if len(entries) < entryBatch {
			return sent, nil
		}
	}
}

func (s *stream) snapshot(row saga.Row) error {
	op := s.ops.Show(row)
	version := etag(op)
	if version == s.version {
		return nil
	}
	s.version = version
	return s.event(eventOperation, "", op)
}

func (s *stream) event(kind, id string, v any) error {
	var b bytes.Buffer
	b.WriteString("event: " + kind + "\n")
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	data, err := json.Marshal(v) // one line: JSON escapes line breaks
	if err != nil {
		return err
	}
	b.WriteString("data: ")
	b.Write(data)
	b.WriteString("\n\n")
	return s.write(b.Bytes())
}

// write sends at once.
func (s *stream) write(b []byte) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // writers without deadlines have none
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	return s.control.Flush()
}
