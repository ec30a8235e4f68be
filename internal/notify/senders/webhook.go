package senders

import (
	"context"
	"errors"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/outbound"
)

// webhook posts each watcher's message to one URL, signed.
type webhook struct {
	url    string
	client *outbound.Client
}

func (w *webhook) send(ctx context.Context, to notify.Recipient, m notify.Message) error {
	_, err := w.client.Do(ctx, outbound.Request{URL: w.url, Body: m, IdempotencyKey: m.DeliveryID})
	if e, ok := errors.AsType[*outbound.Error](err); ok {
		return &notify.Error{Recipient: to.Key, Status: e.Status, Detail: e.Detail, Transient: e.Transient()}
	}
	if err != nil {
		return fmt.Errorf("notify %s: %w", to.Key, err)
	}
	return nil
}
