package receiver_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/testkit/breakable"
	"github.com/mergeflow/mergeflow/internal/testkit/receiver"
)

func post(t *testing.T, url, body, key string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	r, err := receiver.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if status := post(t, r.ControlURL(), `{"mode":"503","times":1}`, ""); status != 200 {
		t.Fatalf("control: %d", status)
	}
	for _, call := range []struct {
		body, key string
		want      int
	}{
		{`{"deliveryId":"d1","watcher":"ann"}`, "d1", 503}, // as told
		{`{"deliveryId":"d1","watcher":"ann"}`, "d1", 204},
		{`{"deliveryId":"d1","watcher":"ann","later":"field"}`, "d1", 204},
		{`{"deliveryId":"d1","watcher":"bob"}`, "d1", 204},
		{`{"deliveryId":"d1","watcher":"ann"}`, "other", 422},
		{`{"watcher":"ann"}`, "", 422},
		{`nonsense`, "", 400},
		{strings.Repeat(" ", 5<<20), "", 413},
	} {
		if got := post(t, r.URL(), call.body, call.key); got != call.want {
			t.Errorf("%.50s: %d, want %d", call.body, got, call.want)
		}
	}
	if err := r.AwaitCalls(t.Context(), 8); err != nil || r.Calls() != 8 {
		t.Errorf("%d calls, %v", r.Calls(), err)
	}
	resp, err := http.Get(strings.TrimSuffix(r.URL(), "/hook") + "/deliveries")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	var got struct {
		Items []struct {
			DeliveryID, Watcher string
			Times               int
		}
	}
	if err := json.Unmarshal(body, &got); err != nil || len(got.Items) != 2 || got.Items[0].Times != 2 || got.Items[1].Watcher != "bob" {
		t.Errorf("%v in %s", err, body)
	}
	if err := r.Set(breakable.Mode("nonsense")); err == nil {
		t.Error("took a mode that is none")
	}
}
