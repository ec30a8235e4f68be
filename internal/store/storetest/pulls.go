package storetest

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func pullsAreNumbered(b *bench) {
	_, err := b.Store.CreateRepo(b.ctx, store.Repo{Name: "other", DefaultBranch: "main", MergeStyle: "merge"})
	b.must(err, "create repository")
	make := func(in string) (store.Pull, error) {
		return b.Store.CreatePull(b.ctx, store.Pull{ID: newID(), Forge: "default", Repo: in, ForgeState: "open", Source: "s", Target: "main", Title: "t"}, nil)
	}
	var mu sync.Mutex
	seen := map[string][]int64{}
	var wg sync.WaitGroup
	for range 6 {
		for _, name := range []string{repo, "other"} {
			wg.Go(func() {
				p, err := make(name)
				if err != nil {
					b.Errorf("create pull request: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				seen[name] = append(seen[name], p.IID)
			})
		}
	}
	wg.Wait()
	for name, got := range seen {
		if slices.Sort(got); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6}) {
			b.Errorf("%s is numbered %v", name, got)
		}
	}
	_, err = make("missing")
	b.wantErr(err, store.ErrNotFound, "a pull request of no repository")
	p, err := b.Store.PullByIID(b.ctx, "default", "other", 3)
	if err != nil || p.Repo != "other" || p.IID != 3 || p.SagaStatus != "" || p.OperationID != "" || p.Status() != "open" || !about(p.CreatedAt, b.now()) {
		b.Errorf("by number: %+v, %v", p, err)
	}
	again, err := b.Store.Pull(b.ctx, p.ID)
	if d := cmp.Diff(p, again); err != nil || d != "" {
		b.Errorf("by id: %v\n%s", err, d)
	}
	_, err = b.Store.PullByIID(b.ctx, "default", "other", 7)
	b.wantErr(err, store.ErrNotFound, "number 7 of 6")
	_, err = b.Store.CreatePull(b.ctx, store.Pull{ID: newID(), Forge: "default", Repo: repo, ForgeState: "open", Source: "s", Target: "main", Title: "\x00"}, nil)
	b.wantErr(err, store.ErrConflict, "a title with a NUL")
	if p, err = make(repo); err != nil || p.IID != 7 {
		b.Errorf("a refused pull request took a number: %+v, %v", p, err)
	}
}

func listPulls(b *bench) {
	var made []store.Pull
	for range 5 {
		made = append(made, b.pull())
		b.Advance(time.Second)
	}
	for i, to := range []saga.State{working, broken, closed} {
		_, err := b.Store.StartPull(b.ctx, made[i].ID, func(p store.Pull, _ *store.Locked, now time.Time) (store.StartPull, error) {
			return starts(p, now, to)
		})
		b.must(err, "start")
	}
	b.must(b.Store.SetForgeState(b.ctx, made[3].ID, "closed", ""), "close")
	id := func(ps []store.Pull) (out []string) {
		for _, p := range ps {
			out = append(out, p.ID)
		}
		return out
	}
	for _, c := range []struct {
		name string
		f    store.PullFilter
		want []store.Pull
	}{
		{"all", store.PullFilter{}, made},
		{"repository", store.PullFilter{Repo: repo}, made},
		{"other repository", store.PullFilter{Repo: "x"}, nil},
		{"merging", store.PullFilter{Status: "merging"}, made[0:1]},
		{"merge-failed", store.PullFilter{Status: "merge-failed"}, made[1:2]},
		{"closed, by its saga or on the forge", store.PullFilter{Status: "closed"}, made[2:4]},
		{"open", store.PullFilter{Status: "open"}, made[4:]},
		{"query", store.PullFilter{Query: "cHANGE 2"}, made[1:2]},
		{"query is no pattern", store.PullFilter{Query: "change_2"}, nil},
	} {
		c.f.Limit = 100
		ps, err := b.Store.Pulls(b.ctx, c.f)
		b.must(err, c.name)
		if !sameSet(id(ps), id(c.want)) {
			b.Errorf("%s: listed %v, want %v", c.name, id(ps), id(c.want))
		}
	}
	var paged []string
	var before *store.Cursor
	for range 10 {
		ps, err := b.Store.Pulls(b.ctx, store.PullFilter{Limit: 2, Before: before})
		b.must(err, "page")
		if len(ps) == 0 {
			break
		}
		last := ps[len(ps)-1]
		paged, before = append(paged, id(ps)...), &store.Cursor{At: last.CreatedAt, ID: last.ID}
	}
	newest := id(made)
	slices.Reverse(newest)
	if !slices.Equal(paged, newest) {
		b.Errorf("paged %v, want %v", paged, newest)
	}
}

