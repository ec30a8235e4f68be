package pull

import (
	"encoding/json"
	"fmt"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Data is what a saga of this flow knows: fixed at its start, but for
// MergeCommit, Notified and Indexed, which steps learn.
type Data struct {
	PullID      string         `json:"pullId"`
	Forge       string         `json:"forge,omitempty"`
	Repo        string         `json:"repo"`
	IID         int64          `json:"iid"`
	Source      string         `json:"source"`
	Target      string         `json:"target"`
	HeadSHA     string         `json:"headSha"`
	URL         string         `json:"url,omitempty"`
	Title       string         `json:"title"`
	Author      forge.Identity `json:"author"`
	MergeCommit string         `json:"mergeCommit,omitempty"`
}

func dataOf(row saga.Row) (Data, error) {
	var d Data
	if err := json.Unmarshal(row.Data, &d); err != nil {
		return d, fmt.Errorf("saga %s: data: %w", row.ID, err)
	}
	return d, nil
}

// Outward projects a decision on the pull request's row: status, merge commit,
// and for the local forge the end of the merge request.
func Outward(_ saga.Row, d saga.Decision) store.Outward {
	spec, ok := Table.Spec(d.Row.State)
	if !ok {
		return store.Outward{}
	}
	data, err := dataOf(d.Row)
	if err != nil {
		return store.Outward{} // the row keeps what it shows; the saga's state says why
	}
	w := store.PullWrite{PullID: data.PullID, Status: string(spec.Status), MergeCommit: data.MergeCommit}
	w.CloseLocal, w.MergedLocal = d.Row.State == PullClosed, data.MergeCommit != ""
	if len(d.Moves) == 0 && data.MergeCommit == "" {
		return store.Outward{} // nothing outward has changed
	}
	return store.Outward{Pull: &w}
}
