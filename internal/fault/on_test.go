//go:build fault

package fault

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse("merge.marked#2:kill, engine.claimed.Merge:error,")
	if err != nil || len(got) != 2 || got[0] != (action{"merge.marked", 2, "kill"}) || got[1] != (action{"engine.claimed.Merge", 1, "error"}) {
		t.Errorf("parse = %+v, %v", got, err)
	}
	for _, bad := range []string{"merge.marked", "merge.marked:die", ":kill", "merge.marked#0:kill", "merge.marked#x:kill", "merge.marked#:kill", "nowhere:kill", "engine.claimed.:kill"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("parse(%q) accepts it", bad)
		}
	}
}

// TestPlaces is run as a program of its own by TestPoint.
func TestPlaces(t *testing.T) {
	for range 2 {
		if err := Point(MergeMarked); err != nil {
			os.Exit(3)
		}
	}
}

func TestPoint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		plan string
		exit int // -1: a signal
		log  string
	}{
		{"merge.marked:kill", -1, "merge.marked\n"},
		{"merge.marked#2:kill", -1, "merge.marked\n"},
		{"merge.marked#2:error", 3, "merge.marked\n"},
		{"merge.marked#3:kill", 0, ""},
		{"merge.before:kill", 0, ""},
		{"nonsense", 2, ""},
		{"list", 0, ""},
	} {
		log := filepath.Join(t.TempDir(), "log")
		cmd := exec.Command(os.Args[0], "-test.run=^TestPlaces$")
		cmd.Env = []string{"MERGEFLOW_FAULT=" + c.plan, "MERGEFLOW_FAULT_LOG=" + log}
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != c.exit {
			t.Errorf("%s: exit %d, want %d", c.plan, got, c.exit)
		}
		if got, _ := os.ReadFile(log); string(got) != c.log {
			t.Errorf("%s: log %q", c.plan, got)
		}
	}
}

func TestPointStops(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPlaces$")
	cmd.Env = []string{"MERGEFLOW_FAULT=merge.marked:stop"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer guard.Stop()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("it did not stop: %v, %v", status, err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it did not go on: %v", err)
	}
}

func TestDirector(t *testing.T) {
	t.Parallel()
	for answer, exit := range map[string]int{"go": 0, "kill": -1, "error": 3} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		told := make(chan string, 8)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					close(told)
					return
				}
				line, _ := bufio.NewReader(c).ReadString('\n')
				told <- line
				_, _ = c.Write([]byte(answer + "\n"))
				c.Close()
			}
		}()
		cmd := exec.Command(os.Args[0], "-test.run=^TestPlaces$")
		cmd.Env = []string{"MERGEFLOW_FAULT_DIRECTOR=" + l.Addr().String()}
		_ = cmd.Run()
		l.Close()
		if got := cmd.ProcessState.ExitCode(); got != exit {
			t.Errorf("%s: exit %d, want %d", answer, got, exit)
		}
		if got, want := <-told, fmt.Sprintf("%d merge.marked\n", cmd.ProcessState.Pid()); got != want {
			t.Errorf("%s: told %q, want %q", answer, got, want)
		}
	}
}

func TestNamesAreComplete(t *testing.T) {
	t.Parallel()
	if len(names) != int(CallbackDone)+1 {
		t.Errorf("%d names for %d places", len(names)-1, CallbackDone)
	}
	seen := map[string]bool{}
	for p, name := range names[1:] {
		if name == "" || seen[name] {
			t.Errorf("place %d: the name %q", p+1, name)
		}
		seen[name] = true
	}
}