func forgeStateMovesForward(b *bench) {
	p := b.pull()
	set := func(state, commit, wantState, wantCommit string) {
		b.Helper()
		b.must(b.Store.SetForgeState(b.ctx, p.ID, state, commit), "set "+state)
		got, err := b.Store.Pull(b.ctx, p.ID)
		if err != nil || got.ForgeState != wantState || got.MergeCommit != wantCommit {
			b.Errorf("after %s %q: %s %q, %v", state, commit, got.ForgeState, got.MergeCommit, err)
		}
	}
	set("closed", "", "closed", "")
	set("open", "", "open", "")
	set("merged", "abc", "merged", "abc")
	set("closed", "", "merged", "abc")
	set("open", "", "merged", "abc")
	set("merged", "def", "merged", "abc")
	b.wantErr(b.Store.SetForgeState(b.ctx, newID(), "closed", ""), store.ErrNotFound, "of no pull request")
	q := b.pull()
	b.wantErr(b.Store.SetForgeState(b.ctx, q.ID, "nonsense", ""), store.ErrConflict, "to nonsense")
}

func startRace(b *bench) {
	p := b.pull()
	errLive := errors.New("one is live")
	var won atomic.Int64
	winner := make(chan string, 20)
	saw := make(chan string, 20)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			row, err := b.Store.StartPull(b.ctx, p.ID, func(p store.Pull, old *store.Locked, now time.Time) (store.StartPull, error) {
				if old != nil {
					if old.Row.ID != p.OperationID || old.Row.Command == nil {
						b.Errorf("old saga %+v of %+v", old.Row, p)
					}
					saw <- old.Row.ID
					return store.StartPull{}, errLive
				}
				return starts(p, now, working)
			})
			switch {
			case err == nil:
				won.Add(1)
				winner <- row.ID
			case !errors.Is(err, errLive):
				b.Errorf("start: %v", err)
			}
		})
	}
	wg.Wait()
	close(saw)
	if won.Load() != 1 {
		b.Fatalf("%d of 20 won", won.Load())
	}
	id := <-winner
	for s := range saw {
		if s != id {
			b.Errorf("a loser saw %s, the winner is %s", s, id)
		}
	}
	rs, err := b.Store.Sagas(b.ctx, store.SagaFilter{Aggregate: p.ID, Limit: 10})
	if err != nil || len(rs) != 1 {
		b.Errorf("%d sagas, %v", len(rs), err)
	}
	b.audit([]string{id})
}

func startSupersedes(b *bench) {
	old := b.start()
	b.must(b.finish(b.claimOne(), saga.FailWith(saga.Deterministic, "conflict", ""), nil).Err, "fail")
	next, err := b.Store.StartPull(b.ctx, old.AggregateID, func(p store.Pull, l *store.Locked, now time.Time) (store.StartPull, error) {
		if l == nil || l.Row.ID != old.ID || l.Row.State != broken || !l.Held {
			b.Errorf("old saga: %+v", l)
			return store.StartPull{}, errors.New("no old saga")
		}
		end, err := decided(saga.Decide(trial, l.Row, saga.Event{Name: saga.Superseded, Actor: "ada", At: now}, saga.Settings{}))
		if err != nil {
			return store.StartPull{}, err
		}
		out, err := starts(p, now, working)
		out.Old = &end
		return out, err
	})
	b.must(err, "start the next")
	b.wantState(old.ID, replaced)
	b.wantState(next.ID, working)
	p, err := b.Store.Pull(b.ctx, old.AggregateID)
	if err != nil || p.OperationID != next.ID || p.SagaStatus != "merging" {
		b.Errorf("pull request %+v, %v", p, err)
	}
	if c := b.claimOne(); c.Row.ID != next.ID {
		b.Errorf("claimed %+v", c.Row)
	}
	b.audit([]string{old.ID, next.ID})
}

