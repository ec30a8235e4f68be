// Package search says what the flows and the API ask of a code index over what
// was merged. Drivers: embedded (an SQLite trigram index in its own file) and
// http (an index elsewhere, asked by the protocol in docs/api.md).
package search

import (
	"context"
	"fmt"
)

// Target is one commit of one branch of one repository that the index should cover.
type Target struct {
	Repo        string
	Branch      string
	Commit      string
	OperationID string
}

// Query asks for lines that contain Text (case-insensitive) in what was merged.
type Query struct {
	Repo  string // empty: all repositories
	Text  string
	Limit int // at most this many hits; 0 means 100
}

// Hit is one line.
type Hit struct {
	Repo   string `json:"repo"`
	Commit string `json:"commit"`
	Path   string `json:"path"`
	Line   int    `json:"line"` // from 1
	Text   string `json:"text"`
}

// Index is a code index. Every method honours its context and is safe for
// concurrent use. Errors are *Error where the index answered, anything else
// where it could not be reached.
type Index interface {
	// Covers says whether the branch's index holds this commit or a descendant
	// of it. A driver that can't ask answers false.
	Covers(ctx context.Context, t Target) (bool, error)
	// Index makes the commit searchable. Running it again is harmless, and so
	// is running it for a commit older than the one that is covered: an index
	// never goes back.
	Index(ctx context.Context, t Target) error
	// Search answers the newest state of each repository, ordered by repo, path, line.
	Search(ctx context.Context, q Query) ([]Hit, error)
}

// Error is an answer that was no success.
type Error struct {
	Op        string
	Status    int    // HTTP status, 0 when the index is no HTTP service
	Detail    string // an excerpt of the body, cleaned
	Transient bool   // worth another try
}

// Error says the operation, the status and the detail.
func (e *Error) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("%s: answered %d: %s", e.Op, e.Status, e.Detail)
	}
	return fmt.Sprintf("%s: %s", e.Op, e.Detail)
}
