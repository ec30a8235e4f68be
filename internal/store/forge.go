package store

import (
	"context"
	"time"
)

// Forge is what the local Git forge keeps in the database: repositories,
// merge requests (a Pull's forge columns) and commit statuses. What git itself
// knows (heads, merges) stays in git.
type Forge interface {
	// CreateRepo answers ErrExists for a name that is taken (case-insensitively).
	CreateRepo(ctx context.Context, r Repo) (Repo, error)
	Repo(ctx context.Context, name string) (Repo, error)
	Repos(ctx context.Context, f RepoFilter) ([]Repo, error)

	// CreatePull numbers the pull request within its repository and stores it
	// with its watchers.
	CreatePull(ctx context.Context, p Pull, watchers []string) (Pull, error)
	// PullByIID finds a pull request by its repository and number.
	PullByIID(ctx context.Context, forge, repo string, iid int64) (Pull, error)
	// PullsBySource lists a repository's pull requests of two branches, the
	// highest number first, at most limit.
	PullsBySource(ctx context.Context, forge, repo, source, target string, limit int) ([]Pull, error)
	// SetForgeState records the local forge's truth after git has it. A merged
	// pull request is never opened or closed again.
	SetForgeState(ctx context.Context, pullID, state, mergeCommit string) error

	// SetStatus stores the newest status of (repo, sha, context).
	SetStatus(ctx context.Context, s CommitStatus) error
	Statuses(ctx context.Context, repo, sha string) ([]CommitStatus, error)
}

// Repo is a local repository.
type Repo struct {
	Name            string
	DefaultBranch   string
	RequiredChecks  []string
	MergeStyle      string // merge or squash
	RequireUpToDate bool
	Reviewers       []string
	CreatedAt       time.Time
}

// RepoFilter selects repositories by name order.
type RepoFilter struct {
	Query string // part of the name
	Limit int
	After string // exclusive
}

// CommitStatus is one check of one commit.
type CommitStatus struct {
	Repo, SHA, Context, State, Description, TargetURL string
	UpdatedAt                                         time.Time
}
