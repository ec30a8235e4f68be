package proof

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// load is many merges, asked of whichever process answers, as behind a load
// balancer: a call that fails is made again, elsewhere.
type load struct {
	t     *testing.T
	c     *cluster.Cluster
	pulls []httpapi.Pull

	mu     sync.Mutex
	ps     []*cluster.Process // those that are asked
	ops    map[string]string  // operation by pull request
	merged map[string]bool    // operations
	more   chan struct{}      // closed when another one is merged
	all    sync.WaitGroup
}

// newLoad makes repositories with merges pull requests each.
func newLoad(t *testing.T, c *cluster.Cluster, processes, repositories, merges int) *load {
	t.Helper()
	l := &load{t: t, c: c, ops: map[string]string{}, merged: map[string]bool{}, more: make(chan struct{})}
	for range processes {
		l.ps = append(l.ps, c.Start(""))
	}
	for r := range repositories {
		name := fmt.Sprintf("app-%d", r)
		l.ps[0].Repository(name, merges)
		for i := 1; i <= merges; i++ {
			l.pulls = append(l.pulls, l.ps[0].Pull(name, i, pullWatchers...))
		}
	}
	return l
}

// start asks for all merges, a few at a time, and follows each to its end.
func (l *load) start() {
	const clients = 8
	next := make(chan int)
	go func() {
		defer close(next)
		for i := range l.pulls {
			next <- i
		}
	}()
	for range clients {
		l.all.Go(func() {
			for i := range next {
				l.merge(i)
			}
		})
	}
}

func (l *load) merge(i int) {
	pr := l.pulls[i]
	end := time.Now().Add(limit)
	op := ""
	for n := i; time.Now().Before(end); n++ {
		p := l.process(n)
		ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Second)
		switch {
		case op == "":
			if a, err := p.Client.MergePull(ctx, pr.ID, ""); err == nil {
				op = a.OperationID
			} else if now, err := p.Client.Pull(ctx, pr.ID); err == nil {
				op = now.OperationID // where only the answer was lost
			}
		default:
			if o, err := p.Client.Operation(ctx, op); err == nil && o.State == string(pull.Merged) {
				cancel()
				l.done(pr.ID, op)
				return
			}
		}
		cancel()
		<-time.After(10 * time.Millisecond)
	}
	l.t.Errorf("%s!%d is not merged within %s (operation %q)", pr.Repo, pr.IID, limit, op)
}

func (l *load) process(n int) *cluster.Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ps[n%len(l.ps)]
}

func (l *load) done(pullID, op string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops[pullID], l.merged[op] = op, true
	close(l.more)
	l.more = make(chan struct{})
}

// await waits until n are merged.
func (l *load) await(n int) {
	l.t.Helper()
	end := time.After(limit)
	for {
		l.mu.Lock()
		now, more := len(l.merged), l.more
		l.mu.Unlock()
		if now >= n {
			return
		}
		select {
		case <-more:
		case <-end:
			l.t.Fatalf("%d of %d merges within %s", now, n, limit)
		}
	}
}

// leave asks a process nothing any more; replace asks another one instead.
func (l *load) leave(p *cluster.Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ps = slices.DeleteFunc(l.ps, func(x *cluster.Process) bool { return x == p })
}

func (l *load) join(p *cluster.Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ps = append(l.ps, p)
}

// finish waits for all merges, stops the processes and audits everything.
func (l *load) finish() {
	l.t.Helper()
	l.all.Wait()
	for _, p := range l.ps {
		p.Stop()
	}
	l.c.Doctor(l.t)
	last := l.c.Start("")
	defer last.Stop()
	want := []string{string(pull.Validating), string(pull.Merging), string(pull.Notifying), string(pull.Indexing), string(pull.Merged)}
	merges := map[string][]string{} // by repository
	total := map[string]int{}
	for _, pr := range l.pulls {
		op := l.ops[pr.ID]
		if op == "" {
			continue // reported already
		}
		if merges[pr.Repo] == nil {
			merges[pr.Repo] = l.c.MergesInGit(pr.Repo, "main")
		}
		total[pr.Repo]++
		if n := count(merges[pr.Repo], op); n != 1 {
			l.t.Errorf("git has %d merges of %s", n, op)
		}
		if got := transitions(l.t, last, op); !slices.Equal(got, want) {
			l.t.Errorf("%s entered %v, expected %v", op, got, want)
		}
		oneDeliveryEach(l.t, l.c, op, pullWatchers...)
	}
	for repo, n := range total {
		if len(merges[repo]) != n {
			l.t.Errorf("%s has %d merges, expected %d", repo, len(merges[repo]), n)
		}
	}
	for o, err := range last.Client.Operations(l.t.Context(), httpapi.OperationQuery{}) {
		if err != nil {
			l.t.Fatal(err)
		}
		if !l.merged[o.ID] {
			l.t.Errorf("an operation that nobody knows: %+v", o)
		}
	}
	l.t.Logf("counted: %d merges", len(l.merged))
}
