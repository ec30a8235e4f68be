package httpapi_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/pull"
)

// frame is one event as it came over the wire.
type frame struct{ event, id, data, comment string }

// frames opens a stream and answers its events; the channel ends with it.
func (f *fixture) frames(path string, header ...string) (<-chan frame, *http.Response) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	f.t.Cleanup(cancel)
	req, _ := http.NewRequestWithContext(ctx, "GET", f.url+path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = resp.Body.Close() })
	out := make(chan frame, 1000)
	go func() {
		defer close(out)
		var fr frame
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ":")
			switch value = strings.TrimPrefix(value, " "); {
			case name == "event":
				fr.event = value
			case name == "id":
				fr.id = value
			case name == "data":
				fr.data = value
			case lines.Text() == ":":
				fr.comment = ":"
			case lines.Text() == "":
				select {
				case out <- fr:
				case <-ctx.Done():
					return
				}
				fr = frame{}
			}
		}
		if lines.Err() != nil {
			out <- frame{event: "cut off"} // it did not end by itself
		}
	}()
	return out, resp
}

// stuckMerge begins a merge that stays in INDEXING until the index is released.
func (f *fixture) stuckMerge() string {
	f.t.Helper()
	f.repo("a", "x")
	f.index.block()
	m, err := f.client.MergePull(f.t.Context(), f.pull("a", "x").ID, "")
	if err != nil {
		f.t.Fatal(err)
	}
	f.until(m.OperationID, inState(pull.Indexing))
	return m.OperationID
}

func TestStreamTellsResumesAndEnds(t *testing.T) {
	t.Parallel()
	f := start(t)
	id := f.stuckMerge()
	path := "/v1/operations/" + id + "/watch"
	all, resp := f.frames(path)
	if h := resp.Header; h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", h)
	}
	resumed, _ := f.frames(path, "Last-Event-ID", "2.0")

	var told []string
	var last frame
	for fr := range all {
		if fr.event != "" {
			told, last = append(told, strings.TrimSpace(fr.event+" "+fr.id)), fr
		}
		if fr.event == "operation" {
			f.index.release() // it has told how things stood before they moved
		}
	}
	got := strings.Join(told, ", ")
	if got != "transition 1.0, transition 2.0, transition 3.0, transition 4.0, operation, transition 5.0, operation" {
		t.Errorf("told: %s", got)
	}
	var op httpapi.Operation
	if decode(t, last.data, &op); op.ID != id || !op.Final() {
		t.Errorf("the last event holds %s", last.data)
	}
	told = nil
	for fr := range resumed {
		if fr.id != "" {
			told = append(told, fr.id)
			var e httpapi.HistoryEntry
			if decode(t, fr.data, &e); e.Kind != fr.event || e.At.IsZero() {
				t.Errorf("entry %+v in %+v", e, fr)
			}
		}
	}
	if got := strings.Join(told, " "); got != "3.0 4.0 5.0" {
		t.Errorf("resumed after 2.0: %s", got)
	}
	// A final one is told at once, and nothing of it twice.
	told = nil
	for fr := range first(f.frames(path, "Last-Event-ID", "5.0")) {
		told = append(told, fr.event+fr.id)
	}
	if got := strings.Join(told, " "); got != " operation" { // the first is the retry hint
		t.Errorf("resumed at the end: %q", got)
	}
	for _, bad := range []string{"5", "x.y", "-1.0", "5.0.0"} {
		f.do("GET", path, "", "Last-Event-ID", bad).refused(t, http.StatusUnprocessableEntity, "invalid", "Last-Event-ID")
	}
	if a := f.do("HEAD", path, ""); a.status != 200 {
		t.Errorf("HEAD: %d", a.status)
	}
}

func first(c <-chan frame, _ *http.Response) <-chan frame { return c }

