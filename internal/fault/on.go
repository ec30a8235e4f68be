//go:build fault

// Package fault names the places where tests make a process die, freeze, hang
// or fail. In this build the environment decides.
//
//	MERGEFLOW_FAULT="name[#n]:kill|stop|error|hang,…"
//
// acts at the n-th passing (the first without #n) of the place of that name,
// and of no other passing. kill and stop send SIGKILL and SIGSTOP to the
// process itself, hang blocks the caller for ever, error makes Point answer
// one. Before that, the name becomes a line of the file that
// MERGEFLOW_FAULT_LOG names, so that a test knows the place was reached.
//
//	MERGEFLOW_FAULT=list
//
// prints the names and ends. With
//
//	MERGEFLOW_FAULT_DIRECTOR=host:port
//
// every passing is told there and waits for the answer what to do (director.go).
//
//	MERGEFLOW_FAULT_WITHOUT=flow/version/STATE/Command,…
//
// plays an older build that knows neither these types of command nor their states.
package fault

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// Enabled says whether this binary was built for tests.
const Enabled = true

type action struct {
	name string
	n    int // the passing that it waits for, from 1
	do   string
}

// plan is what the environment asked for; a nonsensical one must not look like
// a test that passed.
var plan = func() []action {
	text := os.Getenv("MERGEFLOW_FAULT")
	if text == "list" {
		fmt.Println(strings.Join(Names(), "\n"))
		os.Exit(0)
	}
	p, err := parse(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, "MERGEFLOW_FAULT:", err)
		os.Exit(2)
	}
	return p
}()

var (
	mu     sync.Mutex
	passed = map[string]int{}
)

func parse(s string) ([]action, error) {
	var out []action
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		place, do, _ := strings.Cut(part, ":")
		name, count, numbered := strings.Cut(place, "#")
		a := action{name: name, n: 1, do: do}
		if numbered {
			var err error
			if a.n, err = strconv.Atoi(count); err != nil || a.n < 1 {
				return nil, fmt.Errorf("%q: %q is no passing", part, count)
			}
		}
		switch do {
		case "kill", "stop", "error", "hang":
		default:
			return nil, fmt.Errorf("%q: the action must be kill, stop, error or hang", part)
		}
		if !known(name) {
			return nil, fmt.Errorf("%q names no place", part)
		}
		out = append(out, a)
	}
	return out, nil
}

// known refuses a name that no place has: it would be waited for in vain.
func known(name string) bool {
	return slices.ContainsFunc(names[1:], func(n string) bool {
		head, starred := strings.CutSuffix(n, "*")
		return name == n && !starred || starred && len(name) > len(head) && strings.HasPrefix(name, head)
	})
}

// Point is a place. It answers an error where the environment asks for one; it
// is safe for concurrent use.
func Point(p Place) error { return pass(p.of("")) }

// PointOf is Point for a place of a command, or of a kind of callback.
func PointOf(p Place, what string) error { return pass(p.of(what)) }

// Without says whether this process plays an older build that does not know a
// type of command.
func Without(typ string) bool {
	return slices.Contains(strings.Split(os.Getenv("MERGEFLOW_FAULT_WITHOUT"), ","), typ)
}

// Older is the table as this process shows it: without the states of commands
// that it does not know.
func Older(f *saga.Flow) *saga.Flow {
	older := *f
	older.States = slices.DeleteFunc(slices.Clone(f.States), func(s saga.Spec) bool {
		return Without(saga.TypeOf(f.Name, f.Version, s.State, s.Command))
	})
	return &older
}

func pass(name string) error {
	mu.Lock()
	passed[name]++
	n := passed[name]
	mu.Unlock()
	for _, a := range plan {
		if a.name == name && a.n == n {
			record(name)
			return act(name, a.do)
		}
	}
	if do := ask(name); do != "" {
		return act(name, do)
	}
	return nil
}

var errInjected = errors.New("fault injected")

func act(name, do string) error {
	switch do {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "stop":
		freeze()
		return nil
	case "hang":
		select {}
	}
	return fmt.Errorf("%w at %s", errInjected, name)
}

// freeze stops the process, and this thread of it before it does anything more:
// a signal to the whole process may be taken by another thread while this one
// goes on.
func freeze() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(syscall.SIGSTOP))
}

// record appends the place's name, in one write: processes share the file.
func record(name string) {
	path := os.Getenv("MERGEFLOW_FAULT_LOG")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(name + "\n")
		f.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "MERGEFLOW_FAULT_LOG:", err)
	}
}
