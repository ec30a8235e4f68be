package bench

import (
	"fmt"
	"testing"
	"time"
)

// throughput is an instance whose workers are as many as a group commit holds:
// the database is what limits it.
var throughput = options{Workers: 200}

// series is what the rounds of one variant gave.
type series struct {
	rates  []float64
	claims []time.Duration
	cpu    []time.Duration
}

func (s *series) add(m measured) {
	s.rates = append(s.rates, m.rate)
	s.claims = append(s.claims, m.claims...)
	s.cpu = append(s.cpu, m.cpu)
}

// relative is the middle of the rounds' ratios: each round measures all
// variants one right after the other, so that what else the machine does
// concerns them alike.
func (s *series) relative(to *series) float64 {
	var r []float64
	for i := range min(len(s.rates), len(to.rates)) {
		r = append(r, s.rates[i]/to.rates[i])
	}
	return median(r)
}

// growth compares a database that is empty at first with ones that hold
// finished and waiting sagas.
func growth(b *testing.B, open []*database) {
	const title = "Growth: what is stored"
	d := open[0].driver
	names := []string{"empty", thousands(sized(100_000)) + " finished", thousands(sized(1_000_000)) + " finished", thousands(sized(100_000)) + " waiting"}
	open[1].load(finishedPull(b), sized(100_000))
	open[2].load(finishedPull(b), sized(1_000_000))
	open[3].load(waitingChange(b), sized(100_000))
	ready, n := readyPull(b), perRound()
	var ps []*process
	for _, db := range open {
		ps = append(ps, start(b, db, throughput))
		work(db, ready, n, ps[len(ps)-1]) // warm up
	}
	got := make([]series, len(open))
	for round := range rounds() {
		for i := range open {
			v := (i + round) % len(open) // each comes first in turn
			got[v].add(work(open[v], ready, n, ps[v]))
		}
	}
	for i := 1; i < len(open); i++ {
		measurements.add(title, d, names[i]+": throughput, empty = 1", got[i].relative(&got[0]), times, atLeast(0.90))
	}
	for i := 1; i < len(open); i++ {
		measurements.add(title, d, names[i]+": processor time a transition, empty = 1", float64(median(got[i].cpu))/float64(median(got[0].cpu)), times, bound{})
	}
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", 0.50}, {"p99", 0.99}} {
		base := quantile(got[0].claims, q.at)
		for i := 1; i < len(open); i++ {
			measurements.add(title, d, names[i]+": claim latency "+q.name+", empty = 1", float64(quantile(got[i].claims, q.at))/float64(base), times, bound{})
		}
	}
	var spread []float64
	for _, r := range got[0].rates {
		spread = append(spread, r/median(got[0].rates))
	}
	measurements.add(title, d, "spread of the empty database's own rounds, lowest quarter", quantile(spread, 0.25), times, bound{})
	b.ReportMetric(median(got[0].rates), "transitions/s")
	b.ReportMetric(float64(quantile(got[0].claims, 0.5).Microseconds()), "claim-p50-µs")
	b.ReportMetric(float64(quantile(got[0].claims, 0.99).Microseconds()), "claim-p99-µs")
	for i := range ps {
		ps[i].stop()
	}
}

// processes compares instances beside one another on one database.
func processes(b *testing.B, d *database) {
	const title = "Several processes on one database"
	ready, n := readyPull(b), perRound()
	sizes := []int{1, 2, 4}
	got := map[int]*series{1: {}, 2: {}, 4: {}}
	for range max(2, rounds()/3) {
		for _, size := range sizes {
			var ps []*process
			for range size {
				ps = append(ps, start(b, d, throughput))
			}
			work(d, ready, n/2, ps...) // warm up
			got[size].add(work(d, ready, n, ps...))
			got[size].add(work(d, ready, n, ps...))
			for _, p := range ps {
				p.stop()
			}
		}
	}
	for _, size := range sizes[1:] {
		measurements.add(title, d.driver, fmt.Sprintf("%d processes: throughput, one = 1", size), got[size].relative(got[1]), times, bound{})
		measurements.add(title, d.driver, fmt.Sprintf("%d processes: claim latency p50, one = 1", size),
			float64(median(got[size].claims))/float64(median(got[1].claims)), times, bound{})
		measurements.add(title, d.driver, fmt.Sprintf("%d processes: claim latency p99, one = 1", size),
			float64(quantile(got[size].claims, 0.99))/float64(quantile(got[1].claims, 0.99)), times, bound{})
	}
	if n := d.number("SELECT count(*) FROM saga_history") - (steps+1)*d.number("SELECT count(*) FROM saga_instances"); n != 0 {
		b.Errorf("%v transitions too many or too few: something was done twice or lost", n)
	}
}

