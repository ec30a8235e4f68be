package forge

import (
	"context"
	"time"
)

// Branch is one look at a branch.
type Branch struct {
	Name    string
	SHA     string
	Parents []string
	Message string // of the commit at its tip: the trailer says whose it is
}

// FileKind is what stands at a path of a commit.
type FileKind string

// The kinds of file. What can't be seen through is no place to write to.
const (
	FileAbsent  FileKind = ""
	FileRegular FileKind = "file"
	FileSymlink FileKind = "symlink"
	FileDir     FileKind = "directory"
	FileOther   FileKind = "other" // a submodule
)

// File is what stands at a path. Blob is the content's id: two files with the
// same id hold the same.
type File struct {
	Kind FileKind
	Blob string
}

// FileChange is one file of a commit that is to be made.
type FileChange struct {
	Path    string
	Delete  bool
	Content string
}

// NewChange asks for a branch with one commit on a base.
type NewChange struct {
	Project string
	Base    string // the commit to build on
	Branch  string // must not exist
	Files   []FileChange
	Message string
	Author  Identity
	When    time.Time // whole seconds; the commit depends on nothing but this value
}

// Approval is one account's approval of one head.
type Approval struct {
	Account string
	SHA     string
}

// Changer is what flow change asks of a forge beyond Forge. Its writes carry
// preconditions like Forge's, and each has the read that settles it.
type Changer interface {
	Forge

	// Branch looks; KindNotFound where the branch or the project is missing.
	Branch(ctx context.Context, project, name string) (Branch, error)
	// Files looks at paths of a commit. For a path below a symbolic link or a file
	// it answers the kind of what is in the way.
	Files(ctx context.Context, project, commit string, paths []string) (map[string]File, error)
	// Blob is the id that a content would have.
	Blob(ctx context.Context, project, content string) (string, error)
	// CreateCommit makes the branch with its one commit and answers the commit.
	// KindExists when the branch is there (read Branch: it may be one's own);
	// KindNothingToMerge when the files are what the base has already.
	CreateCommit(ctx context.Context, in NewChange) (sha string, err error)
	// IsChange says whether head is one commit that changes its only parent as in
	// asks, and nothing else: the files of in, whatever its message claims.
	// in.Base is not asked; the caller judges the parent, which comes back.
	IsChange(ctx context.Context, in NewChange, head string) (parent string, ok bool, err error)
	// Diff is a unified diff of what CreateCommit would change; nothing is
	// written. At most limit bytes, cut at a line.
	Diff(ctx context.Context, in NewChange, limit int) (string, error)
	// Digest is the change digest of base..head: a patch id, the same for the
	// same change on another base.
	Digest(ctx context.Context, project, base, head string) (string, error)
	// MergeBase is the best common ancestor of two commits.
	MergeBase(ctx context.Context, project, a, b string) (string, error)

	// FindMergeRequests looks for merge requests of a branch, in any state, newest first.
	FindMergeRequests(ctx context.Context, project, source, target string) ([]MergeRequest, error)
	// OpenMergeRequest opens one. KindExists when an open one is there.
	OpenMergeRequest(ctx context.Context, in NewMergeRequest) (MergeRequest, error)
	// CloseMergeRequest closes an open one; a closed one is no error. KindClosed
	// never; a merged one answers KindInvalid.
	CloseMergeRequest(ctx context.Context, ref Ref) error
	// DeleteBranch deletes the branch while it stands at sha; absent is no
	// error, KindHeadMoved when it stands elsewhere.
	DeleteBranch(ctx context.Context, project, name, sha string) error

	// Reviewers are the accounts that approve for mergeflow; may be none.
	Reviewers(ctx context.Context, project string) ([]string, error)
	// Approvals looks who has approved which head.
	Approvals(ctx context.Context, ref Ref) ([]Approval, error)
	// Approve approves exactly this head with one account. KindHeadMoved when
	// the merge request's head is another.
	Approve(ctx context.Context, ref Ref, account, sha string) error
}
