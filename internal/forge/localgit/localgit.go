// Package localgit is a Git forge of mergeflow's own: bare repositories on disk,
// served over Git's smart HTTP protocol, with merge requests, statuses and
// reviewers in the database.
//
// # Exactly one merge
//
// A merge is two references. First the marker refs/mergeflow/merged/<pull> is
// set to the merge commit M, as the intent; then the target branch moves from
// M's first parent to M. A merge request is merged when its marker is in its
// target's history. What the database says about it follows later and is
// repaired by every look.
//
// M depends on nothing but its parent and the request, so that a repeated call
// makes the same M and only has to finish what is missing. Each of the two
// moves is a compare-and-swap that also holds the other reference still:
//
//	marker: old → M     only while the branch is where M's parent is
//	branch: parent → M  only while the marker is M
//
// So whoever set the marker last is the only one who can move the branch, and a
// marker can't be replaced once its branch has moved. A process that was frozen
// in between and wakes hours later, or a second one with another idea of M,
// can't land a second merge. Each move writes one reference: git does not write
// two of them atomically when it is killed.
//
// A close is a reference too, refs/mergeflow/closed/<pull>. Both moves of a
// merge also need it absent, and it is made only while the branch stands where
// nothing was merged: of a close and a merge that meet, exactly one happens.
//
// All methods are safe for concurrent use, also by several processes that share
// the directory and the database.
package localgit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Options say where a Host keeps what.
type Options struct {
	// Dir holds the repositories, as <name>.git. It is made when it is needed.
	Dir   string
	Store store.Forge
	// ApprovalStore keeps the approvals of reviewers; nil: there are none, and
	// none can be given.
	ApprovalStore Approvals
	// Forge is the forge's name in the configuration; "default" when empty.
	Forge string
	// PullURL is where people see a merge request; may be nil.
	PullURL func(p store.Pull) string
	// MaxPush bounds a push in bytes; 0: DefaultMaxPush.
	MaxPush int64
	// Log gets what git clients are not told; nil: nothing is logged.
	Log *slog.Logger
}

// DefaultMaxPush keeps one client from filling the disk; it is far above a
// first push of most repositories.
const DefaultMaxPush = 1 << 30

// Host is the local forge.
type Host struct {
	Options
	// point is where tests make a merge fail.
	point func(fault.Place) error
}

var (
	_ forge.Host    = (*Host)(nil)
	_ search.Source = (*Host)(nil)
)

// New makes a Host. Nothing is read or written yet.
func New(o Options) *Host {
	if o.Forge == "" {
		o.Forge = "default"
	}
	if o.MaxPush <= 0 {
		o.MaxPush = DefaultMaxPush
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	// git runs with the repository as its directory, where a relative path
	// would mean something else. Abs fails only without a working directory.
	if dir, err := filepath.Abs(o.Dir); err == nil {
		o.Dir = dir
	}
	return &Host{Options: o, point: fault.Point}
}

// Capabilities says that closing a saga's row closes the merge request.
func (h *Host) Capabilities() forge.Capabilities {
	return forge.Capabilities{ClosesWithSaga: true}
}

// open answers the repository of that name from the database, and where git has it.
func (h *Host) open(ctx context.Context, op, name string) (store.Repo, git.Repo, error) {
	if err := CheckName(name); err != nil {
		return store.Repo{}, git.Repo{}, &forge.Error{Op: op, Kind: forge.KindInvalid, Field: "repo", Detail: err.Error()}
	}
	r, err := h.Store.Repo(ctx, name)
	if err != nil {
		return store.Repo{}, git.Repo{}, fromStore(op, "repo", "repository "+name, err)
	}
	return r, h.repo(name), nil
}

func (h *Host) repo(name string) git.Repo {
	return git.Repo{Dir: filepath.Join(h.Dir, filepath.FromSlash(name)+".git")}
}

// fromStore sorts a database's error. Reads and guarded writes are meant: they
// may be repeated.
func fromStore(op, field, what string, err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return &forge.Error{Op: op, Kind: forge.KindNotFound, Field: field, Detail: "there is no " + what, Err: err}
	case errors.Is(err, store.ErrExists):
		return &forge.Error{Op: op, Kind: forge.KindExists, Field: field, Detail: what + " exists already", Err: err}
	case errors.Is(err, store.ErrConflict):
		return &forge.Error{Op: op, Kind: forge.KindInvalid, Field: field, Detail: "the database refused " + what, Err: err}
	case errors.Is(err, store.ErrUnknown):
		return &forge.Error{Op: op, Kind: forge.KindUnclear, Detail: saga.Clean(err.Error(), 500), Err: err}
	}
	return &forge.Error{Op: op, Kind: forge.KindTransient, Detail: saga.Clean(err.Error(), 500), Err: err}
}

// fromCreate sorts the error of a write that must not be repeated blindly: what
// was cut off may have been stored.
func fromCreate(op, field, what string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &forge.Error{Op: op, Kind: forge.KindUnclear, Detail: saga.Clean(err.Error(), 500), Err: err}
	}
	return fromStore(op, field, what, err)
}

// fromGit sorts an error of a git call that changed nothing.
func fromGit(op string, err error) error {
	e := &forge.Error{Op: op, Kind: forge.KindTransient, Detail: saga.Clean(err.Error(), 1000), Err: err}
	if errors.Is(err, git.ErrNotFound) {
		e.Kind = forge.KindNotFound
	}
	return e
}

func invalid(op, field, format string, args ...any) error {
	return &forge.Error{Op: op, Kind: forge.KindInvalid, Field: field, Detail: fmt.Sprintf(format, args...)}
}
