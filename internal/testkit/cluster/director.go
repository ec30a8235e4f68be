package cluster

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Passing is a process at a fault point, or its git program at one of the
// places of GitHook, waiting for what to do.
type Passing struct {
	Pid   int // of the mergeflow
	Place string
	Git   int // of its git program; 0 where none is concerned
}

// Answer is what a process does at a fault point.
type Answer string

// What a process can be told. At a place inside git only Go and Fail are
// understood: git then goes on, or refuses.
const (
	Go     Answer = "go"
	Kill   Answer = "kill" // it kills itself
	Freeze Answer = "stop" // it stops itself
	Fail   Answer = "error"
)

// Director is told of every fault point that the processes of a cluster pass,
// and decides. It is safe for concurrent use.
type Director struct {
	listener net.Listener
	open     sync.WaitGroup

	mu     sync.Mutex
	decide func(Passing) Answer
	passed map[string]int
	more   chan struct{} // closed at the next passing
}

// NewDirector starts a director that lets everything pass. It ends with the test.
func NewDirector(t testing.TB) *Director {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &Director{listener: l, passed: map[string]int{}, more: make(chan struct{})}
	d.open.Go(d.accept)
	t.Cleanup(func() {
		d.Direct(nil)
		l.Close()
		d.open.Wait()
	})
	return d
}

// Direct sets who decides from now on; nil lets everything pass. decide may
// block, and is called by many at once.
func (d *Director) Direct(decide func(Passing) Answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.decide = decide
}

// Passed is how often a process has passed a place, and a channel that is
// closed when anything is passed next.
func (d *Director) Passed(pid int, place string) (int, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed[fmt.Sprint(pid, place)], d.more
}

func (d *Director) accept() {
	for {
		c, err := d.listener.Accept()
		if err != nil {
			return
		}
		d.open.Go(func() {
			defer c.Close()
			line, err := bufio.NewReader(c).ReadString('\n')
			var p Passing
			if n, _ := fmt.Sscan(line, &p.Pid, &p.Place, &p.Git); err != nil || n < 2 {
				return // the process died while it asked
			}
			d.mu.Lock()
			d.passed[fmt.Sprint(p.Pid, p.Place)]++
			close(d.more)
			d.more = make(chan struct{})
			decide := d.decide
			d.mu.Unlock()
			answer := Go
			if decide != nil {
				answer = decide(p)
			}
			fmt.Fprintln(c, answer) // nobody may be left to hear it
		})
	}
}

// GitPlaces are inside git: its transaction holds all locks, or has written its
// reference and not ended yet.
var GitPlaces = []string{"git.marker.prepared", "git.marker.committed", "git.branch.prepared", "git.branch.committed"}

// GitHook makes git programs that move the marker or the main branch of a
// repository stop at GitPlaces and ask the director.
func (c *Cluster) GitHook(repo string) {
	c.t.Helper()
	host, port, _ := net.SplitHostPort(c.director.listener.Addr().String()) // it is one
	// The first line names the reference that is written; the others are only held still.
	script := fmt.Sprintf(`#!/bin/bash
read -r _ _ ref
case $ref in
refs/mergeflow/merged/*) place=git.marker.$1 ;;
refs/heads/main) place=git.branch.$1 ;;
*) exit 0 ;;
esac
[ "$1" = aborted ] && exit 0
exec 9<>/dev/tcp/%s/%s || exit 0
echo "$(cut -d' ' -f4 /proc/$PPID/stat) $place $PPID" >&9
read -r answer <&9
[ "$answer" != error ]
`, host, port)
	hooks := filepath.Join(c.Dir, "repos", repo+".git", "hooks")
	if err := os.MkdirAll(hooks, 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(hooks, "reference-transaction"), []byte(script), 0o700); err != nil {
		c.t.Fatal(err)
	}
}

// FaultPoints lists the names of all fault points, as the binary has them. A
// name that ends in a star stands for one for each command.
func FaultPoints(t testing.TB) []string {
	t.Helper()
	out, err := run(t, "MERGEFLOW_FAULT=list")
	if err != nil {
		t.Fatalf("listing the fault points: %v\n%s", err, out)
	}
	return strings.Fields(string(out))
}
