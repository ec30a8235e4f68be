package forgetest

import (
	"slices"
	"strings"

	"github.com/mergeflow/mergeflow/internal/forge"
)

var missing = strings.Repeat("1", 40)

var lookCases = []testCase{
	{"Looks at what is not there", looksAtNothing},
	{"Looks with bad input", looksWithBadInput},
	{"A merge request as it stands", mergeRequestAsItStands},
	{"Mergeability", mergeability},
	{"Checks are of one commit", checksOfOneCommit},
	{"Checks sum up", checksSumUp},
	{"Branch", branchLook},
	{"Files", filesLook},
}

func looksAtNothing(b *bench) {
	project, base := b.project(forge.Repository{})
	f := b.Forge
	for _, p := range []string{project, "nowhere"} {
		ref := forge.Ref{Project: p, IID: 7}
		_, err := f.MergeRequest(b.ctx, ref)
		b.kind(err, forge.KindNotFound, "MergeRequest")
		_, err = f.Mergeability(b.ctx, ref, base)
		b.kind(err, forge.KindNotFound, "Mergeability")
		in := input(forge.MergeRequest{Ref: ref, HeadSHA: base})
		_, err = f.Merge(b.ctx, in)
		b.kind(err, forge.KindNotFound, "Merge")
		b.kind(f.CloseMergeRequest(b.ctx, ref), forge.KindNotFound, "CloseMergeRequest")
		_, err = f.Approvals(b.ctx, ref)
		b.kind(err, forge.KindNotFound, "Approvals")
		b.kind(f.Approve(b.ctx, ref, "rex", base), forge.KindNotFound, "Approve")
		_, err = f.Branch(b.ctx, p, "none")
		b.kind(err, forge.KindNotFound, "Branch")
		_, err = f.Files(b.ctx, p, missing, []string{"a"})
		b.kind(err, forge.KindNotFound, "Files")
		_, err = f.CreateCommit(b.ctx, change(p, missing, "work"))
		b.kind(err, forge.KindNotFound, "CreateCommit")
		_, err = f.Diff(b.ctx, change(p, missing, "work"), 100)
		b.kind(err, forge.KindNotFound, "Diff")
		_, err = f.Digest(b.ctx, p, base, missing)
		b.kind(err, forge.KindNotFound, "Digest")
		_, err = f.MergeBase(b.ctx, p, base, missing)
		b.kind(err, forge.KindNotFound, "MergeBase")
	}
	_, err := f.Checks(b.ctx, "nowhere", base)
	b.kind(err, forge.KindNotFound, "Checks")
	_, err = f.Reviewers(b.ctx, "nowhere")
	b.kind(err, forge.KindNotFound, "Reviewers")
	_, err = f.FindMergeRequests(b.ctx, "nowhere", "a", "b")
	b.kind(err, forge.KindNotFound, "FindMergeRequests")
	b.kind(f.DeleteBranch(b.ctx, "nowhere", "a", base), forge.KindNotFound, "DeleteBranch")
	if found, err := f.FindMergeRequests(b.ctx, project, "none", "main"); err != nil || len(found) != 0 {
		b.Errorf("FindMergeRequests of nothing: %v, %v", found, err)
	}
}

func looksWithBadInput(b *bench) {
	project, mr := b.opened(forge.Repository{Reviewers: []string{"rex"}})
	f := b.Forge
	for _, sha := range []string{"", "main", "HEAD", "--all", mr.HeadSHA[:12], mr.HeadSHA + "~1", strings.ToUpper(mr.HeadSHA)} {
		_, err := f.Mergeability(b.ctx, mr.Ref, sha)
		b.kind(err, forge.KindInvalid, "Mergeability "+sha)
		_, err = f.Checks(b.ctx, project, sha)
		b.kind(err, forge.KindInvalid, "Checks "+sha)
		in := input(mr)
		in.HeadSHA = sha
		_, err = f.Merge(b.ctx, in)
		b.kind(err, forge.KindInvalid, "Merge "+sha)
		_, err = f.Files(b.ctx, project, sha, nil)
		b.kind(err, forge.KindInvalid, "Files "+sha)
		_, err = f.CreateCommit(b.ctx, change(project, sha, "new"))
		b.field(err, "base", "CreateCommit "+sha)
		_, err = f.Digest(b.ctx, project, mr.HeadSHA, sha)
		b.kind(err, forge.KindInvalid, "Digest "+sha)
		_, err = f.MergeBase(b.ctx, project, sha, mr.HeadSHA)
		b.kind(err, forge.KindInvalid, "MergeBase "+sha)
		b.kind(f.DeleteBranch(b.ctx, project, "work", sha), forge.KindInvalid, "DeleteBranch "+sha)
		b.kind(f.Approve(b.ctx, mr.Ref, "rex", sha), forge.KindInvalid, "Approve "+sha)
	}
	for _, name := range []string{"", "-x", "--force", "a..b", "a b", "a.lock", "HEAD", "@{1}", "a\x00", "a:b", "../../x"} {
		_, err := f.Branch(b.ctx, project, name)
		b.field(err, "branch", "Branch "+name)
		_, err = f.CreateCommit(b.ctx, change(project, mr.TargetSHA, name))
		b.field(err, "branch", "CreateCommit "+name)
		b.field(f.DeleteBranch(b.ctx, project, name, mr.HeadSHA), "branch", "DeleteBranch "+name)
		_, err = f.OpenMergeRequest(b.ctx, request(project, name))
		b.field(err, "source", "OpenMergeRequest "+name)
	}
	_, err := f.OpenMergeRequest(b.ctx, request(project, "none"))
	b.field(err, "source", "a source that is not there")
	in := request(project, "work")
	in.Target = "none"
	_, err = f.OpenMergeRequest(b.ctx, in)
	b.field(err, "target", "a target that is not there")
	_, err = f.OpenMergeRequest(b.ctx, request(project, "main"))
	b.field(err, "source", "a merge request of main into main")
	if got := b.look(mr.Ref); got.State != forge.Open || got.HeadSHA != mr.HeadSHA || b.tip(project, "main") != mr.TargetSHA {
		b.Errorf("bad input changed something: %+v", got)
	}
}