// snapshot compares throughput before, under and after a transaction that keeps
// an old snapshot open.
func snapshot(b *testing.B, d *database) {
	const title = "Under a snapshot that is held open"
	ready, n := readyPull(b), perRound()
	p := start(b, d, throughput)
	defer p.stop()
	var before, early, late, after series
	work(d, ready, n, p) // warm up
	for range max(3, rounds()/3) {
		before.add(work(d, ready, n, p))
	}
	release := d.hold()
	began, transitions := time.Now(), 0
	var under []measured
	for time.Since(began) < lasting(2*time.Minute) {
		under = append(under, work(d, ready, n, p))
		transitions += n * steps
	}
	held := time.Since(began)
	quarter := max(1, len(under)/4)
	for _, m := range under[:quarter] {
		early.add(m)
	}
	for _, m := range under[len(under)-quarter:] {
		late.add(m)
	}
	release()
	d.settle()
	for range max(3, rounds()/3) {
		after.add(work(d, ready, n, p))
	}
	name := fmt.Sprintf("held for %s and %s transitions", held.Round(time.Second), thousands(transitions))
	base, claims := median(before.rates), float64(median(before.claims))
	measurements.add(title, d.driver, name+": throughput in its first quarter, before = 1", median(early.rates)/base, times, bound{})
	measurements.add(title, d.driver, name+": throughput in its last quarter, before = 1", median(late.rates)/base, times, bound{})
	measurements.add(title, d.driver, name+": claim latency p50 in its last quarter, before = 1", float64(median(late.claims))/claims, times, bound{})
	measurements.add(title, d.driver, name+": claim latency p99 in its last quarter, before = 1",
		float64(quantile(late.claims, 0.99))/float64(quantile(before.claims, 0.99)), times, bound{})
	measurements.add(title, d.driver, "released: throughput, before = 1", median(after.rates)/base, times, bound{})
}

// memory runs for a while and compares what the process holds early and late.
func memory(b *testing.B, d *database) {
	const title = "Memory and what is left behind"
	ready, n := readyPull(b), perRound()
	p := start(b, d, throughput)
	began := time.Now()
	work(d, ready, n, p) // warm up
	first := p.ask("report")
	var heap, rss []float64
	transitions := 0
	for time.Since(began) < lasting(2*time.Minute) || len(heap) < 8 {
		work(d, ready, n, p)
		r := p.ask("report")
		heap, rss, transitions = append(heap, float64(r.Heap)), append(rss, float64(r.RSS)), transitions+n*steps
	}
	quarter := len(heap) / 4
	name := fmt.Sprintf("last quarter of %s transitions, second = 1", thousands(transitions))
	measurements.add(title, d.driver, "heap in use: "+name, median(heap[3*quarter:])/median(heap[quarter:2*quarter]), times, atMost(1.10))
	measurements.add(title, d.driver, "resident memory: "+name, median(rss[3*quarter:])/median(rss[quarter:2*quarter]), times, atMost(1.10))
	last := idle(p)
	measurements.add(title, d.driver, "goroutines more than after the first round", float64(max(0, last.Goroutines-first.Goroutines)), whole, atMost(0))
	left := p.stop()
	measurements.add(title, d.driver, "goroutines left after Stop", float64(max(0, left.Goroutines)), whole, atMost(0))
	measurements.add(title, d.driver, "file descriptors left after Close", float64(max(0, left.Files)), whole, atMost(0))
}

// idle is the report of an instance that has come to rest: the fewest
// goroutines that are seen within two seconds.
func idle(p *process) report {
	best := p.ask("report")
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if r := p.ask("report"); r.Goroutines < best.Goroutines {
			best = r
		}
	}
	return best
}
