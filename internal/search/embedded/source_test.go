package embedded_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/search/embedded"
)

// repos is a source that keeps commits as maps from path to content.
type repos struct {
	mu      sync.Mutex
	commits map[string]commit
	blobs   map[string]string
	read    []string // the blobs that were asked for, in order
	diffs   []string // "from..to"
	largest int      // the largest batch, in blobs
	broken  func(call string) error
	reading chan struct{} // when set: told before each blob, and waits for its turn
}

type commit struct {
	parent string
	files  map[string]string
}

func newRepos() *repos {
	return &repos{commits: map[string]commit{}, blobs: map[string]string{}}
}

// commit adds one. A file with the content "-" is deleted.
func (r *repos) commit(id, parent string, files map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]string{}
	maps.Copy(all, r.commits[parent].files)
	for path, content := range files {
		if content == "-" {
			delete(all, path)
			continue
		}
		sha := fmt.Sprintf("%x", sha256.Sum256([]byte(content)))
		r.blobs[sha], all[path] = content, sha
	}
	r.commits[id] = commit{parent, all}
}

func (r *repos) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.commits, id)
}

func (r *repos) fail(call string) error {
	if r.broken == nil {
		return nil
	}
	return r.broken(call)
}

func (r *repos) Changes(_ context.Context, _, from, to string) ([]search.Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.diffs = append(r.diffs, from+".."+to)
	if err := r.fail("changes"); err != nil {
		return nil, err
	}
	b, ok := r.commits[to]
	a, okA := r.commits[from]
	if !ok || from != "" && !okA {
		return nil, errors.New("bad object")
	}
	var out []search.Change
	for path, sha := range b.files {
		if a.files[path] != sha {
			out = append(out, search.Change{Path: path, Blob: sha, Size: int64(len(r.blobs[sha]))})
		}
	}
	for path := range a.files {
		if _, still := b.files[path]; !still {
			out = append(out, search.Change{Path: path, Deleted: true})
		}
	}
	slices.SortFunc(out, func(a, b search.Change) int { return compare(a.Path, b.Path) })
	return out, nil
}

func (r *repos) ReadBlobs(ctx context.Context, _ string, blobs []string, fn func(string, []byte) error) error {
	r.mu.Lock()
	r.read = append(r.read, blobs...)
	r.largest = max(r.largest, len(blobs))
	err := r.fail("read")
	r.mu.Unlock()
	if err != nil {
		return err
	}
	for _, b := range blobs {
		if r.reading != nil {
			r.reading <- struct{}{}
			select {
			case r.reading <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		r.mu.Lock()
		content := r.blobs[b]
		r.mu.Unlock()
		if err := fn(b, []byte(content)); err != nil {
			return err
		}
	}
	return nil
}

func (r *repos) Contains(_ context.Context, _, of, ancestor string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fail("contains"); err != nil {
		return false, err
	}
	if _, ok := r.commits[of]; !ok {
		return false, errors.New("bad object")
	}
	for c := of; c != ""; c = r.commits[c].parent {
		if c == ancestor {
			return true, nil
		}
	}
	return false, nil
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func open(t *testing.T, o embedded.Options) *embedded.Index {
	t.Helper()
	if o.Path == "" {
		o.Path = filepath.Join(t.TempDir(), "search.db")
	}
	x, err := embedded.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func index(t *testing.T, x *embedded.Index, repo, commit string) {
	t.Helper()
	if err := x.Index(t.Context(), target(repo, commit)); err != nil {
		t.Fatal(err)
	}
}

func target(repo, commit string) search.Target {
	return search.Target{Repo: repo, Branch: "main", Commit: commit, OperationID: "op"}
}

// find answers "repo@commit path:line text" for each hit.
func find(t *testing.T, x *embedded.Index, q search.Query) []string {
	t.Helper()
	hits, err := x.Search(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, h := range hits {
		out = append(out, fmt.Sprintf("%s@%s %s:%d %s", h.Repo, h.Commit, h.Path, h.Line, h.Text))
	}
	return out
}
