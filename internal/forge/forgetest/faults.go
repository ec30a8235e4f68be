package forgetest

import (
	"context"
	"fmt"
	"slices"

	"github.com/mergeflow/mergeflow/internal/forge"
)

var faultCases = func() []testCase {
	cases := []testCase{{"A cancelled call changes nothing", cancelled}}
	for _, op := range []Write{Merge, CreateCommit, OpenMergeRequest, CloseMergeRequest, DeleteBranch, Approve} {
		cases = append(cases,
			testCase{fmt.Sprintf("%s failed, not applied", op), func(b *bench) { b.fault(op, false) }},
			testCase{fmt.Sprintf("%s failed, but applied", op), func(b *bench) { b.fault(op, true) }})
	}
	return cases
}()

// A write is one of the forge's writes in a case of its own.
type write struct {
	do      func(ctx context.Context, f forge.Changer) error
	settle  func() bool  // the read: has it taken effect?
	again   []forge.Kind // what may come of doing it again once it has; none: it succeeds
	applied func()       // what must be true in the end, once
}

// fault lets a write fail, settles it by its read, and does it again.
func (b *bench) fault(op Write, applied bool) {
	w := b.prepare(op)
	if w.settle() {
		b.Fatal("it has taken effect before it was called")
	}
	b.Fail(op, applied)
	err := w.do(b.ctx, b.Forge)
	switch kind := forge.KindOf(err); {
	case applied && kind != forge.KindUnclear:
		b.Errorf("failed, but applied: %v, want the kind unclear", err)
	case !applied && kind != forge.KindTransient && kind != forge.KindUnclear:
		b.Errorf("failed, not applied: %v, want the kind transient or unclear", err)
	}
	if got := w.settle(); got != applied {
		b.Errorf("the read says that it has taken effect: %v", got)
	}
	// Another process finds the same and does it again.
	err = w.do(b.ctx, b.Second())
	if applied && len(w.again) > 0 {
		if !slices.Contains(w.again, forge.KindOf(err)) {
			b.Errorf("done again: %v, want a kind of %v", err, w.again)
		}
	} else if err != nil {
		b.Errorf("done again: %v", err)
	}
	if !w.settle() {
		b.Error("the read says that it has not taken effect")
	}
	w.applied()
}

func (b *bench) prepare(op Write) write {
	switch op {
	case CreateCommit:
		return b.prepareCommit()
	case DeleteBranch:
		return b.prepareDelete()
	case OpenMergeRequest:
		return b.prepareOpen()
	}
	project, mr := b.opened(forge.Repository{Reviewers: []string{"rex"}})
	state := func(want forge.State) func() bool {
		return func() bool { return b.look(mr.Ref).State == want }
	}
	switch op {
	case Merge:
		return write{
			do: func(ctx context.Context, f forge.Changer) error {
				_, err := f.Merge(ctx, input(mr))
				return err
			},
			settle:  state(forge.Merged),
			applied: func() { b.merged(mr, b.tip(project, "main")) },
		}
	case CloseMergeRequest:
		return write{
			do:     func(ctx context.Context, f forge.Changer) error { return f.CloseMergeRequest(ctx, mr.Ref) },
			settle: state(forge.Closed),
			applied: func() {
				if got := b.found(project, "work", "main"); !slices.Equal(got, []string{"1 closed"}) {
					b.Errorf("found %v", got)
				}
			},
		}
	default:
		return write{
			do:     func(ctx context.Context, f forge.Changer) error { return f.Approve(ctx, mr.Ref, "rex", mr.HeadSHA) },
			settle: func() bool { return len(b.approved(mr.Ref)) > 0 },
			applied: func() {
				if got := b.approved(mr.Ref); !slices.Equal(got, []forge.Approval{{Account: "rex", SHA: mr.HeadSHA}}) {
					b.Errorf("approved: %v", got)
				}
			},
		}
	}
}

func (b *bench) prepareCommit() write {
	project, base := b.project(forge.Repository{})
	in := change(project, base, "work")
	return write{
		do: func(ctx context.Context, f forge.Changer) error {
			_, err := f.CreateCommit(ctx, in)
			return err
		},
		settle: func() bool {
			br, err := b.Forge.Branch(b.ctx, project, "work")
			return err == nil && br.Message == in.Message
		},
		again: []forge.Kind{forge.KindExists},
		applied: func() {
			if log := b.log(project, "work"); len(log) != 2 || log[1].SHA != base {
				b.Errorf("the branch: %+v", log)
			}
			b.holds(project, b.tip(project, "work"), "conf/a.yaml", "limit: 200\n")
		},
	}
}

func (b *bench) prepareDelete() write {
	project, base := b.project(forge.Repository{})
	head := b.write(project, "work", base, text("x", "1"))
	return write{
		do:      func(ctx context.Context, f forge.Changer) error { return f.DeleteBranch(ctx, project, "work", head) },
		settle:  func() bool { return b.tip(project, "work") == "" },
		applied: func() { b.write(project, "work", base, text("x", "2")) }, // the name is free
	}
}

func (b *bench) prepareOpen() write {
	project, base := b.project(forge.Repository{})
	b.write(project, "work", base, text("x", "1"))
	return write{
		do: func(ctx context.Context, f forge.Changer) error {
			_, err := f.OpenMergeRequest(ctx, request(project, "work"))
			return err
		},
		settle: func() bool { return len(b.found(project, "work", "main")) > 0 },
		again:  []forge.Kind{forge.KindExists},
		applied: func() {
			if got := b.found(project, "work", "main"); !slices.Equal(got, []string{"1 open"}) {
				b.Errorf("found %v", got)
			}
		},
	}
}

func cancelled(b *bench) {
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	for _, op := range []Write{Merge, CreateCommit, OpenMergeRequest, CloseMergeRequest, DeleteBranch, Approve} {
		w := b.prepare(op)
		if err := w.do(ctx, b.Forge); forge.KindOf(err) != forge.KindTransient && forge.KindOf(err) != forge.KindUnclear {
			b.Errorf("%s: %v, want the kind transient or unclear", op, err)
		}
		if w.settle() {
			b.Errorf("%s has taken effect", op)
		}
		b.must(w.do(b.ctx, b.Forge))
	}
}
