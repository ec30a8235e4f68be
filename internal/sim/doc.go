// Package sim is the model test of the core: random interleavings of claims,
// steps, crashes, clock jumps, duplicates, operators and outside events, over
// the real store code (SQLite in memory), the real decisions of engine and
// saga, and the real table, steps and service of flow pull. Only the world
// outside is a fake, and the goroutines are: a sequence runs on one thread and
// is a function of its seed.
//
//	plan (drawn, shrinkable) ─► rig ─► store, decisions, steps ─► fake world
//	                             └─ after every action: check (I1, I2, …)
//
// A step runs as a coroutine that stops before each call to the world, so any
// other action may come between two of its calls, and a crash may come at any
// of them. After the last action the world is healed, and what is open must
// end: nothing is "processing" for ever.
//
// planted_test.go breaks the core on purpose and asserts that the checks see it.
// The package has tests only.
package sim
