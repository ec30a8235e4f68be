// Package deploy says how a merged change becomes live. Drivers: directory (a
// folder that is swapped, with a callback like a pipeline's), callback (a
// pipeline outside calls back; nothing is done here) and none (merged is live).
package deploy

import "context"

// Release is a merge that should become live.
type Release struct {
	Project     string
	Branch      string
	MRIID       int64
	OperationID string
	MergeCommit string
}

// State is what a look at the environment says.
type State string

// The states. Unknown is where the environment can't be asked.
const (
	Live    State = "live"
	Absent  State = "absent"
	Unknown State = "unknown"
)

// Refused is a release that can't be deployed until a person has cleared
// something: trying again gives the same.
type Refused struct {
	Cause string
	Hint  string // what a person can do
}

func (r *Refused) Error() string { return r.Cause + "; " + r.Hint }

// Deployer is where merges become live. Safe for concurrent use; honours the context.
type Deployer interface {
	// Look says whether the merge commit, or a descendant, is live.
	Look(ctx context.Context, r Release) (State, error)
	// Deploy makes it live where this driver does that itself, and calls back.
	// Repeating it is harmless, and an older release never replaces a newer one.
	// Where a pipeline outside does the work it does nothing. What no repeat can
	// change is a *Refused.
	Deploy(ctx context.Context, r Release) error
	// Immediate says that a merge is live, or deployed by Deploy, at once: the
	// first self-check of the waiting state is due then.
	Immediate() bool
}
