package senders_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/notify/senders"
	"github.com/mergeflow/mergeflow/internal/testkit/breakable"
	"github.com/mergeflow/mergeflow/internal/testkit/receiver"
)

const secret = "hook secret"

func message(id string) notify.Message {
	return notify.Message{DeliveryID: id, Event: "merged", Repo: "app", Pull: 7, OperationID: "op", MergeCommit: "c1", Text: "app!7 is merged"}
}

func receive(t *testing.T) *receiver.Receiver {
	t.Helper()
	r, err := receiver.Start(receiver.WithSecret(secret))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func create(t *testing.T, o senders.Options) notify.Notifier {
	t.Helper()
	n, err := senders.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func hook(t *testing.T, url, secret string) notify.Notifier {
	return create(t, senders.Options{WebhookURL: url, WebhookSecret: func() string { return secret }})
}

func TestRecipients(t *testing.T) {
	t.Parallel()
	urls := []string{"generic://chat.example.com/hidden", "ntfy://ntfy.sh/hidden", "generic://chat.example.com/hidden"}
	watchers := []string{"ann", "bob", "ann", ""}
	keys := func(o senders.Options, watchers []string) []string {
		var out []string
		for _, r := range create(t, o).Recipients(watchers) {
			out = append(out, r.Key+" "+r.Watcher)
		}
		return out
	}
	both := keys(senders.Options{WebhookURL: "https://hooks.example.com", URLs: urls}, watchers)
	if len(both) != 4 {
		t.Fatalf("got %v", both)
	}
	if diff := cmp.Diff([]string{"webhook:ann ann", "webhook:bob bob"}, both[:2]); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(both[2], "generic:") || !strings.HasPrefix(both[3], "ntfy:") || !strings.HasSuffix(both[3], " channel") || strings.Contains(strings.Join(both, ""), "hidden") {
		t.Errorf("got %v", both)
	}
	// The keys are the same after a restart, and in whatever order.
	if diff := cmp.Diff([]string{both[3], both[2]}, keys(senders.Options{URLs: []string{urls[1], urls[0]}}, nil)); diff != "" {
		t.Error(diff)
	}
	if got := keys(senders.Options{}, watchers); got != nil {
		t.Errorf("nothing configured, and still %v", got)
	}
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	r := receive(t)
	n := hook(t, r.URL(), secret)
	to := n.Recipients([]string{"ann", "bob"})
	for i, id := range []string{"d1", "d2", "d1"} {
		if err := n.Send(t.Context(), to[i%2], message(id)); err != nil {
			t.Fatal(err)
		}
	}
	ann, bob := message("d1"), message("d2")
	ann.Watcher, bob.Watcher = "ann", "bob"
	if diff := cmp.Diff([]receiver.Delivery{{Message: ann, Times: 2}, {Message: bob, Times: 1}}, r.Deliveries()); diff != "" {
		t.Error(diff)
	}
}

func TestWebhookRefusals(t *testing.T) {
	t.Parallel()
	r := receive(t)
	n := hook(t, r.URL(), secret)
	to := n.Recipients([]string{"ann", "bob"})
	for status, transient := range map[int]bool{400: false, 403: false, 404: false, 408: true, 429: true, 500: true, 503: true} {
		r.Refuse("ann", status)
		err := n.Send(t.Context(), to[0], message("d1"))
		e, ok := errors.AsType[*notify.Error](err)
		if !ok || e.Status != status || e.Transient != transient || e.Recipient != "webhook:ann" || !strings.Contains(err.Error(), "as told: not for ann") {
			t.Errorf("%d: %v", status, err)
		}
	}
	if err := n.Send(t.Context(), to[1], message("d2")); err != nil {
		t.Errorf("the next watcher: %v", err)
	}
	r.Refuse("ann", 0)
	if err := n.Send(t.Context(), to[0], message("d1")); err != nil {
		t.Error(err)
	}
	err := hook(t, r.URL(), "another").Send(t.Context(), to[0], message("d3"))
	if e, ok := errors.AsType[*notify.Error](err); !ok || e.Status != 401 || strings.Contains(err.Error(), "another") {
		t.Errorf("wrong secret: %v", err)
	}
	if len(r.Deliveries()) != 2 {
		t.Errorf("got %v", r.Deliveries())
	}
}

func TestALostAnswerMayRepeatADelivery(t *testing.T) {
	t.Parallel()
	r := receive(t)
	n := hook(t, r.URL(), secret)
	to := n.Recipients([]string{"ann"})[0]
	if err := r.SetTimes(breakable.Lost, 1); err != nil {
		t.Fatal(err)
	}
	err := n.Send(t.Context(), to, message("d1"))
	if _, answered := errors.AsType[*notify.Error](err); err == nil || answered {
		t.Errorf("got %v", err)
	}
	if err := n.Send(t.Context(), to, message("d1")); err != nil {
		t.Fatal(err)
	}
	if d := r.Deliveries(); len(d) != 1 || d[0].Times != 2 {
		t.Errorf("got %v", d)
	}
}

// chat is a service that shoutrrr's generic driver can send to.
func chat(t *testing.T, h http.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return "generic://" + strings.TrimPrefix(s.URL, "http://") + "/hidden-token/x?disabletls=yes"
}

func TestChannel(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	n := create(t, senders.Options{URLs: []string{chat(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.URL.Path + " " + string(body)
	})}})
	if err := n.Send(t.Context(), n.Recipients(nil)[0], message("d1")); err != nil {
		t.Fatal(err)
	}
	if text := <-got; text != "/hidden-token/x app!7 is merged" {
		t.Errorf("got %q", text)
	}
}

func TestChannelErrorsHoldNoSecret(t *testing.T) {
	t.Parallel()
	refusing := chat(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	gone := httptest.NewServer(nil)
	gone.Close()
	host := strings.TrimPrefix(gone.URL, "http://")
	for _, url := range []string{
		refusing,
		"generic://" + host + "/hidden-token?disabletls=yes&@x-key=hidden-header",
		"gotify://" + host + "/Ahidden.token12?disabletls=yes",
	} {
		n := create(t, senders.Options{URLs: []string{url}, Timeout: 10 * time.Second})
		to := n.Recipients(nil)[0]
		err := n.Send(t.Context(), to, message("d1"))
		e, ok := errors.AsType[*notify.Error](err)
		if !ok || !e.Transient || e.Recipient != to.Key || e.Detail == "" {
			t.Errorf("got %v", err)
		}
		if text := fmt.Sprintf("%v %+v %#v", err, err, e); strings.Contains(text, "hidden") || strings.Contains(text, host) {
			t.Errorf("leaks: %s", text)
		}
	}
}

func TestAHangingChannelIsGivenUp(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	url := chat(t, func(http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-release })
	t.Cleanup(func() { close(release) }) // before the server's own
	n := create(t, senders.Options{URLs: []string{url}, Timeout: time.Hour})
	to := n.Recipients(nil)[0]
	for range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- n.Send(ctx, to, message("d1")) }()
		<-arrived
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	// Those four still hang; a fifth would only join them.
	err := n.Send(t.Context(), to, message("d1"))
	if e, ok := errors.AsType[*notify.Error](err); !ok || !e.Transient || !strings.Contains(err.Error(), "have not come back") {
		t.Errorf("got %v", err)
	}
}

func TestAChannelHasItsOwnDeadline(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	url := chat(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	n := create(t, senders.Options{URLs: []string{url}, Timeout: 10 * time.Millisecond})
	if err := n.Send(t.Context(), n.Recipients(nil)[0], message("d1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestARecipientThatIsNotConfiguredAnyMore(t *testing.T) {
	t.Parallel()
	n := create(t, senders.Options{})
	for _, key := range []string{"webhook:ann", "slack:0123abcd"} {
		err := n.Send(t.Context(), notify.Recipient{Key: key, Watcher: "ann"}, message("d1"))
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Transient {
			t.Errorf("got %v", err)
		}
	}
}

func TestNewNamesTheSettingAndNotItsValue(t *testing.T) {
	t.Parallel()
	for bad, want := range map[string]string{
		"":                                  "not a URL",
		"hidden":                            "not a URL",
		"hidden:hidden":                     "not a URL",
		"slak://hidden@hidden":              `no service is called "slak"`,
		"https://hooks.slack.com/hidden":    `no service is called "https"`,
		"slack://hidden":                    `not what the "slack" service needs`,
		"smtp://user:hidden@host:bad/":      "not a URL",
		"logger://hidden":                   "reach nobody",
		"matrix://hidden.example.com":       "needs a host and a password",
		"slack+hidden://hidden.example.com": "takes no URL but its own",
	} {
		_, err := senders.New(senders.Options{URLs: []string{"generic://fine.example.com", bad}})
		if err == nil || !strings.HasPrefix(err.Error(), "notify.urls[1]: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", bad, err)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q leaks: %v", bad, err)
		}
	}
	_, err := senders.New(senders.Options{WebhookURL: "ftp://hidden", URLs: []string{"hidden"}})
	if err == nil || !strings.Contains(err.Error(), "notify.webhook.url: ") || !strings.Contains(err.Error(), "notify.urls[0]: ") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("got %v", err)
	}
	// Checking a matrix URL logs in nowhere.
	if _, err := senders.New(senders.Options{URLs: []string{"matrix://user:hidden@127.0.0.1:1/"}}); err != nil {
		t.Error(err)
	}
}
