package localgit

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/forge/forgetest"
	"github.com/mergeflow/mergeflow/internal/store"
)

// request is an open merge request of one commit.
func (r *rig) request() forge.MergeRequest {
	r.Helper()
	ctx := r.Context()
	if _, err := r.host.CreateRepository(ctx, forge.Repository{Name: "app", Reviewers: []string{"rex"}}); err != nil {
		r.Fatal(err)
	}
	base := r.push("main", "", "README")
	r.push("work", base, "work")
	mr, err := r.host.OpenMergeRequest(ctx, forge.NewMergeRequest{Project: "app", Source: "work", Target: "main", Title: "Land it"})
	if err != nil {
		r.Fatal(err)
	}
	return mr
}

func (r *rig) push(branch, parent, file string) string {
	r.Helper()
	sha, err := r.write(r.Context(), "app", branch, parent, forgetest.Tree{file: {Content: file}})
	if err != nil {
		r.Fatal(err)
	}
	return sha
}

func mergeInput(mr forge.MergeRequest) forge.MergeInput {
	return forge.MergeInput{Ref: mr.Ref, HeadSHA: mr.HeadSHA, OperationID: "op-1", Title: "Land it", When: time.Unix(1800000000, 0)}
}

// at lets do happen once, when a write of the rig's host passes that place.
func (r *rig) at(point fault.Place, do func()) {
	once := false
	r.host.point = func(p fault.Place) error {
		if p == point && !once {
			once = true
			do()
		}
		return nil
	}
}

// A close and a merge meet at every place where one of them has looked and not
// yet written. Whatever happens there, exactly one of them takes place.
func TestCloseMeetsMerge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		point fault.Place
		merge bool // the merge is under way, and the close comes in between
		state forge.State
	}{
		"merged before the close writes":         {pointCloseBefore, false, forge.Merged},
		"closed before the merge writes":         {pointBefore, true, forge.Closed},
		"closed between marker and branch":       {pointMarked, true, forge.Closed},
		"closed after the branch has moved":      {pointSwapped, true, forge.Merged},
		"merged after the close has been marked": {pointCloseAfter, false, forge.Closed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			mr := r.request()
			other := r.second()
			merge := func(h *Host) forge.Kind {
				_, err := h.Merge(t.Context(), mergeInput(mr))
				return forge.KindOf(err)
			}
			closing := func(h *Host) forge.Kind { return forge.KindOf(h.CloseMergeRequest(t.Context(), mr.Ref)) }
			var first, between forge.Kind
			if c.merge {
				r.at(c.point, func() { between = closing(other) })
				first = merge(r.host)
			} else {
				r.at(c.point, func() { between = merge(other) })
				first = closing(r.host)
			}
			merged, closed := first, between
			if !c.merge {
				merged, closed = between, first
			}
			want := [2]forge.Kind{"", forge.KindInvalid}
			if c.state == forge.Closed {
				want = [2]forge.Kind{forge.KindClosed, ""}
			}
			if got := [2]forge.Kind{merged, closed}; got != want {
				t.Errorf("the merge and the close were told %q, want %q", got, want)
			}
			for _, h := range []*Host{r.host, other} {
				got, err := h.MergeRequest(t.Context(), mr.Ref)
				if err != nil || got.State != c.state || (got.TargetSHA != mr.TargetSHA) != (c.state == forge.Merged) {
					t.Errorf("it is %+v, %v, want %s", got, err, c.state)
				}
			}
			if p, err := r.db.PullByIID(t.Context(), "default", "app", 1); err != nil || p.ForgeState != string(c.state) {
				t.Errorf("the database says %+v, %v", p, err)
			}
		})
	}
}

// The target moves between look and swap: a merge is made anew, for the new target.
func TestTargetMovesDuringMerge(t *testing.T) {
	t.Parallel()
	for _, point := range []fault.Place{pointBefore, pointMarked} {
		r := newRig(t)
		mr := r.request()
		var tip string
		r.at(point, func() { tip = r.push("main", mr.TargetSHA, "meanwhile") })
		sha, err := r.host.Merge(t.Context(), mergeInput(mr))
		if err != nil {
			t.Fatal(err)
		}
		log, err := r.log(t.Context(), "app", "main")
		if err != nil || len(log) != 3 || log[0].SHA != sha || !slices.Equal(log[0].Parents, []string{tip, mr.HeadSHA}) {
			t.Errorf("%v: main is %+v, %v", point, log, err)
		}
	}
}

