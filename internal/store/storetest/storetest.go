// Package storetest is the conformance suite of the store: one set of cases
// that every driver runs, so that they can't drift apart. The cases use a small
// flow of their own (flow.go) and real decisions (saga.Decide, saga.Start), and
// look at a database through store.Store alone; only the faults that an audit
// must find are planted behind its back.
//
// A driver's test calls Run with a Harness that opens fresh databases. What one
// driver can't have (a second transaction, a connection that breaks) is an
// optional member of Env; the cases that need it are not part of the suite of a
// driver that declares it impossible, instead of being skipped.
package storetest

import (
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/store"
)

// Harness is what a driver brings along.
type Harness struct {
	// Open makes a fresh, migrated, empty database and cleans it up with t.
	// It is called from parallel tests.
	Open func(t testing.TB) Env

	// SecondHandle: Env.Reopen is set.
	SecondHandle bool
	// RowLocks: Env.Hold is set.
	RowLocks bool
	// BreaksCommit: Env.LoseCommit is set.
	BreaksCommit bool
}

// Env is one database.
type Env struct {
	Store store.Store
	// Advance moves the database's clock forward, for every handle on it.
	Advance func(time.Duration)
	// Reopen opens a second, independent handle on the same database, as
	// another process would. It is closed with the test.
	Reopen func() store.Store
	// Exec runs a statement beside Store, as somebody with a database client
	// would, and fails the test when it is refused. The suite's statements are
	// the same for every driver.
	Exec func(sql string)
	// Hold locks a saga's row in a transaction of its own until release is
	// called (once).
	Hold func(sagaID string) (release func())
	// LoseCommit lets the next COMMIT of Store take effect, but cuts the
	// connection before its answer.
	LoseCommit func()
}

// Run runs the whole suite, each case on its own database and in parallel.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range cases {
		if (c.second && !h.SecondHandle) || (c.locks && !h.RowLocks) || (c.breaks && !h.BreaksCommit) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newBench(t, h.Open(t)))
		})
	}
}

type testCase struct {
	name                  string
	run                   func(*bench)
	second, locks, breaks bool
}

