package forgetest

import (
	"fmt"
	"slices"

	"github.com/mergeflow/mergeflow/internal/forge"
)

var requestCases = []testCase{
	{"One open merge request of two branches", oneOpenRequest},
	{"A merge request with nothing in it", requestOfNothing},
	{"CloseMergeRequest", closeRequest},
	{"A merged one is never closed", closeMerged},
	{"Approvals are of one head", approvals},
	{"Approve refuses", approveRefuses},
}

// found lists "number state" of what FindMergeRequests finds.
func (b *bench) found(project, source, target string) []string {
	b.Helper()
	all, err := b.Forge.FindMergeRequests(b.ctx, project, source, target)
	b.must(err)
	out := []string{}
	for _, mr := range all {
		out = append(out, fmt.Sprint(mr.Ref.IID, " ", mr.State))
		if mr.Source != source || mr.Target != target || mr.Ref.Project != project || mr != b.look(mr.Ref) {
			b.Errorf("found %+v of %s into %s", mr, source, target)
		}
	}
	return out
}

func oneOpenRequest(b *bench) {
	project, mr := b.opened(forge.Repository{})
	_, err := b.Forge.OpenMergeRequest(b.ctx, request(project, "work"))
	b.kind(err, forge.KindExists, "a second open one")
	b.write(project, "release", mr.TargetSHA, text("r", "1"))
	other := request(project, "work")
	other.Target = "release"
	_, err = b.Forge.OpenMergeRequest(b.ctx, other)
	b.must(err)
	b.must(b.Forge.CloseMergeRequest(b.ctx, mr.Ref))
	third := b.open(project, "work")
	if third.Ref.IID != 3 {
		b.Errorf("a refused one took a number: %+v", third.Ref)
	}
	b.merge(input(third))
	b.write(project, "work", third.HeadSHA, text("more", "1"))
	b.open(project, "work")
	if got := b.found(project, "work", "main"); !slices.Equal(got, []string{"4 open", "3 merged", "1 closed"}) {
		b.Errorf("into main: %v", got)
	}
	if got := b.found(project, "work", "release"); !slices.Equal(got, []string{"2 open"}) {
		b.Errorf("into release: %v", got)
	}
	elsewhere, _ := b.opened(forge.Repository{})
	if got := b.found(elsewhere, "work", "main"); !slices.Equal(got, []string{"1 open"}) {
		b.Errorf("in another project: %v", got)
	}
}

func requestOfNothing(b *bench) {
	project, base := b.project(forge.Repository{})
	b.write(project, "work", base, nil)
	for _, source := range []string{"work"} {
		_, err := b.Forge.OpenMergeRequest(b.ctx, request(project, source))
		b.kind(err, forge.KindNothingToMerge, source)
	}
	b.write(project, "main", base, text("ahead", "1"))
	_, err := b.Forge.OpenMergeRequest(b.ctx, request(project, "work"))
	b.kind(err, forge.KindNothingToMerge, "an old commit of main")
	if got := b.found(project, "work", "main"); len(got) != 0 {
		b.Errorf("found %v", got)
	}
}

func closeRequest(b *bench) {
	project, mr := b.opened(forge.Repository{})
	for range 2 { // closed is no error
		b.must(b.Forge.CloseMergeRequest(b.ctx, mr.Ref))
		if s := b.look(mr.Ref).State; s != forge.Closed {
			b.Fatalf("it is %s", s)
		}
	}
	b.must(b.Second().CloseMergeRequest(b.ctx, mr.Ref))
	_, err := b.Forge.Merge(b.ctx, input(mr))
	b.kind(err, forge.KindClosed, "Merge of a closed one")
	if got := b.tip(project, "main"); got != mr.TargetSHA {
		b.Errorf("main moved to %s", got)
	}
	if got := b.tip(project, "work"); got != mr.HeadSHA {
		b.Errorf("its branch is at %q", got)
	}
}

func closeMerged(b *bench) {
	_, mr := b.opened(forge.Repository{})
	sha := b.merge(input(mr))
	b.kind(b.Forge.CloseMergeRequest(b.ctx, mr.Ref), forge.KindInvalid, "closing a merged one")
	b.kind(b.Second().CloseMergeRequest(b.ctx, mr.Ref), forge.KindInvalid, "closing a merged one")
	b.merged(mr, sha)
}

func (b *bench) approved(ref forge.Ref) []forge.Approval {
	b.Helper()
	a, err := b.Forge.Approvals(b.ctx, ref)
	b.must(err)
	return a
}

func approvals(b *bench) {
	project, mr := b.opened(forge.Repository{Reviewers: []string{"rex", "tim"}})
	if r, err := b.Forge.Reviewers(b.ctx, project); err != nil || !slices.Equal(r, []string{"rex", "tim"}) {
		b.Errorf("the reviewers: %v, %v", r, err)
	}
	nobody, _ := b.project(forge.Repository{})
	if r, err := b.Forge.Reviewers(b.ctx, nobody); err != nil || len(r) != 0 {
		b.Errorf("no reviewers: %v, %v", r, err)
	}
	if a := b.approved(mr.Ref); len(a) != 0 {
		b.Errorf("approved by nobody: %v", a)
	}
	for range 2 { // again is a no-op
		b.must(b.Forge.Approve(b.ctx, mr.Ref, "rex", mr.HeadSHA))
	}
	b.must(b.Forge.Approve(b.ctx, mr.Ref, "tim", mr.HeadSHA))
	if a := b.approved(mr.Ref); !slices.Equal(a, []forge.Approval{{Account: "rex", SHA: mr.HeadSHA}, {Account: "tim", SHA: mr.HeadSHA}}) {
		b.Errorf("approved by both: %v", a)
	}
	newer := b.write(project, "work", mr.HeadSHA, text("more", "1"))
	b.must(b.Forge.Approve(b.ctx, mr.Ref, "rex", newer))
	var of []string
	for _, a := range b.approved(mr.Ref) {
		if a.SHA == newer {
			of = append(of, a.Account)
		}
	}
	if !slices.Equal(of, []string{"rex"}) {
		b.Errorf("the newer head is approved by %v", of)
	}
}

func approveRefuses(b *bench) {
	project, mr := b.opened(forge.Repository{Reviewers: []string{"rex"}})
	b.kind(b.Forge.Approve(b.ctx, mr.Ref, "rex", mr.TargetSHA), forge.KindHeadMoved, "another commit")
	b.kind(b.Forge.Approve(b.ctx, mr.Ref, "rex", missing), forge.KindHeadMoved, "a commit that is not there")
	b.write(project, "work", mr.HeadSHA, text("more", "1"))
	b.kind(b.Forge.Approve(b.ctx, mr.Ref, "rex", mr.HeadSHA), forge.KindHeadMoved, "a head that moved on")
	head := b.look(mr.Ref).HeadSHA
	b.kind(b.Forge.Approve(b.ctx, mr.Ref, "mallory", head), forge.KindInvalid, "no reviewer")
	b.must(b.Forge.CloseMergeRequest(b.ctx, mr.Ref))
	b.kind(b.Forge.Approve(b.ctx, mr.Ref, "rex", head), forge.KindClosed, "a closed one")
	if a := b.approved(mr.Ref); len(a) != 0 {
		b.Errorf("approved: %v", a)
	}
}
