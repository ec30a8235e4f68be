package forge

import (
	"errors"
	"fmt"
)

// ErrUnauthenticated is what the allow function of a GitHandler wraps when the
// credentials themselves are wrong; any other error of it is "not allowed".
var ErrUnauthenticated = errors.New("the credentials are not valid")

// Kind sorts a forge's errors by what the caller can do about them.
type Kind string

// The kinds. KindUnclear is the one that needs care: the call may have taken
// effect, so nothing may be repeated before a look.
const (
	KindNotFound       Kind = "not_found"
	KindInvalid        Kind = "invalid"          // bad name, bad branch, bad sha: the caller's input
	KindExists         Kind = "exists"           // a repository or merge request of that name is there already
	KindHeadMoved      Kind = "head_moved"       // the source branch is not at the sha that was named
	KindConflict       Kind = "conflict"         // git can't merge it
	KindBehind         Kind = "behind"           // the repository wants the branch up to date first
	KindClosed         Kind = "closed"           // the merge request is closed
	KindNothingToMerge Kind = "nothing_to_merge" // the target holds it all
	KindTransient      Kind = "transient"        // surely not applied; worth another try
	KindUnclear        Kind = "unclear"          // may have been applied; look first
)

// Error is what every driver answers. Detail is the forge's own words, kept as
// they were (status code and an excerpt of the body, or git's stderr) but free
// of secrets and of local paths.
type Error struct {
	Op     string // what was asked: "merge", "create merge request"
	Kind   Kind
	Field  string // for KindInvalid: the input field
	Detail string
	Err    error
}

// Error says the operation, the detail and the kind.
func (e *Error) Error() string {
	if e.Err != nil && e.Detail == "" {
		return fmt.Sprintf("%s: %v (%s)", e.Op, e.Err, e.Kind)
	}
	return fmt.Sprintf("%s: %s (%s)", e.Op, e.Detail, e.Kind)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf is the kind of a driver's error; an error that is none of ours is
// unclear, because nothing is known about it.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindUnclear
}
