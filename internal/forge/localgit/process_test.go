package localgit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Several processes merge in one repository. Each is this test binary again,
// running TestProcess with a task in its environment; the rows of the database
// are in a file that all of them read.

// processTask is what a process is told: merge these, one after the other, and
// at a place of a merge do something to yourself.
type processTask struct {
	Dir    string
	Inputs []forge.MergeInput
	Point  fault.Place
	Signal syscall.Signal
}

const processEnv = "MERGEFLOW_TEST_PROCESS"

// TestProcess is the other process; without a task there is nothing to do.
func TestProcess(t *testing.T) {
	text := os.Getenv(processEnv)
	if text == "" {
		return
	}
	var task processTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		t.Fatal(err)
	}
	h := New(Options{Dir: task.Dir, Store: rowsFile{path: filepath.Join(task.Dir, "rows.json")}})
	h.point = func(p fault.Place) error {
		if p == task.Point {
			task.Point = 0
			// To this thread: another one could take a signal to the process
			// while this one goes on.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			_, _, errno := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(task.Signal))
			if errno != 0 {
				return errno
			}
		}
		return nil
	}
	for _, in := range task.Inputs {
		commit, err := h.Merge(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("merged", commit)
	}
}

// rowsFile is a database of two tables in one file, as much as merging needs.
type rowsFile struct {
	store.Forge
	path string
}

type rows struct {
	Repo  store.Repo
	Pulls map[int64]store.Pull
}

func (f rowsFile) read() (r rows, err error) {
	text, err := os.ReadFile(f.path)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

func (f rowsFile) write(r rows) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// Each writer its own file: several record what they have merged.
	temp, err := os.CreateTemp(filepath.Dir(f.path), ".rows-*")
	if err != nil {
		return err
	}
	if _, err = temp.Write(text); err == nil {
		err = temp.Close()
	}
	if err != nil {
		return err
	}
	return os.Rename(temp.Name(), f.path)
}

func (f rowsFile) Repo(_ context.Context, name string) (store.Repo, error) {
	r, err := f.read()
	if err == nil && r.Repo.Name != name {
		err = store.ErrNotFound
	}
	return r.Repo, err
}

func (f rowsFile) PullByIID(_ context.Context, _, _ string, iid int64) (store.Pull, error) {
	r, err := f.read()
	p, ok := r.Pulls[iid]
	if err == nil && !ok {
		err = store.ErrNotFound
	}
	return p, err
}

// SetForgeState may lose another process's update, like a database that is
// down: what git has must be enough.
func (f rowsFile) SetForgeState(_ context.Context, id, state, commit string) error {
	r, err := f.read()
	if err != nil {
		return err
	}
	for iid, p := range r.Pulls {
		if p.ID == id {
			p.ForgeState, p.MergeCommit = state, commit
			r.Pulls[iid] = p
		}
	}
	return f.write(r)
}

var when = time.Unix(1800000000, 0)

// crowd is a repository with merge requests that processes meet at.
type crowd struct {
	*testing.T
	dir  string
	repo git.Repo
	host *Host
	base string
}

func newCrowd(t *testing.T, requests int) *crowd {
	t.Helper()
	c := &crowd{T: t, dir: t.TempDir()}
	db := rowsFile{path: filepath.Join(c.dir, "rows.json")}
	c.host = New(Options{Dir: c.dir, Store: db})
	c.repo = c.host.repo("app")
	if _, err := git.Init(t.Context(), c.repo.Dir, "main"); err != nil {
		t.Fatal(err)
	}
	c.base = c.commit("main", "", map[string]string{"README": "hello\n"})
	r := rows{Repo: store.Repo{Name: "app", MergeStyle: string(forge.MergeCommit)}, Pulls: map[int64]store.Pull{}}
	for i := range requests {
		branch := fmt.Sprint("work-", i+1)
		c.commit(branch, c.base, map[string]string{branch: branch + "\n"})
		r.Pulls[int64(i+1)] = store.Pull{ID: fmt.Sprint("pull-", i+1), Repo: "app", IID: int64(i + 1), Source: branch, Target: "main", ForgeState: "open"}
	}
	if err := db.write(r); err != nil {
		t.Fatal(err)
	}
	return c
}

// commit pushes a commit of these files onto a branch, over whatever is there.
func (c *crowd) commit(branch, parent string, files map[string]string) string {
	c.Helper()
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit refs/heads/%s\ncommitter T <t@example.com> 1700000000 +0000\ndata 5\nwrite\n", branch)
	if parent != "" {
		fmt.Fprintf(&in, "from %s\n", parent)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&in, "M 100644 inline %s\ndata %d\n%s\n", path, len(files[path]), files[path])
	}
	c.git(in.String(), "fast-import", "--quiet", "--force")
	return c.tip("refs/heads/" + branch)
}

// git runs a program of git's in the repository and answers what it prints.
func (c *crowd) git(in string, args ...string) string {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), "git", append([]string{"--git-dir", c.repo.Dir}, args...)...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (c *crowd) tip(ref string) string {
	c.Helper()
	values, err := c.repo.Values(c.Context(), ref)
	if err != nil {
		c.Fatal(err)
	}
	return values[ref]
}

func (c *crowd) input(iid int64, operation string) forge.MergeInput {
	c.Helper()
	return forge.MergeInput{Ref: forge.Ref{Project: "app", IID: iid}, HeadSHA: c.tip(fmt.Sprint("refs/heads/work-", iid)),
		OperationID: operation, Title: "Land it", When: when}
}

