package bench

import (
	"strings"
	"testing"
	"time"
)

func TestResultsNameWhatIsMissed(t *testing.T) {
	t.Parallel()
	var r results
	r.add("A", "postgres", "kept", 0.95, times, atLeast(0.9))
	r.add("A", "postgres", "broken", 0.85, times, atLeast(0.9))
	r.add("B", "sqlite", "left over", 0, whole, atMost(0))
	r.add("B", "sqlite", "too many", 1, whole, atMost(0))
	r.add("A", "sqlite", "told only", 7, count, bound{})
	r.explain("A", "because")
	missed := r.missed()
	if len(missed) != 2 || !strings.Contains(missed[0], "broken") || !strings.Contains(missed[1], "too many") {
		t.Errorf("%q", missed)
	}
	page := r.markdown()
	for _, want := range []string{
		"**missed**", "- A, postgres, broken: 0.85 ×, promised is at least 0.90 ×\n", "### A\n", "### B\n",
		"| postgres | kept | 0.95 × | at least 0.90 × | met |\n", "| sqlite | told only | 7.00 |  |  |\n\nbecause\n",
		"| sqlite | left over | 0 | at most 0 | met |\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

func TestFillKeepsWhatPeopleWrote(t *testing.T) {
	t.Parallel()
	page, err := fill("before\n"+pageBegin+"\nold\n"+pageEnd+"\nafter\n", "new\n")
	if err != nil || page != "before\n"+pageBegin+"\n\nnew\n\n"+pageEnd+"\nafter\n" {
		t.Errorf("%q, %v", page, err)
	}
	for _, broken := range []string{"", pageBegin, pageEnd} {
		if _, err := fill(broken, "new"); err == nil {
			t.Errorf("%q was filled", broken)
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	v := []time.Duration{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, 0.2: 1, 0.25: 2, 0.5: 3, 0.99: 5, 1: 5} {
		if got := quantile(v, q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if median([]float64(nil)) != 0 {
		t.Error("nothing has a median")
	}
}

func TestRelativeComparesWithinARound(t *testing.T) {
	t.Parallel()
	// The second round is slow for both: the machine, not the variant.
	a, b := series{rates: []float64{90, 45, 180}}, series{rates: []float64{100, 50, 200}}
	if got := a.relative(&b); got != 0.9 {
		t.Errorf("%v, want 0.9", got)
	}
}