func refusedStartWritesNothing(b *bench) {
	old := b.start()
	start := func(spoil func(*store.StartPull) error) error {
		_, err := b.Store.StartPull(b.ctx, old.AggregateID, func(p store.Pull, l *store.Locked, now time.Time) (store.StartPull, error) {
			end, err := decided(saga.Decide(trial, l.Row, saga.Event{Name: saga.Superseded, At: now}, saga.Settings{}))
			if err != nil {
				return store.StartPull{}, err
			}
			out, err := starts(p, now, working)
			out.Old = &end
			return out, errors.Join(err, spoil(&out))
		})
		return err
	}
	refusal := errors.New("not now")
	b.unchanged(old.ID, func() {
		b.wantErr(start(func(*store.StartPull) error { return refusal }), refusal, "decide's own error")
		b.wantErr(start(func(s *store.StartPull) error { s.New.Row.About.Title = "\x00"; return nil }), store.ErrConflict, "a NUL")
		b.wantErr(start(func(s *store.StartPull) error { s.New.Row.ID = old.ID; return nil }), store.ErrConflict, "an id that is taken")
		b.wantErr(start(func(s *store.StartPull) error { s.New.Row.ID = "x"; return nil }), store.ErrConflict, "an id that is no uuid")
	})
	_, err := b.Store.StartPull(b.ctx, newID(), func(p store.Pull, _ *store.Locked, now time.Time) (store.StartPull, error) {
		return starts(p, now, working)
	})
	b.wantErr(err, store.ErrNotFound, "of no pull request")
	rs, err := b.Store.Sagas(b.ctx, store.SagaFilter{Limit: 10})
	if err != nil || len(rs) != 1 {
		b.Errorf("%d sagas, %v", len(rs), err)
	}
	b.audit([]string{old.ID})
}

func watchersAndReceipts(b *bench) {
	p, err := b.Store.CreatePull(b.ctx, store.Pull{ID: newID(), Forge: "default", Repo: repo, ForgeState: "open", Source: "s", Target: "main", Title: "t"}, []string{"bob", "ada", "bob"})
	b.must(err, "create pull request")
	b.must(b.Store.AddWatchers(b.ctx, p.ID, []string{"cleo", "ada"}), "add watchers")
	if ws, err := b.Store.Watchers(b.ctx, p.ID); err != nil || !sameSet(ws, []string{"ada", "bob", "cleo"}) {
		b.Errorf("watchers %v, %v", ws, err)
	}
	b.wantErr(b.Store.AddWatchers(b.ctx, newID(), []string{"ada"}), store.ErrNotFound, "watch nothing")
	if ws, err := b.Store.Watchers(b.ctx, newID()); err != nil || len(ws) != 0 {
		b.Errorf("watchers of nothing: %v, %v", ws, err)
	}

	row := b.start()
	first := store.Receipt{Recipient: "ada", DeliveryID: newID(), At: b.now()}
	b.must(b.Store.AddReceipt(b.ctx, row.ID, first), "add receipt")
	b.must(b.Store.AddReceipt(b.ctx, row.ID, store.Receipt{Recipient: "ada", DeliveryID: newID(), At: b.now()}), "add it again")
	b.must(b.Store.AddReceipt(b.ctx, row.ID, store.Receipt{Recipient: "bob", DeliveryID: newID(), At: b.now()}), "add another")
	got, err := b.Store.Receipts(b.ctx, row.ID)
	b.must(err, "receipts")
	if len(got) != 2 || got["ada"].DeliveryID != first.DeliveryID || got["bob"].Recipient != "bob" || !about(got["ada"].At, first.At) {
		b.Errorf("receipts: %+v", got)
	}
	if got, err = b.Store.Receipts(b.ctx, newID()); err != nil || len(got) != 0 {
		b.Errorf("receipts of nothing: %+v, %v", got, err)
	}
}

