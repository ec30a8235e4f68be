package archtest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a search path with nothing on it but what the package script needs
// and what a test adds.
type machine struct {
	bin string
}

func newMachine(t *testing.T, uid string) machine {
	t.Helper()
	m := machine{bin: t.TempDir()}
	for _, name := range []string{"bash", "mktemp", "tail", "tr", "rm", "touch"} {
		installed, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(installed, filepath.Join(m.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	m.program(t, "id", "echo "+uid)
	return m
}

// program puts a shell script on the machine. $bin is the search path's folder.
func (m machine) program(t *testing.T, name, script string) {
	t.Helper()
	text := "#!" + filepath.Join(m.bin, "bash") + "\nset -eu\nbin=" + m.bin + "\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(m.bin, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (m machine) packages(t *testing.T, names ...string) (status int, stdout, stderr string) {
	t.Helper()
	script, err := filepath.Abs(filepath.Join(root, "scripts", "debian-packages"))
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(m.bin, "bash"), append([]string{script}, names...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + m.bin, "TMPDIR=" + t.TempDir()}, &out, &errs
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), out.String(), errs.String()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, out.String(), errs.String()
}

func TestDebianPackages(t *testing.T) {
	t.Parallel()
	// apt-get as on a fresh machine: nothing can be installed before an update.
	const fresh = `
case "$*" in
  *update*) touch "$bin/lists" ;;
  *install*git*) if [ -e "$bin/lists" ]; then touch "$bin/installed"; else echo "E: Unable to locate package git"; exit 100; fi ;;
  *) exit 9 ;;
esac`
	for _, c := range []struct {
		name     string
		uid      string
		programs map[string]string
		ask      string
		status   int
		says     string // part of the one line on stderr; empty: nothing is said
		installs bool
	}{
		{name: "all is there", uid: "1000", programs: map[string]string{"git": ""}, ask: "git"},
		{name: "root installs, after an update", uid: "0", programs: map[string]string{"apt-get": fresh}, ask: "git", says: "installing git", installs: true},
		{name: "others are told what to do", uid: "1000", programs: map[string]string{"apt-get": fresh}, ask: "git", status: 1, says: "apt-get install git"},
		{name: "no package client", uid: "0", ask: "git", status: 1, says: "missing: git"},
		{name: "no network", uid: "0", programs: map[string]string{"apt-get": "echo 'E: no route to mirror'; exit 100"}, ask: "git", status: 1, says: "E: no route to mirror apt-get could not install git"},
		{name: "an unknown package", uid: "0", ask: "emacs", status: 2, says: "emacs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, c.uid)
			for name, script := range c.programs {
				m.program(t, name, script)
			}
			status, stdout, stderr := m.packages(t, c.ask)
			if status != c.status || stdout != "" {
				t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
			}
			if !strings.Contains(stderr, c.says) || c.says == "" && stderr != "" {
				t.Errorf("says %q", stderr)
			}
			if _, err := os.Stat(filepath.Join(m.bin, "installed")); (err == nil) != c.installs {
				t.Errorf("installed: %v", err)
			}
		})
	}
}

// What continuous integration runs is what people run.
func TestContinuousIntegrationRunsMakeTest(t *testing.T) {
	t.Parallel()
	name := filepath.Join(root, ".ci", "run")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#!/usr/bin/env bash\n", "\nset -euo pipefail\n", "make --no-print-directory test\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf(".ci/run lacks %q", want)
		}
	}
	if info.Mode()&0o111 == 0 {
		t.Error(".ci/run can't be executed")
	}
}
