package breakable_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/mergeflow/mergeflow/internal/testkit/breakable"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestModes(t *testing.T) {
	t.Parallel()
	var s breakable.Switch
	var performed atomic.Int32
	server, err := breakable.Serve("", s.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		performed.Add(1)
		breakable.WriteJSON(w, "done")
	})))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	call := func(ctx context.Context) (int, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/do", strings.NewReader("body"))
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	for _, tc := range []struct {
		mode      breakable.Mode
		status    int
		performed int32
	}{
		{"", 200, 1}, {breakable.OK, 200, 1}, {breakable.Slow, 200, 1},
		{breakable.Status(307), 307, 0}, {breakable.Status(400), 400, 0}, {breakable.Status(599), 599, 0},
		{breakable.Lost, 0, 1},
	} {
		performed.Store(0)
		if tc.mode != "" {
			if err := s.Set(breakable.Setting{Mode: tc.mode, Times: 1}); err != nil {
				t.Fatal(err)
			}
		}
		status, err := call(t.Context())
		if status != tc.status || (err == nil) != (status != 0) || performed.Load() != tc.performed {
			t.Errorf("%q: %d, %v, performed %d times", tc.mode, status, err, performed.Load())
		}
	}
	for _, bad := range []breakable.Mode{"", "200", "600", "x"} {
		if err := s.Set(breakable.Setting{Mode: bad}); err == nil {
			t.Errorf("took mode %q", bad)
		}
	}

	// A hanging call ends with its client, or with the server.
	performed.Store(0)
	if err := s.Set(breakable.Setting{Mode: breakable.Hang}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	hang := func(ctx context.Context) {
		_, err := call(ctx)
		ended <- err
	}
	go hang(ctx)
	if err := s.Await(t.Context(), "/do", 8); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go hang(t.Context())
	if err := s.Await(t.Context(), "/do", 9); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the server is closed, and the call was answered")
	}
	if performed.Load() != 0 || s.Calls("/do") != 9 {
		t.Errorf("performed %d of %d", performed.Load(), s.Calls("/do"))
	}
	if err := s.Await(ctx, "/do", 10); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
