package git

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

const (
	maxOutput = 16 << 20 // of calls whose answer is read as a whole
	maxStderr = 4 << 10
	// grace is how long git may clean up after SIGTERM before it is killed.
	grace = 5 * time.Second
)

// call is one run of the git program.
type call struct {
	op    string
	dir   string // the repository; empty for calls about none
	args  []string
	env   []string // beside the common environment
	stdin io.Reader
	// held are open files that the program inherits, so that the locks on them
	// live as long as it does, even when this process dies before it.
	held []*os.File
	// findsDir leaves it to the program to say where the repository is.
	findsDir bool
	// config are keys and values for this call alone.
	config []string
	// temp is one more local path that no error may show.
	temp string
}

// settings are the configuration of every call. They come by environment, so
// that what lies in a repository's own file can't weaken them, and programs
// that git starts see them too.
var settings = []string{
	"safe.directory", "*", // the directories are ours, whoever's user id they carry
	"core.fsync", "committed,reference,pack-metadata",
	"core.filesRefLockTimeout", "1000", // ms; a push holds a reference's lock for a moment
	"core.packedRefsTimeout", "5000",
	"gc.autoDetach", "false", // nothing outlives the call that started it
	"transfer.hideRefs", "refs/mergeflow", // from fetches and from pushes
}

// environment is all that git sees of the outside.
func (c call) environment() []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"LC_ALL=C",
		"TZ=UTC",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_NO_REPLACE_OBJECTS=1",
	}
	if c.dir != "" && !c.findsDir {
		env = append(env, "GIT_DIR="+c.dir)
	}
	pairs := append(append([]string(nil), settings...), c.config...)
	env = append(env, "GIT_CONFIG_COUNT="+strconv.Itoa(len(pairs)/2))
	for i := 0; i < len(pairs); i += 2 {
		n := strconv.Itoa(i / 2)
		env = append(env, "GIT_CONFIG_KEY_"+n+"="+pairs[i], "GIT_CONFIG_VALUE_"+n+"="+pairs[i+1])
	}
	return append(env, c.env...)
}

// command is the program, not started yet. It runs in a process group of its
// own: a Ctrl-C that is meant for the server must not hit git in the middle of
// a merge, and cancelling reaches the programs that git started.
func (c call) command(ctx context.Context) (*exec.Cmd, *excerpt) {
	cmd := exec.CommandContext(ctx, "git", append([]string{c.op}, c.args...)...)
	cmd.Dir = c.dir
	if c.dir == "" {
		cmd.Dir = "/"
	}
	cmd.Env = c.environment()
	cmd.Stdin = c.stdin
	stderr := &excerpt{}
	cmd.Stderr = stderr
	cmd.ExtraFiles = c.held
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		} else {
			return err
		}
	}
	cmd.WaitDelay = grace
	return cmd, stderr
}

// output runs the call and answers what it printed.
func (c call) output(ctx context.Context) ([]byte, error) {
	var out []byte
	err := c.stream(ctx, func(r *bufio.Reader) error {
		var err error
		out, err = io.ReadAll(io.LimitReader(r, maxOutput+1))
		if err == nil && len(out) > maxOutput {
			err = fmt.Errorf("the answer is larger than %d bytes", maxOutput)
		}
		return err
	})
	return out, err
}

// stream runs the call and lets read consume what it prints. read's own error
// ends the program and comes back as it is. Output that was printed before a
// failure has been read by then.
func (c call) stream(ctx context.Context, read func(*bufio.Reader) error) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd, stderr := c.command(inner)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return c.failure(ctx, err, stderr)
	}
	if err := cmd.Start(); err != nil {
		return c.failure(ctx, err, stderr)
	}
	readErr := read(bufio.NewReaderSize(stdout, 64<<10))
	if readErr != nil {
		cancel()
	}
	err = cmd.Wait()
	switch {
	case err == nil:
		return readErr
	case readErr != nil && ctx.Err() == nil && !exitedByItself(err):
		return readErr // that is why it was ended
	}
	return c.failure(ctx, err, stderr)
}

// exitedByItself says whether git ended with a status of its own, so that its
// words matter more than what the reader of its output made of it.
func exitedByItself(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.Exited()
}

// failure makes the error of a call that did not end well.
func (c call) failure(ctx context.Context, err error, stderr *excerpt) error {
	e := &Error{Op: c.op, Args: c.summary(), ExitCode: -1, Stderr: c.clean(stderr.String())}
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		e.Err = context.Cause(ctx)
	case ok && exit.Exited():
		e.ExitCode = exit.ExitCode()
		if strings.Contains(e.Stderr, "not a git repository") {
			e.Err = fmt.Errorf("%w: the directory is no repository", ErrNotFound)
		}
	case ok:
		e.Err = fmt.Errorf("ended by %v", exit.ProcessState)
	case errors.Is(err, exec.ErrNotFound):
		e.Err = errors.New("no git program in PATH")
	case errors.Is(err, fs.ErrNotExist):
		e.Err = fmt.Errorf("%w: the repository's directory is missing", ErrNotFound)
	default:
		e.Err = errors.New(c.clean(err.Error()))
	}
	return e
}

// summary is the arguments as an error shows them.
func (c call) summary() string {
	const limit = 200
	s := c.clean(strings.Join(c.args, " "))
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// clean takes local paths and control characters out of a text.
func (c call) clean(s string) string {
	if c.dir != "" {
		// Git says the path as it was given, or as it resolved it.
		for _, dir := range []string{c.dir, resolved(c.dir)} {
			s = strings.ReplaceAll(s, dir+"/", "")
			s = strings.ReplaceAll(s, dir, "the repository")
		}
	}
	if c.temp != "" {
		s = strings.ReplaceAll(s, c.temp, "a temporary folder")
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return strings.Join(strings.Fields(s), " ")
}

func resolved(dir string) string {
	if r, err := filepath.EvalSymlinks(dir); err == nil {
		return r
	}
	return dir
}

// excerpt keeps the beginning of what is written to it.
type excerpt struct{ buf bytes.Buffer }

func (e *excerpt) Write(p []byte) (int, error) {
	e.buf.Write(p[:min(len(p), maxStderr-e.buf.Len())])
	return len(p), nil
}

func (e *excerpt) String() string { return e.buf.String() }

// exitCode is git's exit status in an error of this package, or -1.
func exitCode(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.ExitCode
	}
	return -1
}
