package change

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Data is what a saga of this flow knows. The first block is fixed at submit;
// the rest is learnt by steps and callbacks.
type Data struct {
	Forge       string         `json:"forge"`
	Base        string         `json:"base"`
	Description string         `json:"description,omitempty"`
	Labels      []string       `json:"labels,omitempty"`
	Ext         map[string]any `json:"ext,omitempty"`
	Author      forge.Identity `json:"author"`
	SubmittedBy string         `json:"submittedBy,omitempty"`
	BaseSHA     string         `json:"baseSha"` // the base branch's tip at submit

	// Approval. Asked is the content the last round asked for.
	Round          int    `json:"round,omitempty"`
	Asked          string `json:"asked,omitempty"`
	InputsApproved bool   `json:"inputsApproved,omitempty"`
	ApprovedDigest string `json:"approvedDigest,omitempty"`
	Votes          []Vote `json:"votes,omitempty"`
	DecidedBy      string `json:"decidedBy,omitempty"`
	Reason         string `json:"reason,omitempty"`

	// Branch and merge request: one head from creation to merge.
	Branch     string `json:"branch,omitempty"`
	HeadSHA    string `json:"headSha,omitempty"`
	Digest     string `json:"digest,omitempty"`
	MRIID      int64  `json:"mrIid,omitempty"`
	URL        string `json:"url,omitempty"`
	Unapproved int    `json:"unapproved,omitempty"` // how often our own approval was found gone
	CloseAs    string `json:"closeAs,omitempty"`

	MergeCommit string `json:"mergeCommit,omitempty"`
	LiveBy      string `json:"liveBy,omitempty"` // callback, environment, inferred, none
}

// Vote is one approver's word in a round of the built-in approvals.
type Vote struct {
	By     string    `json:"by"`
	Round  int       `json:"round"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"`
}

func dataOf(row saga.Row) (Data, error) {
	var d Data
	if err := json.Unmarshal(row.Data, &d); err != nil {
		return d, fmt.Errorf("saga %s: data: %w", row.ID, err)
	}
	return d, nil
}

// contentInputs is the content of a round that was asked before there was a
// merge request: the submitted files themselves.
const contentInputs = "inputs"

// content names what people are asked to approve now.
func (d Data) content() string {
	if d.Digest != "" {
		return d.Digest
	}
	return contentInputs
}

func (d Data) approved() bool { return d.Digest != "" && d.Digest == d.ApprovedDigest }

// round is the approval round that is current: the last one asked, or the next
// where there is content that it did not ask for and that nobody has approved.
// It is a pure function of the data, so that a callback that overtakes our own
// write of "sent" is matched all the same.
func (d Data) round() int {
	switch {
	case d.Round == 0:
		return 1
	case d.Digest != "" && !d.approved() && d.Asked != d.Digest:
		return d.Round + 1
	}
	return d.Round
}

// ApprovalID is the id of an operation's approval round, the same on every try.
func ApprovalID(operationID string, round int) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, fmt.Appendf(nil, "mergeflow:approval:%s:%d", operationID, round)).String()
}

// Outward projects a decision on the binding.
func Outward(_ saga.Row, d saga.Decision) store.Outward {
	spec, ok := Table.Spec(d.Row.State)
	if !ok || len(d.Moves) == 0 {
		return store.Outward{}
	}
	return store.Outward{Binding: &store.BindingWrite{Status: string(spec.Status)}}
}