// brokenStore is a database that does what it is asked and fails all the same,
// or fails without.
type brokenStore struct {
	store.Forge
	create, set func() (applied bool, err error)
}

func (s *brokenStore) CreatePull(ctx context.Context, p store.Pull, watchers []string) (store.Pull, error) {
	applied, err := s.create()
	if err != nil && !applied {
		return store.Pull{}, err
	}
	p, stored := s.Forge.CreatePull(ctx, p, watchers)
	return p, errors.Join(stored, err)
}

func (s *brokenStore) SetForgeState(ctx context.Context, id, state, commit string) error {
	if _, err := s.set(); err != nil {
		return err
	}
	return s.Forge.SetForgeState(ctx, id, state, commit)
}

func once(applied bool, err error) func() (bool, error) {
	return func() (bool, error) {
		e := err
		err = nil
		return applied, e
	}
}

func TestDatabaseFailsWhileOpening(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		applied bool
		err     error
		kind    forge.Kind
	}{
		{false, errors.New("connection refused"), forge.KindTransient},
		{true, store.ErrUnknown, forge.KindUnclear},
		{false, store.ErrUnknown, forge.KindUnclear},
		{true, context.DeadlineExceeded, forge.KindUnclear},
	} {
		r := newRig(t)
		mr := r.request()
		r.push("second", mr.TargetSHA, "second")
		r.host.Store = &brokenStore{Forge: r.db, create: once(c.applied, c.err), set: once(false, nil)}
		in := forge.NewMergeRequest{Project: "app", Source: "second", Target: "main", Title: "Second"}
		_, err := r.host.OpenMergeRequest(t.Context(), in)
		if forge.KindOf(err) != c.kind {
			t.Errorf("%+v: %v", c, err)
		}
		_, err = r.host.OpenMergeRequest(t.Context(), in)
		if want := map[bool]forge.Kind{true: forge.KindExists, false: ""}[c.applied]; forge.KindOf(err) != want {
			t.Errorf("%+v, again: %v", c, err)
		}
		if found, err := r.host.FindMergeRequests(t.Context(), "app", "second", "main"); err != nil || len(found) != 1 {
			t.Errorf("%+v: %+v, %v", c, found, err)
		}
	}
}

// What git has done is done, whether the database hears of it or not; the next
// look tells it.
func TestDatabaseFailsAfterGit(t *testing.T) {
	t.Parallel()
	for _, state := range []forge.State{forge.Merged, forge.Closed} {
		r := newRig(t)
		mr := r.request()
		down := errors.New("connection refused")
		broken := &brokenStore{Forge: r.db, set: func() (bool, error) { return false, down }}
		r.host.Store = broken
		var err error
		if state == forge.Merged {
			_, err = r.host.Merge(t.Context(), mergeInput(mr))
		} else {
			err = r.host.CloseMergeRequest(t.Context(), mr.Ref)
		}
		if err != nil {
			t.Errorf("%s: %v", state, err)
		}
		if got, err := r.host.MergeRequest(t.Context(), mr.Ref); err != nil || got.State != state {
			t.Errorf("looked at with the database as it was: %+v, %v", got, err)
		}
		row := func() store.Pull {
			t.Helper()
			p, err := r.db.PullByIID(t.Context(), "default", "app", 1)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		if p := row(); p.ForgeState != string(forge.Open) {
			t.Errorf("the database was not down: %+v", p)
		}
		down = nil
		got, err := r.host.MergeRequest(t.Context(), mr.Ref)
		if p := row(); err != nil || p.ForgeState != string(state) || p.MergeCommit != got.MergeCommit {
			t.Errorf("the database after a look: %+v, %v", p, err)
		}
	}
}

func TestWithoutStoreOfApprovals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mr := r.request()
	r.host.ApprovalStore = nil
	if err := r.host.Approve(t.Context(), mr.Ref, "rex", mr.HeadSHA); forge.KindOf(err) != forge.KindInvalid {
		t.Errorf("Approve = %v", err)
	}
	if _, err := r.host.Approvals(t.Context(), mr.Ref); forge.KindOf(err) != forge.KindInvalid {
		t.Errorf("Approvals = %v", err)
	}
}
