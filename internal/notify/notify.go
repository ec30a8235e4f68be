// Package notify tells people that something was merged. A message goes to one
// recipient at a time, so that each one can be recorded as reached and a retry
// skips it. The driver, senders, does it by a signed webhook per watcher, and
// by chat and mail URLs.
package notify

import (
	"context"
	"fmt"
)

// Message is one delivery to one recipient. DeliveryID is the same on every
// try, so that a receiver can drop what it has already seen.
type Message struct {
	DeliveryID  string `json:"deliveryId"`
	Watcher     string `json:"watcher"`
	Event       string `json:"event"` // "merged"
	Repo        string `json:"repo"`
	Pull        int64  `json:"pull"`
	OperationID string `json:"operationId"`
	MergeCommit string `json:"mergeCommit"`
	Text        string `json:"text"`
}

// Channel is the watcher of a recipient that is a chat or mail URL.
const Channel = "channel"

// Recipient is somebody to tell. Its Key is what a receipt is kept under; it
// holds no secret (a chat URL's key is its scheme and a hash). A chat or mail
// URL's Watcher is Channel.
type Recipient struct {
	Key     string
	Watcher string
}

// Notifier delivers. It is safe for concurrent use and honours the context.
type Notifier interface {
	// Recipients expands watchers to the recipients this configuration reaches:
	// one per watcher when a webhook is configured, one per chat or mail URL.
	Recipients(watchers []string) []Recipient
	// Send delivers one message to one recipient. An error is *Error where the
	// receiver answered.
	Send(ctx context.Context, to Recipient, m Message) error
}

// Error is an answer that was no success.
type Error struct {
	Recipient string // its key
	Status    int    // HTTP status; 0 where none is known
	Detail    string // an excerpt of the answer, cleaned and without secrets
	Transient bool   // worth another try
}

// Error says who answered what.
func (e *Error) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("notify %s: %s", e.Recipient, e.Detail)
	}
	return fmt.Sprintf("notify %s: answered %d: %s", e.Recipient, e.Status, e.Detail)
}