func mergeRequestAsItStands(b *bench) {
	project, base := b.project(forge.Repository{})
	head := b.write(project, "work", base, text("conf/a.yaml", "limit: 200\n"))
	mr := b.open(project, "work")
	want := forge.MergeRequest{
		Ref: forge.Ref{Project: project, IID: mr.Ref.IID}, ID: mr.ID, Title: "Raise the limit", Description: "because",
		Source: "work", Target: "main", State: forge.Open, HeadSHA: head, TargetSHA: base, URL: mr.URL,
	}
	if mr != want || mr.Ref.IID == 0 || mr.ID == "" {
		b.Errorf("as it was opened: %+v", mr)
	}
	if got := b.look(mr.Ref); got != want {
		b.Errorf("as it is looked at: %+v", got)
	}
	want.HeadSHA = b.write(project, "work", head, text("more", "1"))
	want.TargetSHA = b.write(project, "main", base, text("other", "1"))
	if got := b.look(mr.Ref); got != want {
		b.Errorf("after pushes: %+v", got)
	}
	b.must(b.Forge.DeleteBranch(b.ctx, project, "work", want.HeadSHA))
	if want.HeadSHA = ""; b.look(mr.Ref) != want {
		b.Errorf("without its branch: %+v", b.look(mr.Ref))
	}
	b.write(project, "second", base, text("x", "1"))
	if second := b.open(project, "second"); second.Ref.IID != mr.Ref.IID+1 || second.ID == mr.ID {
		b.Errorf("the second one: %+v after %+v", second, mr)
	}
}

func mergeability(b *bench) {
	project, base := b.project(forge.Repository{RequireUpToDate: true})
	head := b.write(project, "work", base, text("conf/a.yaml", "limit: 200\n"))
	mr := b.open(project, "work")
	try := func(head string) forge.Mergeability {
		b.Helper()
		m, err := b.Forge.Mergeability(b.ctx, mr.Ref, head)
		b.must(err)
		return m
	}
	if m := try(head); m.NothingToDo || m.Behind || len(m.Conflicts) > 0 || !m.MustBeCurrent {
		b.Errorf("a clean one: %+v", m)
	}
	if m := try(base); !m.NothingToDo {
		b.Errorf("what the target holds: %+v", m)
	}
	tip := b.write(project, "main", base, text("other", "1"))
	if m := try(head); m.NothingToDo || !m.Behind || len(m.Conflicts) > 0 {
		b.Errorf("behind: %+v", m)
	}
	b.write(project, "main", tip, text("conf/a.yaml", "limit: 300\n", "conf/b.yaml", "x: 2\n"))
	if m := try(head); !m.Behind || !slices.Equal(m.Conflicts, []string{"conf/a.yaml"}) {
		b.Errorf("in conflict: %+v", m)
	}
	_, err := b.Forge.Mergeability(b.ctx, mr.Ref, missing)
	b.kind(err, forge.KindNotFound, "a head that is not there")
	if b.look(mr.Ref).State != forge.Open || b.look(mr.Ref).HeadSHA != head {
		b.Error("a dry run changed something")
	}
}

