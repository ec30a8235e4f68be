package proof

import (
	"regexp"
	"strings"
	"sync"
	"syscall"

	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// trap is one fault at one place: the first process that passes it is caught.
// All others, and it afterwards, go on.
type trap struct {
	l     *lane
	place string
	inGit bool
	cut   *cluster.Cut

	begun  chan struct{}        // closed when the operation exists: nothing happens before
	met    chan struct{}        // closed when the place is reached
	sprung chan cluster.Passing // who was caught
	thaw   chan struct{}        // closed when a git whose process is frozen may go on
	over   chan struct{}        // closed with the cell

	mu     sync.Mutex
	caught bool
	merges int // how often the other process had begun a merge before
}

func (l *lane) trap(place string) *trap {
	return &trap{l: l, place: place, inGit: strings.HasPrefix(place, "git."), cut: &cluster.Cut{After: l.kind == cutAfter, Of: commitAfter(place)},
		begun: make(chan struct{}), met: make(chan struct{}), sprung: make(chan cluster.Passing, 1), thaw: make(chan struct{}), over: make(chan struct{})}
}

func (tr *trap) end() { close(tr.over) }

// Which commit follows a place. Claims go on all the time, so they are meant
// only where nothing else follows.
var (
	claims    = regexp.MustCompile(`lease_token = gen_random_uuid`)
	heartbeat = regexp.MustCompile(`(?s)mine AS MATERIALIZED.*SET lease_until`)
	work      = regexp.MustCompile(`saga_history|notification_receipts|pull_requests`)
)

func commitAfter(place string) *regexp.Regexp {
	switch {
	case place == "engine.claim", place == "engine.committed.IndexRepository":
		return claims
	case place == "engine.heartbeat":
		return heartbeat
	}
	return work
}

func (tr *trap) decide(p cluster.Passing) cluster.Answer {
	if tr.place == "engine.heartbeat" && strings.HasPrefix(p.Place, "engine.claimed.") {
		// A step that takes longer than a heartbeat.
		select {
		case <-tr.met:
		case <-tr.over:
		}
		return cluster.Go
	}
	if p.Place != tr.place || !tr.first() {
		return cluster.Go
	}
	select {
	case <-tr.begun:
	case <-tr.over:
		return cluster.Go
	}
	answer := tr.spring(p)
	tr.sprung <- p
	if tr.inGit && (tr.l.kind == frozen || tr.l.kind == orphaned) {
		select {
		case <-tr.thaw:
		case <-tr.over:
		}
	}
	return answer
}

// first answers true once.
func (tr *trap) first() bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.caught {
		return false
	}
	tr.caught = true
	close(tr.met)
	return true
}

func (tr *trap) spring(p cluster.Passing) cluster.Answer {
	switch kind := tr.l.kind; {
	case kind == cutBefore, kind == cutAfter:
		tr.l.wire.Break(tr.cut)
	case !tr.inGit:
		return map[string]cluster.Answer{killed: cluster.Kill, frozen: cluster.Freeze, failed: cluster.Fail}[kind]
	case kind == failed:
		_ = syscall.Kill(p.Git, syscall.SIGKILL)
	case kind == frozen:
		tr.countMerges(p.Pid)
		_ = syscall.Kill(p.Pid, syscall.SIGSTOP)
	default:
		_ = syscall.Kill(p.Pid, syscall.SIGKILL)
		if kind == killed {
			_ = syscall.Kill(p.Git, syscall.SIGKILL)
		}
	}
	return cluster.Go
}

func (tr *trap) countMerges(victim int) {
	for _, p := range tr.l.ps {
		if p.Pid() != victim {
			n, _ := tr.l.d.Passed(p.Pid(), "engine.claimed.Merge")
			tr.mu.Lock()
			tr.merges = n
			tr.mu.Unlock()
		}
	}
}