func repositories(b *bench) {
	want := store.Repo{Name: "Team/app", DefaultBranch: "trunk", RequiredChecks: []string{"ci/test", "ci/lint"}, MergeStyle: "squash",
		RequireUpToDate: true, Reviewers: []string{"ada", "bob"}}
	made, err := b.Store.CreateRepo(b.ctx, want)
	b.must(err, "create")
	got, err := b.Store.Repo(b.ctx, "Team/app")
	b.must(err, "read")
	if d := cmp.Diff(made, got); d != "" || !about(got.CreatedAt, b.now()) {
		b.Errorf("made, read:\n%s", d)
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(store.Repo{}, "CreatedAt")); d != "" {
		b.Errorf("asked, read:\n%s", d)
	}
	for _, name := range []string{"Team/app", "team/APP"} {
		_, err = b.Store.CreateRepo(b.ctx, store.Repo{Name: name, DefaultBranch: "main", MergeStyle: "merge"})
		b.wantErr(err, store.ErrExists, "create "+name)
	}
	_, err = b.Store.CreateRepo(b.ctx, store.Repo{Name: "odd", DefaultBranch: "main", MergeStyle: "octopus"})
	b.wantErr(err, store.ErrConflict, "an unknown merge style")
	_, err = b.Store.Repo(b.ctx, "missing")
	b.wantErr(err, store.ErrNotFound, "a missing repository")

	for _, name := range []string{"aa", "bb", "cc"} {
		_, err := b.Store.CreateRepo(b.ctx, store.Repo{Name: name, DefaultBranch: "main", MergeStyle: "merge"})
		b.must(err, "create")
	}
	list := func(f store.RepoFilter) (out []string) {
		b.Helper()
		rs, err := b.Store.Repos(b.ctx, f)
		b.must(err, "list")
		for _, r := range rs {
			out = append(out, r.Name)
		}
		return out
	}
	if got := list(store.RepoFilter{Limit: 10}); !sameSet(got, []string{"Team/app", "aa", "bb", "cc", repo}) {
		b.Errorf("listed %v", got)
	}
	if got := list(store.RepoFilter{Query: "EAM/", Limit: 10}); !slices.Equal(got, []string{"Team/app"}) {
		b.Errorf("queried %v", got)
	}
	if got := list(store.RepoFilter{Query: "%", Limit: 10}); len(got) != 0 {
		b.Errorf("a query is no pattern: %v", got)
	}
	all := list(store.RepoFilter{Limit: 10})
	first := list(store.RepoFilter{Limit: 2})
	rest := list(store.RepoFilter{Limit: 10, After: first[1]})
	if !slices.Equal(append(first, rest...), all) {
		b.Errorf("pages %v and %v of %v", first, rest, all)
	}
	bare, err := b.Store.Repo(b.ctx, "aa")
	if err != nil || len(bare.RequiredChecks) != 0 || len(bare.Reviewers) != 0 {
		b.Errorf("bare repository %+v, %v", bare, err)
	}
}

func commitStatuses(b *bench) {
	set := func(sha, context, state, detail string) error {
		return b.Store.SetStatus(b.ctx, store.CommitStatus{Repo: repo, SHA: sha, Context: context, State: state, Description: detail, TargetURL: "https://ci/1"})
	}
	b.must(set("abc", "test", "pending", "queued"), "set")
	b.must(set("abc", "lint", "success", ""), "set")
	b.must(set("def", "test", "failure", ""), "set")
	b.Advance(time.Minute)
	b.must(set("abc", "test", "success", "42 passed"), "set again")
	late := store.CommitStatus{Repo: repo, SHA: "abc", Context: "test", State: "pending", UpdatedAt: b.now().Add(-30 * time.Second)}
	b.must(b.Store.SetStatus(b.ctx, late), "a status that comes late")
	b.wantErr(set("abc", "test", "maybe", ""), store.ErrConflict, "an unknown state")
	got, err := b.Store.Statuses(b.ctx, repo, "abc")
	b.must(err, "statuses")
	if len(got) != 2 || got[0].Context != "lint" || got[1].State != "success" || got[1].Description != "42 passed" || got[1].TargetURL != "https://ci/1" ||
		!about(got[1].UpdatedAt, b.now()) || got[1].SHA != "abc" || got[1].Repo != repo {
		b.Errorf("statuses: %+v", got)
	}
	if got, err = b.Store.Statuses(b.ctx, repo, "012"); err != nil || len(got) != 0 {
		b.Errorf("statuses of another commit: %+v, %v", got, err)
	}
}
