package sim

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// What a run does. SIM_SEQUENCES says how many sequences, SIM_SEED where they
// begin: the same two numbers are the same run.
const (
	defaultSequences = 2400
	defaultSeed      = 1
	shards           = 4
)

func TestMain(m *testing.M) {
	flag.Parse()
	// A failing sequence is printed whole, so no file beside it is needed.
	_ = flag.Set("rapid.nofailfile", "true")
	_ = flag.Set("rapid.shrinktime", "1ms") // shrink does better
	os.Exit(m.Run())
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n <= 0 {
		t.Fatalf("%s=%q is no positive number", name, v)
	}
	return n
}

// starting guards rapid's flags, which are the process's, until a check has read them.
var starting sync.Mutex

// check runs rapid with its own seed and number of sequences.
func check(t rapid.TB, seed, sequences int, prop func(*rapid.T)) {
	starting.Lock()
	began := sync.OnceFunc(starting.Unlock)
	defer began()
	_ = flag.Set("rapid.seed", strconv.Itoa(seed))
	_ = flag.Set("rapid.checks", strconv.Itoa(sequences))
	rapid.Check(t, func(t *rapid.T) {
		began()
		prop(t)
	})
}

// TestCoreUnderRandomInterleavings is the simulation. What it reached is
// asserted too: a simulation that takes no edge proves nothing about it.
func TestCoreUnderRandomInterleavings(t *testing.T) {
	t.Parallel()
	sequences, seed := number(t, "SIM_SEQUENCES", defaultSequences), number(t, "SIM_SEED", defaultSeed)
	gen := plans()
	var mu sync.Mutex
	taken, recorded, actions := map[string]int{}, map[string]int{}, 0
	t.Run("sequences", func(t *testing.T) {
		for i := range shards {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				check(t, seed+i*1_000_003, (sequences+shards-1)/shards, func(t *rapid.T) {
					p := gen.Draw(t, "plan")
					f, r := play(p, nil)
					if f != nil {
						_, f = shrink(p, nil)
						t.Logf("%s\n%s\nTo see it again: SIM_SEED=(the rapid.seed above) go test ./internal/sim", f.detail, f.trace)
						t.Fatalf("%s does not hold", f.invariant)
					}
					mu.Lock()
					defer mu.Unlock()
					actions += len(p.actions)
					add(taken, r.taken)
					add(recorded, r.recorded)
				})
			})
		}
	})
	if t.Failed() {
		return
	}
	if sequences >= 1000 {
		reached(t, taken, recorded)
	}
	t.Logf("%d sequences from seed %d: %d actions, %d transitions over %d edges", sequences, seed, actions, total(taken), len(taken))
	for _, k := range slices.Sorted(maps.Keys(recorded)) {
		t.Logf("%6d × %s", recorded[k], k)
	}
}

func add(to, from map[string]int) {
	for k, n := range from {
		to[k] += n
	}
}

func total(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

// reached asserts that the run was one: every edge was taken, every fault struck
// where it hurts most.
func reached(t *testing.T, taken, recorded map[string]int) {
	t.Helper()
	for _, e := range edges(t) {
		if taken[e] == 0 {
			t.Errorf("no sequence took %s", e)
		}
	}
	want := []string{"crash before: merge", "crash after: merge", "crash in the middle of: merge", "crash after: tell ann", "late result", "commit repeated",
		"two in one commit", "a bad item in a commit"}
	for _, f := range []fault{answered, lost, unknown, swallowed, flying, refused, garbage, panics} {
		want = append(want, "merge: "+f.String())
	}
	for _, name := range []string{"look at the forge", "tell ann", "write a receipt for ann", "index"} {
		for _, f := range []fault{answered, lost, unknown} {
			want = append(want, name+": "+f.String())
		}
	}
	for _, k := range want {
		if recorded[k] == 0 {
			t.Errorf("no sequence saw %q", k)
		}
	}
}
