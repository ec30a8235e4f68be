//go:build fault

package fault

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse("merge.marked#2:kill, a:error,")
	if err != nil || len(got) != 2 || got[0] != (action{"merge.marked", 2, "kill"}) || got[1] != (action{"a", 1, "error"}) {
		t.Errorf("parse = %+v, %v", got, err)
	}
	for _, bad := range []string{"a", "a:die", ":kill", "a#0:kill", "a#x:kill", "a#:kill"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("parse(%q) accepts it", bad)
		}
	}
}

// TestPlaces is run as a program of its own by TestPoint.
func TestPlaces(t *testing.T) {
	for range 2 {
		if err := Point("place"); err != nil {
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
		{"place:kill", -1, "place\n"},
		{"place#2:kill", -1, "place\n"},
		{"place#2:error", 3, "place\n"},
		{"place#3:kill", 0, ""},
		{"other:kill", 0, ""},
		{"nonsense", 2, ""},
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
	cmd.Env = []string{"MERGEFLOW_FAULT=place:stop"}
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
