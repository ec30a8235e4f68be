// Package git is the only place that runs the git program. It works on bare
// repositories without a work tree and knows nothing of merge requests.
//
// Every call runs git in an environment of its own (no system or user
// configuration, no prompt, the C locale), with arguments that can't be taken
// for options, is ended with SIGTERM when its context ends so that git removes
// its lock files, and reads a bounded amount of output. Errors are *Error, with
// git's own words but without local paths.
//
// References are changed only by compare-and-swap (Repo.UpdateRef). All
// functions are safe for concurrent use, also by several processes on one
// repository.
package git

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// What callers tell apart. Errors that wrap them are made with errors.Is in mind.
var (
	// ErrNotFound is a reference, object or repository that is not there.
	ErrNotFound = errors.New("not found in the repository")
	// ErrMoved is a compare-and-swap that met another value: nothing was written.
	ErrMoved = errors.New("the reference has another value than expected")
	// ErrNested is a reference whose name lies inside or around another one's
	// ("a/b" beside "a"): nothing was written.
	ErrNested = errors.New("the reference's name lies inside or around another one's")
	// ErrUnrelated is a merge of histories without a common commit.
	ErrUnrelated = errors.New("the histories have no commit in common")
)

// Error is a git program that failed.
type Error struct {
	Op       string // git's subcommand: "merge-tree"
	Args     string // its arguments, shortened; no local paths
	ExitCode int    // -1 when it was ended by a signal or never ran
	Stderr   string // an excerpt, cleaned of control characters and local paths
	Err      error  // the cause where it was not git's own: a cancelled context, no git program
}

// Error says the subcommand and git's words.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("git " + e.Op)
	if e.Args != "" {
		b.WriteString(" " + e.Args)
	}
	switch {
	case e.Err != nil:
		fmt.Fprintf(&b, ": %v", e.Err)
	default:
		fmt.Fprintf(&b, ": exit status %d", e.ExitCode)
	}
	if e.Stderr != "" {
		b.WriteString(": " + e.Stderr)
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// LockError is a reference that could not be changed because a lock file is
// there whose maker may still be alive. Nothing was written.
type LockError struct {
	Ref string
	Age time.Duration // since the lock file was last written; 0 when it is gone by now
}

// Error names the lock and what an operator can do.
func (e *LockError) Error() string {
	return fmt.Sprintf("%s is locked by %s.lock, %s old; when no git program works on the repository, remove that file",
		e.Ref, e.Ref, e.Age.Round(time.Second))
}

// The oldest git that can merge without a work tree.
const minMajor, minMinor = 2, 38

var versionPattern = regexp.MustCompile(`(\d+)\.(\d+)`)

// Check answers the version of the git program, or an error that says what is
// missing: no git, or one older than 2.38.
func Check(ctx context.Context) (version string, err error) {
	out, err := call{op: "version"}.output(ctx)
	if err != nil {
		return "", fmt.Errorf("git 2.38 or newer is needed: %w", err)
	}
	version = strings.TrimPrefix(strings.TrimSpace(string(out)), "git version ")
	return version, checkVersion(version)
}

func checkVersion(version string) error {
	m := versionPattern.FindStringSubmatch(version)
	if m == nil {
		return fmt.Errorf("git 2.38 or newer is needed; this one calls itself %q", version)
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major < minMajor || major == minMajor && minor < minMinor {
		return fmt.Errorf("git %s is too old: merging without a work tree needs %d.%d or newer", version, minMajor, minMinor)
	}
	return nil
}