// start starts a process; what it prints is in out when it has ended.
func (c *crowd) start(task processTask) (cmd *exec.Cmd, out *bytes.Buffer) {
	c.Helper()
	task.Dir = c.dir
	text, err := json.Marshal(task)
	if err != nil {
		c.Fatal(err)
	}
	out = &bytes.Buffer{}
	cmd = exec.CommandContext(c.Context(), os.Args[0], "-test.run=^TestProcess$", "-test.v")
	cmd.Env = append(os.Environ(), processEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	return cmd, out
}

// merges counts the commits of main that carry one of these operations.
func (c *crowd) merges(operations ...string) (n int) {
	c.Helper()
	log, err := c.repo.Log(c.Context(), c.tip("refs/heads/main"), "", 0)
	if err != nil {
		c.Fatal(err)
	}
	for _, commit := range log {
		for _, op := range operations {
			if slices.Contains(strings.Split(commit.Message, "\n"), trailerOperation+": "+op) {
				n++
			}
		}
	}
	return n
}

func (c *crowd) look(iid int64) forge.MergeRequest {
	c.Helper()
	mr, err := c.host.MergeRequest(c.Context(), forge.Ref{Project: "app", IID: iid})
	if err != nil {
		c.Fatal(err)
	}
	return mr
}

func TestKilledInAMerge(t *testing.T) {
	t.Parallel()
	for _, place := range []struct {
		point  fault.Place
		marked bool
		landed bool
	}{{pointBefore, false, false}, {pointMarked, true, false}, {pointSwapped, true, true}} {
		for _, moved := range []bool{false, true} {
			t.Run(fmt.Sprintf("place %v, target moved %v", place.point, moved), func(t *testing.T) {
				t.Parallel()
				c := newCrowd(t, 1)
				in := c.input(1, "op-1")
				cmd, out := c.start(processTask{Inputs: []forge.MergeInput{in}, Point: place.point, Signal: syscall.SIGKILL})
				if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the process was not killed: %v\n%s", err, out)
				}
				marker, tip := c.tip(markerPrefix+"pull-1"), c.tip("refs/heads/main")
				if (marker != "") != place.marked || (tip != c.base) != place.landed {
					t.Fatalf("left marker %q and main %s", marker, tip)
				}
				if moved {
					c.commit("main", tip, map[string]string{"other": "other\n"})
				}
				if mr := c.look(1); (mr.State == forge.Merged) != place.landed {
					t.Errorf("look = %+v", mr)
				}
				commit, err := c.host.Merge(t.Context(), in)
				if err != nil || c.merges("op-1") != 1 {
					t.Errorf("the next merge: %s, %v, %d merges", commit, err, c.merges("op-1"))
				}
				// The same parent makes the same commit; only a moved target needs another.
				if same := commit == marker; place.marked && same != (place.landed || !moved) {
					t.Errorf("the merge %s, the intent was %s", commit, marker)
				}
				if mr := c.look(1); mr.State != forge.Merged || mr.MergeCommit != commit {
					t.Errorf("look = %+v", mr)
				}
			})
		}
	}
}

// A process freezes between marker and branch, everybody believes that it is
// dead, and it wakes up after the merge was done without it.
func TestFrozenInAMerge(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(c *crowd, other forge.MergeInput) (commit string){
		"another merges": func(c *crowd, other forge.MergeInput) string {
			commit, err := c.host.Merge(c.Context(), other)
			if err != nil {
				c.Error(err)
			}
			return commit
		},
		// The branch stands again where the sleeper saw it: only the marker
		// tells it that its time is over.
		"another merges, and the target is pushed back": func(c *crowd, other forge.MergeInput) string {
			commit, err := c.host.Merge(c.Context(), other)
			if err != nil {
				c.Error(err)
			}
			land := git.Swap{Ref: "refs/heads/main", Old: commit, New: c.base}
			if err := c.repo.UpdateRef(c.Context(), land); err != nil {
				c.Error(err)
			}
			return commit
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t, 1)
			cmd, out := c.start(processTask{Inputs: []forge.MergeInput{c.input(1, "op-1")}, Point: pointMarked, Signal: syscall.SIGSTOP})
			ended := false
			defer func() {
				if !ended {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				}
			}()
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
				t.Fatalf("the process did not freeze: %v, %v\n%s", status, err, out)
			}
			commit := meanwhile(c, c.input(1, "op-2"))
			tip := c.tip("refs/heads/main")
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			err := cmd.Wait()
			ended = true
			if err != nil || !strings.Contains(out.String(), "merged "+commit+"\n") {
				t.Errorf("the sleeper, %v, does not know the merge %s:\n%s", err, commit, out)
			}
			if now := c.tip("refs/heads/main"); now != tip || c.merges("op-1") != 0 {
				t.Errorf("the sleeper moved main from %s to %s", tip, now)
			}
		})
	}
}

func TestTwoProcessesMergeIntoOneBranch(t *testing.T) {
	t.Parallel()
	const n = 10
	c := newCrowd(t, n)
	var tasks [2]processTask
	var operations []string
	for i := range n {
		operations = append(operations, fmt.Sprint("op-", i+1))
		tasks[i%2].Inputs = append(tasks[i%2].Inputs, c.input(int64(i+1), operations[i]))
	}
	first, firstOut := c.start(tasks[0])
	second, secondOut := c.start(tasks[1])
	for _, p := range []struct {
		cmd *exec.Cmd
		out *bytes.Buffer
	}{{first, firstOut}, {second, secondOut}} {
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, p.out)
		}
	}
	for i, op := range operations {
		if got := c.merges(op); got != 1 {
			t.Errorf("%s landed %d times", op, got)
		}
		if mr := c.look(int64(i + 1)); mr.State != forge.Merged {
			t.Errorf("%s: %+v", op, mr)
		}
	}
}
