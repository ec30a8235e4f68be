package search

import "context"

// Change is one file that differs between two commits, or one file of a whole
// tree. Only plain files count: no links, no submodules.
type Change struct {
	Path    string
	Deleted bool
	Blob    string // git's id of the content; empty when deleted
	Size    int64  // bytes; 0 when deleted
}

// Source is where an embedded index reads what was merged. It is safe for
// concurrent use.
type Source interface {
	// Changes lists the files that differ between from and to, by path. An
	// empty from lists the whole tree of to.
	Changes(ctx context.Context, repo, from, to string) ([]Change, error)
	// ReadBlobs streams contents in the order of blobs. content is valid only
	// during the call; fn's error ends the stream and comes back as it is.
	ReadBlobs(ctx context.Context, repo string, blobs []string, fn func(blob string, content []byte) error) error
	// Contains says whether commit is ancestor or descends from it. An ancestor
	// that the repository does not have is contained in nothing.
	Contains(ctx context.Context, repo, commit, ancestor string) (bool, error)
}