func TestStreamSendsHeadersAndHeartbeatsWhileNothingHappens(t *testing.T) {
	t.Parallel()
	f := start(t, func(o *httpapi.Options) { *o = o.WithPulse(time.Hour, 5*time.Millisecond) })
	id := f.stuckMerge()
	events, _ := f.frames("/v1/operations/"+id+"/watch", "Last-Event-ID", "4.0")
	for fr := range events {
		if fr.event == "cut off" {
			break
		}
		if fr.comment != "" {
			return
		}
	}
	t.Error("no heartbeat came")
}

// What another instance commits gives no signal here; the poll finds it.
func TestStreamFindsWhatOthersCommit(t *testing.T) {
	t.Parallel()
	f := start(t, func(o *httpapi.Options) {
		o.Engine = deaf{o.Engine}
		*o = o.WithPulse(5*time.Millisecond, time.Hour)
	})
	id := f.stuckMerge()
	f.index.release()
	f.until(id, httpapi.Operation.Final)
}

// deaf is an engine that never signals.
type deaf struct{ httpapi.Engine }

func (deaf) Subscribe(string) (<-chan struct{}, func()) { return nil, func() {} }

func TestStreamEndsWhenTheServerCloses(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	f := start(t, func(o *httpapi.Options) { o.Closing = closing })
	id := f.stuckMerge()
	events, _ := f.frames("/v1/operations/" + id + "/watch")
	<-events
	close(closing)
	for fr := range events {
		if fr.event == "operation" && strings.Contains(fr.data, "MERGED") {
			t.Error("the operation was not to end")
		}
		if fr.event == "cut off" {
			t.Error("the stream goes on")
		}
	}
}

// A watch that is cut in the middle of an entry goes on where it was, and tells
// nothing twice.
func TestClientWatchResumes(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.repo("a", "x")
	m, err := f.client.MergePull(t.Context(), f.pull("a", "x").ID, "")
	if err != nil {
		t.Fatal(err)
	}
	f.until(m.OperationID, httpapi.Operation.Final)

	var mu sync.Mutex
	var resumedAt []string
	cutter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		resumedAt = append(resumedAt, r.Header.Get("Last-Event-Id"))
		n := len(resumedAt)
		mu.Unlock()
		if n == 2 { // the server is away for a moment
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		req, _ := http.NewRequestWithContext(r.Context(), "GET", f.url+r.URL.Path, nil)
		req.Header = r.Header
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		if n == 1 {
			b = b[:strings.Index(string(b), "id: 3.0")+20]
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(b)
	}))
	t.Cleanup(cutter.Close)
	var told []string
	for ev, err := range (&httpapi.Client{BaseURL: cutter.URL}).Watch(t.Context(), m.OperationID, "") {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Entry != nil {
			told = append(told, ev.ID)
		}
	}
	if got := strings.Join(told, " "); got != "1.0 2.0 3.0 4.0 5.0" {
		t.Errorf("told %s", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(resumedAt, ","); got != ",2.0,2.0" {
		t.Errorf("asked to resume after %q", got)
	}
}

func TestClientWatchEndsWithAnError(t *testing.T) {
	t.Parallel()
	f := start(t)
	for _, err := range f.client.Watch(t.Context(), noID, "") {
		if refusal(t, err).Status != http.StatusNotFound {
			t.Error(err)
		}
	}
	id := f.stuckMerge()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var end error
	for ev, err := range f.client.Watch(ctx, id, "") {
		if end = err; ev.Operation != nil {
			cancel()
		}
	}
	if end != context.Canceled {
		t.Errorf("a cancelled watch ended with %v", end)
	}
	for range f.client.Watch(t.Context(), id, "") {
		break // the reader wants no more
	}
	gone := &httpapi.Client{BaseURL: "http://127.0.0.1:1"}
	n := 0
	for _, err := range gone.Watch(t.Context(), id, "") {
		if n++; err == nil {
			t.Error("nobody answered")
		}
	}
	if n != 1 {
		t.Errorf("%d events from nobody", n)
	}
}