var cases = []testCase{
	// apply.go
	{name: "Transition writes state, status, history and next command", run: transitionIsWhole},
	{name: "Refused value leaves nothing of its transition", run: refusedValueLeavesNothing},
	{name: "Broken constraint leaves nothing of its transition", run: brokenConstraintLeavesNothing},
	{name: "Illegal and repeated events write nothing", run: refusedEventsWriteNothing},
	{name: "Exactly one command while running or waiting", run: oneCommandWhileOpen},
	{name: "Passing state leaves two history rows", run: passingStateLeavesTwoRows},
	{name: "Many sagas in one commit, each answered alone", run: manySagasInOneCommit},
	{name: "One bad saga among fifty", run: oneBadAmongFifty},
	{name: "Unknown saga and unknown id", run: unknownSagas},
	{name: "One saga twice in a batch", run: sagaTwiceInABatch},
	{name: "Requeue touches only the command", run: requeueTouchesOnlyTheCommand},
	{name: "Panicking decision writes nothing", run: panicWritesNothing},
	{name: "Pull request follows its own saga only", run: outwardFollowsOwnSagaOnly},
	{name: "Merge commit only grows", run: mergeCommitOnlyGrows},
	{name: "Cancelled context writes nothing", run: cancelledContextWritesNothing},
	{name: "Locked saga answers busy and stalls nobody", run: lockedSagaIsBusy, locks: true},
	{name: "Waiting for a locked saga", run: waitsForLockedSaga, locks: true},
	{name: "Claim passes a locked saga by", run: claimPassesLockedSaga, locks: true},
	{name: "Lost answer of a commit", run: lostCommitIsSettled, breaks: true},
	{name: "Lost answer of a start", run: lostStartIsSettled, breaks: true},

	// lease.go
	{name: "Lost lease changes no state", run: lostLeaseChangesNoState},
	{name: "Keep leases the next command", run: keepLeasesTheNextCommand},
	{name: "Keep ignores what is not due", run: keepIgnoresWhatIsNotDue},
	{name: "Release gives the attempt back", run: releaseGivesTheAttemptBack},
	{name: "Release keeps what earlier claims did", run: releaseKeepsEarlierAttempts},
	{name: "Heartbeat extends, reports lost and interrupted", run: heartbeats},
	{name: "Successor waits for the displaced worker", run: successorWaits},
	{name: "Displaced worker lets its successor begin", run: displacedWorkerAcknowledges},
	{name: "Close waits for the running step", run: closeWaitsForTheStep},
	{name: "Second handle sees leases", run: secondHandleSeesLeases, second: true},
	{name: "Wake reaches another handle", run: wakeReachesAnotherHandle, second: true},

	// claim.go
	{name: "Claim counts the attempt and starts the deadline", run: claimCounts},
	{name: "Claim is oldest first and capped by kind", run: claimCaps},
	{name: "Claim shares its maximum among kinds", run: claimIsFair},
	{name: "Concurrent claims take each command once", run: concurrentClaims},
	{name: "Command is due again after its lease", run: expiredLeaseIsClaimedAgain},
	{name: "Deadline of a running state", run: runningDeadline},
	{name: "Deadline and self-check of a waiting state", run: waitingDeadline},
	{name: "Limit in the queue", run: queueLimit},
	{name: "Overdue only", run: overdueOnly},
	{name: "Unknown kinds are parked", run: unknownKindsAreParked},
	{name: "Next due", run: nextDue},

	// read.go
	{name: "Saga reads back as written", run: sagaReadsBack},
	{name: "List, filters and cursor", run: listSagas},
	{name: "History in order with notes", run: historyInOrder},
	{name: "Stats and backlog", run: statsAndBacklog},
	{name: "Ping, schema and clock", run: pingSchemaClock},

	// pulls.go
	{name: "Pull requests are numbered within their repository", run: pullsAreNumbered},
	{name: "Pull request list", run: listPulls},
	{name: "Pull requests of two branches", run: pullsBySource},
	{name: "Forge state only moves forward", run: forgeStateMovesForward},
	{name: "Start race has one winner", run: startRace},
	{name: "Start supersedes", run: startSupersedes},
	{name: "Refused start writes nothing", run: refusedStartWritesNothing},
	{name: "Watchers and receipts", run: watchersAndReceipts},
	{name: "Repositories", run: repositories},
	{name: "Commit statuses", run: commitStatuses},

	// changes.go
	{name: "Door writes all that a change begins with", run: doorIsWhole},
	{name: "Race at the door has one winner", run: doorRace},
	{name: "Idempotency key answers like the first", run: keyAnswersLikeTheFirst},
	{name: "Race for one idempotency key", run: keyRace},
	{name: "Refused change writes nothing", run: refusedChangeWritesNothing},
	{name: "Door waits for a locked saga", run: doorWaits, locks: true},
	{name: "Lost answer of a change's start", run: lostChangeIsSettled, breaks: true},

	// bindings.go
	{name: "Applying again resets the binding in place", run: bindingIsResetInPlace},
	{name: "Race to apply again ends the old saga once", run: applyAgainRace},
	{name: "Batch of pull requests and bindings", run: mixedBatch},
	{name: "Many changes at once", run: manyChanges},
	{name: "Merge request and merge commit find the newest operation", run: operationIsFound},
	{name: "Approvals of a merge request", run: approvalsOfHeads},

	// callbacks.go
	{name: "Callback moves its saga and is in the ledger", run: callbackIsWhole},
	{name: "Fifty identical callbacks", run: identicalCallbacks},
	{name: "Different callbacks race for one move", run: callbackRace},
	{name: "Early event is kept and applied on entry", run: earlyEventIsKept},
	{name: "Refused callback writes nothing", run: refusedCallbackWritesNothing},
	{name: "Callback of no operation", run: callbackOfNothing},
	{name: "Callback of an operation that was replaced", run: callbackOfFormerOwner},
	{name: "What went live since", run: liveSince},
	{name: "Ledger is read in pages", run: ledgerPages},
	{name: "Callback waits for a locked saga, then is busy", run: callbackWaits, locks: true},
	{name: "Lost answer of a callback", run: lostCallbackIsSettled, breaks: true},

	// audit.go
	{name: "Audit finds nothing in sound data", run: auditOfSoundData},
	{name: "Audit finds each planted fault", run: auditFindsFaults},
	{name: "Audit leaves what it doesn't know alone", run: auditOfUnknownFlows},
	{name: "Audit beside a working engine", run: auditOfLiveDatabase},

	// chaos.go
	{name: "Random concurrent work loses nothing", run: randomWork},
}
