package storetest

import (
	"slices"

	"github.com/mergeflow/mergeflow/internal/store"
)

func pullsBySource(b *bench) {
	_, err := b.Store.CreateRepo(b.ctx, store.Repo{Name: "other", DefaultBranch: "main", MergeStyle: "merge"})
	b.must(err, "create repository")
	make := func(forge, in, source, target string, iid int64) {
		_, err := b.Store.CreatePull(b.ctx, store.Pull{Forge: forge, Repo: in, IID: iid, Source: source, Target: target, Title: "t"}, nil)
		b.must(err, "create pull request")
	}
	for range 3 {
		make("default", repo, "work", "main", 0) // 1, 2, 3
	}
	make("default", repo, "work", "release", 0)
	make("default", repo, "work2", "main", 0)
	make("default", "other", "work", "main", 0)
	make("main", repo, "work", "main", 70)
	list := func(forge, in, source, target string, limit int) (iids []int64) {
		ps, err := b.Store.PullsBySource(b.ctx, forge, in, source, target, limit)
		b.must(err, "pull requests of a branch")
		for _, p := range ps {
			if p.ID == "" || p.Forge != forge || p.Repo != in || p.Source != source || p.Target != target || p.ForgeState != "open" {
				b.Errorf("listed %+v", p)
			}
			iids = append(iids, p.IID)
		}
		return iids
	}
	for _, c := range []struct {
		forge, repo, source, target string
		limit                       int
		want                        []int64
	}{
		{"default", repo, "work", "main", 10, []int64{3, 2, 1}},
		{"default", repo, "work", "main", 2, []int64{3, 2}},
		{"default", repo, "work", "main", 0, []int64{3, 2, 1}},
		{"default", repo, "work", "release", 10, []int64{4}},
		{"default", "other", "work", "main", 10, []int64{1}},
		{"main", repo, "work", "main", 10, []int64{70}},
		{"default", repo, "wor", "main", 10, nil},
		{"default", repo, "work", "\x00", 10, nil},
		{"default", "missing", "work", "main", 10, nil},
	} {
		if got := list(c.forge, c.repo, c.source, c.target, c.limit); !slices.Equal(got, c.want) {
			b.Errorf("%+v: %v", c, got)
		}
	}
}
