// Package forge says what the flows ask of a Git forge: the place where
// repositories and merge requests live. The flows know this package and never
// a driver; a driver (localgit, gitlab) knows this package and never a flow.
//
// Every write takes a precondition (the head it is about), so that a repeated
// or late call can't hit something else, and every write can be settled by a
// read: after an unclear answer the caller reads MergeRequest and decides from
// the state, never from the status code.
package forge

import (
	"context"
	"time"
)

// Ref names a merge request: the project (a repository's name, may hold "/")
// and the number that the forge counts per project.
type Ref struct {
	Project string
	IID     int64
}

// State is the forge's own word on a merge request.
type State string

// The states a merge request can be in. Locked is "a merge is under way":
// nothing may be concluded from it but "look again".
const (
	Open   State = "open"
	Locked State = "locked"
	Merged State = "merged"
	Closed State = "closed"
)

// MergeRequest is one look at a merge request.
type MergeRequest struct {
	Ref         Ref
	ID          string // the driver's own stable id; on localgit the pull request's uuid
	Title       string
	Description string
	Source      string // branch names without refs/heads/
	Target      string
	State       State
	HeadSHA     string // tip of the source branch; empty when the branch is gone
	TargetSHA   string // tip of the target branch; empty when there is none
	MergeCommit string // what landed on the target; empty while not merged
	MergedHead  string // the head that was merged, where the forge says so
	URL         string
}

// Mergeability is what a dry run of the merge says about a head.
type Mergeability struct {
	Conflicts     []string // paths in conflict; empty when it merges cleanly
	NothingToDo   bool     // the target already holds everything the head has
	Behind        bool     // the head does not contain the target's tip
	MustBeCurrent bool     // the repository refuses to merge a head that is behind
}

// CheckState is the sum of the required checks for one head.
type CheckState string

// A missing check is Pending, never Passed: "no pipeline" is not "green".
const (
	ChecksPassed  CheckState = "passed"
	ChecksPending CheckState = "pending"
	ChecksFailed  CheckState = "failed"
)

// Checks is one look at the checks of one commit.
type Checks struct {
	State  CheckState
	Checks []Check // the required ones first, in the order they are required
}

// Check is one check of one commit.
type Check struct {
	Context     string `json:"context"`
	State       string `json:"state"` // pending, success, failure, error, missing
	Required    bool   `json:"required"`
	Description string `json:"description,omitempty"`
	TargetURL   string `json:"targetUrl,omitempty"`
}

// MergeInput asks for one merge. The merge commit must depend on nothing but
// this value and its parent, so that repeating the call after a crash makes
// the same commit.
type MergeInput struct {
	Ref         Ref
	HeadSHA     string // merge this head or nothing
	OperationID string // goes into the commit as a trailer
	Title       string
	Body        string
	Author      Identity
	When        time.Time // author and committer date; whole seconds
}

// Identity is a person or account in a commit.
type Identity struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// Capabilities says what a driver can do, so that a flow never probes by error.
type Capabilities struct {
	// MergeLocks is true where a merge request can stay Locked while the forge
	// merges in the background; the merging state then has more patience.
	MergeLocks bool
	// ClosesWithSaga is true where closing the saga's row closes the merge
	// request too, in the same transaction (localgit).
	ClosesWithSaga bool
}

// Forge is what the flows ask. Every method honours its context, is safe for
// concurrent use, and answers errors of type *Error.
type Forge interface {
	Capabilities() Capabilities

	// MergeRequest looks. It is also what settles an unclear Merge.
	MergeRequest(ctx context.Context, ref Ref) (MergeRequest, error)

	// Mergeability dry-runs the merge of head into the target's tip.
	Mergeability(ctx context.Context, ref Ref, head string) (Mergeability, error)

	// Checks reads the checks of exactly this commit.
	Checks(ctx context.Context, project, sha string) (Checks, error)

	// Merge merges exactly in.HeadSHA, once. When the merge request is merged
	// already, it answers that merge's commit and no error. Otherwise:
	// KindHeadMoved, KindConflict, KindBehind, KindClosed, KindNothingToMerge
	// are facts (nothing was done); KindUnclear means that it may have
	// happened; KindTransient that it surely has not.
	Merge(ctx context.Context, in MergeInput) (commit string, err error)
}