func checksOfOneCommit(b *bench) {
	project, base := b.project(forge.Repository{RequiredChecks: []string{"build"}})
	head := b.write(project, "work", base, text("x", "1"))
	other := b.write(project, "work", head, text("x", "2"))
	b.must(b.Status(b.ctx, forge.Status{Project: project, SHA: head, Context: "build", State: "success"}))
	for sha, want := range map[string]forge.CheckState{head: forge.ChecksPassed, other: forge.ChecksPending, base: forge.ChecksPending} {
		if c, err := b.Forge.Checks(b.ctx, project, sha); err != nil || c.State != want {
			b.Errorf("the checks of %s: %+v, %v, want %s", sha, c, err, want)
		}
	}
	free, sha := b.project(forge.Repository{})
	if c, err := b.Forge.Checks(b.ctx, free, sha); err != nil || c.State != forge.ChecksPassed || len(c.Checks) != 0 {
		b.Errorf("no check is required: %+v, %v", c, err)
	}
}

func checksSumUp(b *bench) {
	project, sha := b.project(forge.Repository{RequiredChecks: []string{"build", "test"}})
	post := func(context, state string) {
		b.Helper()
		b.must(b.Status(b.ctx, forge.Status{Project: project, SHA: sha, Context: context, State: state, Description: "d", TargetURL: "https://ci.example.com/1"}))
	}
	want := func(state forge.CheckState, checks ...string) {
		b.Helper()
		c, err := b.Forge.Checks(b.ctx, project, sha)
		b.must(err)
		var got []string
		for _, x := range c.Checks {
			s := x.Context + " " + x.State
			if x.Required {
				s += " required"
			}
			got = append(got, s)
		}
		if c.State != state || !slices.Equal(got, checks) {
			b.Errorf("checks are %s: %q, want %s: %q", c.State, got, state, checks)
		}
	}
	want(forge.ChecksPending, "build missing required", "test missing required")
	post("build", "success")
	want(forge.ChecksPending, "build success required", "test missing required")
	post("test", "pending")
	post("another", "failure")
	want(forge.ChecksPending, "build success required", "test pending required", "another failure")
	post("test", "success")
	want(forge.ChecksPassed, "build success required", "test success required", "another failure")
	post("build", "pending") // run again
	want(forge.ChecksPending, "build pending required", "test success required", "another failure")
	post("test", "failure") // red while another one runs is red
	want(forge.ChecksFailed, "build pending required", "test failure required", "another failure")
	post("test", "error")
	want(forge.ChecksFailed, "build pending required", "test error required", "another failure")
	c, err := b.Forge.Checks(b.ctx, project, sha)
	b.must(err)
	if c.Checks[0].Description != "d" || c.Checks[0].TargetURL != "https://ci.example.com/1" {
		b.Errorf("what CI said is gone: %+v", c.Checks[0])
	}
}

func branchLook(b *bench) {
	project, base := b.project(forge.Repository{})
	sha, err := b.Forge.CreateCommit(b.ctx, change(project, base, "feature/x"))
	b.must(err)
	got, err := b.Forge.Branch(b.ctx, project, "feature/x")
	b.must(err)
	if got.Name != "feature/x" || got.SHA != sha || !slices.Equal(got.Parents, []string{base}) || !strings.Contains(got.Message, "Mergeflow-Operation: op-1") {
		b.Errorf("the branch: %+v", got)
	}
	_, err = b.Forge.Branch(b.ctx, project, "feature")
	b.kind(err, forge.KindNotFound, "a part of a branch's name")
}

func filesLook(b *bench) {
	project, base := b.project(forge.Repository{})
	commit := b.write(project, "main", base, Tree{
		"run.sh": {Mode: "100755", Content: "#!"}, "link": {Mode: "120000", Content: "conf"}, "sub": {Mode: "160000", Content: missing},
	})
	want := map[string]forge.FileKind{
		"README.md": forge.FileRegular, "conf/a.yaml": forge.FileRegular, "run.sh": forge.FileRegular, "conf": forge.FileDir,
		"none": forge.FileAbsent, "conf/none": forge.FileAbsent, "none/none": forge.FileAbsent, "link": forge.FileSymlink,
		"link/a.yaml": forge.FileSymlink, "sub": forge.FileOther, "sub/x/y": forge.FileOther, "README.md/x": forge.FileRegular,
	}
	var paths []string
	for p := range want {
		paths = append(paths, p)
	}
	got, err := b.Forge.Files(b.ctx, project, commit, paths)
	b.must(err)
	if len(got) != len(want) {
		b.Errorf("%d paths were asked, %d answered", len(want), len(got))
	}
	for p, kind := range want {
		if got[p].Kind != kind {
			b.Errorf("%s is %q, want %q", p, got[p].Kind, kind)
		}
	}
	b.holds(project, commit, "conf/a.yaml", "limit: 100\n")
	b.holds(project, commit, "run.sh", "#!")
	if got, err := b.Forge.Files(b.ctx, project, commit, nil); err != nil || len(got) != 0 {
		b.Errorf("no paths: %v, %v", got, err)
	}
	_, err = b.Forge.Files(b.ctx, project, commit, []string{"README.md", "../x"})
	b.field(err, "files[1].path", "a path that leads out")
}
