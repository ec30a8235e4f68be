// Package senders tells people: each watcher by a signed webhook,
// and chat rooms and mailboxes by the URLs that shoutrrr understands.
package senders

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/outbound"
)

// webhookPrefix begins the keys of the watchers that a webhook reaches.
const webhookPrefix = "webhook:"

// Options is what the configuration says about notifications. Nothing set means
// that nobody is told.
type Options struct {
	URLs          []string      // notify.urls: chat and mail; each is a secret
	WebhookURL    string        // notify.webhook.url
	WebhookSecret func() string // notify.webhook.secret, asked at every call; nil: none
	Timeout       time.Duration // of one delivery; 0 means outbound.DefaultTimeout
}

// New makes the notifier of a configuration. It opens nothing. Its error names
// the setting that is wrong, and never its value.
func New(o Options) (notify.Notifier, error) {
	if o.Timeout <= 0 {
		o.Timeout = outbound.DefaultTimeout
	}
	m := &multi{channels: map[string]*channel{}}
	var errs []error
	if o.WebhookURL != "" {
		if err := outbound.CheckURL(o.WebhookURL); err != nil {
			errs = append(errs, fmt.Errorf("notify.webhook.url: %w", err))
		}
		m.webhook = &webhook{url: o.WebhookURL, client: outbound.New(outbound.Options{Secret: o.WebhookSecret, Timeout: o.Timeout})}
	}
	for i, u := range o.URLs {
		c, err := newChannel(u, o.Timeout)
		if err != nil {
			errs = append(errs, fmt.Errorf("notify.urls[%d]: %w", i, err))
			continue
		}
		if m.channels[c.key] == nil {
			m.channels[c.key] = c
			m.keys = append(m.keys, c.key)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return m, nil
}

// multi sends each message by the driver that its recipient's key names.
type multi struct {
	webhook  *webhook // nil: none
	channels map[string]*channel
	keys     []string // of channels, as configured
}

// Recipients names each watcher once where a webhook is configured, then each
// chat and mail URL, which are told even when nobody watches.
func (m *multi) Recipients(watchers []string) []notify.Recipient {
	var out []notify.Recipient
	if m.webhook != nil {
		for _, w := range watchers {
			r := notify.Recipient{Key: webhookPrefix + w, Watcher: w}
			if w != "" && !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	for _, k := range m.keys {
		out = append(out, notify.Recipient{Key: k, Watcher: notify.Channel})
	}
	return out
}

// Send delivers one message. A recipient that the configuration has lost
// meanwhile is refused, and no further try changes that.
func (m *multi) Send(ctx context.Context, to notify.Recipient, msg notify.Message) error {
	msg.Watcher = to.Watcher
	if strings.HasPrefix(to.Key, webhookPrefix) && m.webhook != nil {
		return m.webhook.send(ctx, to, msg)
	}
	if c := m.channels[to.Key]; c != nil {
		return c.send(ctx, msg)
	}
	return &notify.Error{Recipient: to.Key, Detail: "is not configured any more"}
}
