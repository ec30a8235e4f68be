package fault

// Place is a place where tests make a process die, freeze, hang or fail. The
// product knows a place as a number; its name is in binaries built for tests.
type Place uint8

// The places, in the order in which a merge passes them. What is named with a
// command or a kind of callback (PointOf) has one name for each.
const (
	Claim        Place = iota + 1 // no due command is leased yet
	ClaimDone                     // some are leased, nobody works on them yet
	StepBefore                    // of a command
	StepDone                      // of a command: its effect is there, no outcome is written
	CommitBefore                  // of a command's outcome: no transaction is open yet
	CommitDone                    // of a command's outcome: it is committed, nobody knows
	Heartbeat                     // leases are about to be extended

	MergeBefore // nothing is written in git yet
	MergeMarked // the marker is set, the branch has not moved
	MergeDone   // the branch has moved, the database does not know
	NotifyDone  // a watcher was told, no receipt is written
	IndexDone   // the index has the commit, nobody knows

	OpenBefore // of a merge request
	OpenDone
	CloseBefore
	CloseDone // closed in git, the database does not know
	ApproveBefore
	ApproveDone
	BranchBefore // a branch with its commit
	BranchDone
	DeleteBefore // of a branch
	DeleteDone

	CallbackBefore // of a kind of callback: nothing is written
	CallbackDone   // of a kind of callback: all is written, nobody is told
)
