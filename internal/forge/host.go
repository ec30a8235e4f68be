package forge

import (
	"context"
	"net/http"
	"time"
)

// MergeStyle is how a repository lands a merge request.
type MergeStyle string

// MergeCommit always makes a merge commit, SquashCommit one commit with the
// merge request's whole change and the target's tip as its only parent.
const (
	MergeCommit  MergeStyle = "merge"
	SquashCommit MergeStyle = "squash"
)

// Repository is a repository that a Host keeps.
type Repository struct {
	Name            string
	DefaultBranch   string
	RequiredChecks  []string
	MergeStyle      MergeStyle
	RequireUpToDate bool
	Reviewers       []string
	CreatedAt       time.Time
}

// MaxDescription bounds a merge request's description in bytes. Every forge
// takes that much; who adds to a text must leave room for it.
const MaxDescription = 64 << 10

// NewMergeRequest asks a Host for a merge request.
type NewMergeRequest struct {
	Project     string
	Source      string
	Target      string
	Title       string
	Description string
	Author      string
	Watchers    []string
}

// Status is a commit status as CI posts it.
type Status struct {
	Project, SHA, Context, State, Description, TargetURL string
	At                                                   time.Time
}

// Host is a forge that mergeflow keeps itself (localgit): repositories can be
// created, statuses posted, and git clients served.
type Host interface {
	Forge
	CreateRepository(ctx context.Context, r Repository) (Repository, error)
	// CreateMergeRequest checks names and branches, refuses an unknown branch,
	// an empty repository and a merge request with nothing in it, and numbers it.
	CreateMergeRequest(ctx context.Context, in NewMergeRequest) (MergeRequest, error)
	SetStatus(ctx context.Context, s Status) error
	// GitHandler serves Git's smart HTTP protocol below prefix ("/git/"). allow is
	// asked per request; its error becomes a 401 where credentials are missing
	// or wrong (ErrUnauthenticated), a 403 otherwise, and is not shown.
	GitHandler(prefix string, allow func(r *http.Request, write bool) error) http.Handler
}
