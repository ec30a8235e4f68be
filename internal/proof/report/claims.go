package main

// claim is one sentence of what mergeflow promises, with what shows it.
type claim struct {
	text   string // what holds
	faults string // whatever happens
	tests  []string
}

// group is a part of the page.
type group struct {
	title  string
	claims []claim
}

// limits are what the tests showed and the product does not promise.
var limits = []string{
	"A process that is frozen while it holds a repository's file lock (its git is at work, or it opens a merge request) keeps that repository's writes waiting, " +
		"in every process, until it goes on or dies. The operations say what they wait for, and end in a failed state at their deadline if it lasts; retry goes on. In these cells the frozen process goes on beside its successor.",
	"A process that is frozen between a look and its effect still makes that one call when it wakes. Merges are safe from it by their marker; for the rest the window is from the freeze to the next heartbeat.",
	"A merge request of the local forge whose row could not be written at its merge or close is shown as open in lists until it is looked at by itself; git, the operation and the single view are right.",
	"Lost disks, a PostgreSQL that loses what it committed, and clocks that run backwards are not among the faults.",
}

// The tests are named package.Test, the package below internal/. A test fails
// when one of them is not there.
var groups = []group{
	{"Whole processes, real databases, real git", []claim{
		{
			"A merge happens once, each state is entered once, each watcher is told under one `deliveryId`, the pull request ends as MERGED; who comes late changes nothing",
			"at each fault point of flow `pull` (before and after claim, step, commit; heartbeat; before, within and after the merge; between effect and receipt) and inside git's own transaction: killed; frozen beyond the lease and continued, on PostgreSQL beside a second process that takes over; failing; the connection cut before COMMIT, and after it with the answer lost; git orphaned, git killed",
			[]string{"proof.TestEachFaultAtEachPoint"},
		},
		{
			"A change goes live once, by one branch commit, one merge request and one merge; a rejected one leaves neither branch nor open merge request",
			"the same faults at each fault point of flow `change`",
			[]string{"proof.TestEachFaultAtEachPointOfAChange"},
		},
		{
			"A callback is applied once, and never received and forgotten",
			"killed before anything is written, and before the answer; the sender repeats",
			[]string{"proof.TestKilledWhileItTakesACallback"},
		},
		{
			"Nothing lost, nothing doubled, nothing stuck",
			"three processes under load, one killed, one frozen beyond its lease and continued",
			[]string{"proof.TestThreeProcessesOneKilledOneFrozen"},
		},
		{
			"Nothing lost, nothing doubled, nothing stuck",
			"PostgreSQL ended twice under load (immediate shutdown) and started again on its data",
			[]string{"proof.TestPostgresCrashesUnderLoad"},
		},
		{
			"Nothing lost, nothing doubled, nothing stuck",
			"each of three processes replaced, one by one, under load",
			[]string{"proof.TestRollingRestartUnderLoad"},
		},
		{
			"An older build leaves commands that it does not know alone and counts them as parked; the newer one performs them",
			"both on one database",
			[]string{"proof.TestOlderBuildBesideTheNewOne"},
		},
		{
			"Many at once: each merged or live once, no state entered twice",
			"two processes on one PostgreSQL, one branch",
			[]string{"proof.TestTenMergesIntoOneBranchFromTwoProcesses", "proof.TestManyChangesFromTwoProcesses"},
		},
		{
			"No fault point, and no name of one, is in the product; none is forgotten in the tests",
			"",
			[]string{"proof.TestProductHasNoFaultPoints", "proof.TestEachPlaceIsProven", "fault.TestEachPlaceIsInTheSource", "fault.TestBuildForTests"},
		},
	}},
	{"The core", []claim{
		{
			"The invariants of the architecture hold after each step, with the table as the model",
			"random interleavings of events, repeats, crashes, clock jumps, outages and people (`make sim` for more)",
			[]string{"sim.TestCoreUnderRandomInterleavings"},
		},
		{
			"The model test finds faults",
			"faults planted on purpose",
			[]string{"sim.TestPlantedFaultsAreFound"},
		},
		{
			"Every state answers every event as the table says, and explains itself",
			"each pair of state and event",
			[]string{"saga.TestMatrixPairByPair", "saga.TestEveryStateExplainsItself", "saga.TestProductTablesHold"},
		},
		{
			"Late results are notes; hanging, panicking and displaced steps end visibly",
			"two engines, many workers, a database that is down",
			[]string{"engine.TestEachStepRunsOnceWithManyWorkersAndTwoEngines", "engine.TestALateResultIsANote", "engine.TestAHangingStepFailsWithinItsDeadline",
				"engine.TestAPanicIsAVisibleFailureAndStopsNobody", "engine.TestADisplacedStepIsCancelled", "engine.TestAnOutcomeSurvivesADatabaseThatIsDown"},
		},
	}},
	{"Databases and git", []claim{
		{
			"Both databases behave alike",
			"one suite",
			[]string{"store/postgres.TestConformance", "store/sqlite.TestConformanceFile", "store/sqlite.TestConformanceMemory"},
		},
		{
			"A COMMIT whose answer is lost is settled by a look before anything is repeated",
			"connections cut at each place",
			[]string{"store/postgres.TestCommitWhoseAnswerIsLostCounts", "store/postgres.TestCommitThatNeverArrivedIsRepeated", "store/postgres.TestCommitStillUnderWayIsWaitedFor",
				"store/postgres.TestOutcomeThatCannotBeReadIsUnknown"},
		},
		{
			"A forge's write that failed was made or was not, and a look tells",
			"each write: failed and not applied, failed and applied; races; processes killed and frozen in a merge",
			[]string{"forge/localgit.TestForge", "forge/localgit.TestCloseMeetsMerge", "forge/localgit.TestKilledInAMerge", "forge/localgit.TestFrozenInAMerge",
				"forge/localgit.TestTwoProcessesMergeIntoOneBranch"},
		},
		{
			"A killed git leaves no lock in the way, an orphaned one is waited for, a foreign lock stays",
			"",
			[]string{"git.TestKilledWriterLeavesNoLock", "git.TestOrphanedGit", "git.TestForeignLockStays"},
		},
	}},
}
