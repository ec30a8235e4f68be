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

// Deployer is where merges become live. Safe for concurrent use; honours the context.
type Deployer interface {
	// Look says whether the merge commit, or a descendant, is live.
	Look(ctx context.Context, r Release) (State, error)
	// Deploy makes it live where this driver does that itself, and calls back.
	// Repeating it is harmless, and an older release never replaces a newer one.
	// Where a pipeline outside does the work it does nothing.
	Deploy(ctx context.Context, r Release) error
	// Immediate says that a merge is live, or deployed by Deploy, at once: the
	// first self-check of the waiting state is due then.
	Immediate() bool
}
