package localgit

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/search"
)

func TestSource(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := newCrowd(t, 0)
	target, err := c.repo.StoreBlob(ctx, "elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	next := c.commit("main", c.base, map[string]string{"README": "hello again\n", "dir/ä b": "new\n"})
	link := c.entries(next, "120000 "+target+" README")

	contents := func(changes []search.Change) map[string]string {
		t.Helper()
		found := map[string]string{}
		var blobs, paths []string
		for _, ch := range changes {
			if ch.Deleted {
				found[ch.Path] = "deleted"
				continue
			}
			blobs, paths = append(blobs, ch.Blob), append(paths, ch.Path)
		}
		i := 0
		if err := c.host.ReadBlobs(ctx, "app", blobs, func(blob string, content []byte) error {
			if blob != blobs[i] {
				t.Errorf("blob %d is %s, want %s", i, blob, blobs[i])
			}
			found[paths[i]] = string(content)
			i++
			return nil
		}); err != nil {
			t.Error(err)
		}
		for _, ch := range changes {
			if !ch.Deleted && ch.Size != int64(len(found[ch.Path])) {
				t.Errorf("%s has size %d, holds %q", ch.Path, ch.Size, found[ch.Path])
			}
		}
		return found
	}
	for _, tc := range []struct {
		name, from, to string
		want           map[string]string
	}{
		{"everything", "", next, map[string]string{"README": "hello again\n", "dir/ä b": "new\n"}},
		{"forward", c.base, next, map[string]string{"README": "hello again\n", "dir/ä b": "new\n"}},
		{"back", next, c.base, map[string]string{"README": "hello\n", "dir/ä b": "deleted"}},
		{"nothing", next, next, map[string]string{}},
		{"a file that became a link", next, link, map[string]string{"README": "deleted", "dir/ä b": "deleted"}},
		{"a link that became a file", link, c.base, map[string]string{"README": "hello\n"}},
		{"links are no files", "", link, map[string]string{}},
	} {
		changes, err := c.host.Changes(ctx, "app", tc.from, tc.to)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if diff := cmp.Diff(tc.want, contents(changes)); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}

	stop := errors.New("enough")
	if err := c.host.ReadBlobs(ctx, "app", []string{target}, func(string, []byte) error { return stop }); err != stop {
		t.Errorf("the reader's error came back as %v", err)
	}
	missing := strings.Repeat("1", 40)
	for _, tc := range []struct {
		commit, ancestor string
		want             bool
	}{{next, c.base, true}, {next, next, true}, {c.base, next, false}, {next, missing, false}} {
		if got, err := c.host.Contains(ctx, "app", tc.commit, tc.ancestor); err != nil || got != tc.want {
			t.Errorf("Contains(%s, %s) = %v, %v", tc.commit, tc.ancestor, got, err)
		}
	}
	_, noCommit := c.host.Contains(ctx, "app", missing, c.base)
	_, noTree := c.host.Changes(ctx, "app", c.base, missing)
	_, noRepo := c.host.Changes(ctx, "other", "", next)
	noBlob := c.host.ReadBlobs(ctx, "app", []string{missing}, nil)
	for _, err := range []error{noCommit, noTree, noRepo, noBlob} {
		if forge.KindOf(err) != forge.KindNotFound {
			t.Errorf("what is not there: %v", err)
		}
	}
}

// entries is a commit of a tree with exactly this entry.
func (c *crowd) entries(parent, entry string) string {
	c.Helper()
	mode, rest, _ := strings.Cut(entry, " ")
	blob, path, _ := strings.Cut(rest, " ")
	tree := c.git(mode+" blob "+blob+"\t"+path+"\n", "mktree")
	commit, err := c.repo.CommitTree(c.Context(), git.NewCommit{Tree: tree, Parents: []string{parent}, When: when, Message: "link"})
	if err != nil {
		c.Fatal(err)
	}
	return commit
}
