//go:build fault

package fault

import "strings"

// names are what tests say. A name with a star is completed by PointOf.
var names = [...]string{
	Claim:        "engine.claim",
	ClaimDone:    "engine.leased",
	StepBefore:   "engine.claimed.*",
	StepDone:     "engine.performed.*",
	CommitBefore: "engine.committing.*",
	CommitDone:   "engine.committed.*",
	Heartbeat:    "engine.heartbeat",

	MergeBefore: "merge.before",
	MergeMarked: "merge.marked",
	MergeDone:   "merge.swapped",
	NotifyDone:  "notify.sent",
	IndexDone:   "index.sent",

	OpenBefore:    "open.before",
	OpenDone:      "open.after",
	CloseBefore:   "close.before",
	CloseDone:     "close.after",
	ApproveBefore: "approve.before",
	ApproveDone:   "approve.after",
	BranchBefore:  "branch.before",
	BranchDone:    "branch.after",
	DeleteBefore:  "delete.before",
	DeleteDone:    "delete.after",

	CallbackBefore: "callback.received.*",
	CallbackDone:   "callback.applied.*",
}

// Names lists the names of all places. A name that ends in a star stands for
// one for each command or kind of callback.
func Names() []string { return append([]string(nil), names[1:]...) }

// String is the place's name.
func (p Place) String() string { return names[p] }

func (p Place) of(what string) string { return strings.TrimSuffix(names[p], "*") + what }
