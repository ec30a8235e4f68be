package proof

import (
	"regexp"
	"slices"
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
	cut   *cluster.Cut

	begun  chan struct{} // closed when the operation exists: nothing happens before
	sprung chan struct{} // closed when somebody is caught, or a cut is about to come
	taken  chan struct{} // closed when another process begins a step after that
	goOn   chan struct{} // closed when that process may perform the step
	thaw   chan struct{} // closed when a git whose process is frozen or dead may go on
	over   chan struct{} // closed with the cell

	mu     sync.Mutex
	who    cluster.Passing // who is caught
	caught bool
	others bool
}

func (l *lane) trap(place string) *trap {
	return &trap{l: l, place: place, cut: &cluster.Cut{After: l.kind == cutAfter, Of: l.commitAfter(place)},
		begun: make(chan struct{}), sprung: make(chan struct{}), taken: make(chan struct{}), goOn: make(chan struct{}), thaw: make(chan struct{}), over: make(chan struct{})}
}

func (tr *trap) inGit() bool { return strings.HasPrefix(tr.place, "git.") }

// locks says that a process that stands still at the place holds a lock of the
// repository: another one takes the command over, and has to wait.
func locks(place string) bool { return strings.HasPrefix(place, "open.") }

func (tr *trap) end() { close(tr.over) }

// Which commit follows a place. Claims go on all the time, so they are meant
// only where nothing else follows.
var (
	claims    = regexp.MustCompile(`lease_token = gen_random_uuid`)
	heartbeat = regexp.MustCompile(`(?s)mine AS MATERIALIZED.*SET lease_until`)
	work      = regexp.MustCompile(`saga_history|saga_notes|notification_receipts|pull_requests|mr_approvals`)
)

func (l *lane) commitAfter(place string) *regexp.Regexp {
	switch {
	case place == "engine.claim", slices.Contains(l.s.quiet(), place):
		return claims
	case place == "engine.heartbeat":
		return heartbeat
	}
	return work
}

func (tr *trap) decide(p cluster.Passing) cluster.Answer {
	if strings.HasPrefix(p.Place, "engine.claimed.") {
		if tr.other(p) && tr.l.kind == frozen {
			select {
			case <-tr.goOn:
			case <-tr.over:
			}
		}
		if tr.place == "engine.heartbeat" {
			// A step that takes longer than a heartbeat.
			select {
			case <-tr.sprung:
			case <-tr.over:
			}
			return cluster.Go
		}
	}
	if p.Place != tr.place || !tr.first(p) {
		return cluster.Go
	}
	select {
	case <-tr.begun:
	case <-tr.over:
		return cluster.Go
	}
	answer := tr.spring(p)
	close(tr.sprung)
	if tr.inGit() && (tr.l.kind == frozen || tr.l.kind == orphaned) {
		select {
		case <-tr.thaw:
		case <-tr.over:
		}
	}
	return answer
}

// first answers true once.
func (tr *trap) first(p cluster.Passing) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.caught {
		return false
	}
	tr.caught, tr.who = true, p
	return true
}

// other says that it is another process, after the first one was caught.
func (tr *trap) other(p cluster.Passing) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if !tr.caught || p.Pid == tr.who.Pid {
		return false
	}
	if !tr.others {
		tr.others = true
		close(tr.taken)
	}
	return true
}

func (tr *trap) spring(p cluster.Passing) cluster.Answer {
	switch kind := tr.l.kind; {
	case kind == cutBefore, kind == cutAfter:
		tr.l.wire.Break(tr.cut)
	case !tr.inGit():
		return map[string]cluster.Answer{killed: cluster.Kill, frozen: cluster.Freeze, frozenFor: cluster.Freeze, failed: cluster.Fail}[kind]
	case kind == failed:
		_ = syscall.Kill(p.Git, syscall.SIGKILL)
	case kind == frozen:
		_ = syscall.Kill(p.Pid, syscall.SIGSTOP)
	default:
		_ = syscall.Kill(p.Pid, syscall.SIGKILL)
		if kind == killed {
			_ = syscall.Kill(p.Git, syscall.SIGKILL)
		}
	}
	return cluster.Go
}
