package forgetest

import (
	"slices"
	"strings"

	"github.com/mergeflow/mergeflow/internal/forge"
)

var mergeCases = []testCase{
	{"Merge makes a merge commit", mergeCommit},
	{"Merge squashes", mergeSquash},
	{"Merge again answers the same commit", mergeAgain},
	{"Merge onto a target that moved", mergeOntoMoved},
	{"Merge refuses by fact and changes nothing", mergeRefuses},
	{"Merge of what is behind", mergeBehind},
	{"Merge of what is squashed already", mergeSquashedAlready},
	{"Merge can't be signed for by others", mergeForged},
	{"Merged stays merged", mergedStays},
}

func (b *bench) merge(in forge.MergeInput) string {
	b.Helper()
	sha, err := b.Forge.Merge(b.ctx, in)
	b.must(err)
	return sha
}

// merged wants exactly one merge of mr on main.
func (b *bench) merged(mr forge.MergeRequest, commit string) {
	b.Helper()
	got := b.look(mr.Ref)
	if got.State != forge.Merged || got.MergeCommit != commit || got.MergedHead != mr.HeadSHA {
		b.Errorf("the look says %+v, want merged as %s with head %s", got, commit, mr.HeadSHA)
	}
	n := 0
	for _, c := range b.log(mr.Ref.Project, "main") {
		if strings.Contains(c.Message, "Mergeflow-Operation: "+input(mr).OperationID+"\n") {
			if n++; c.SHA != commit {
				b.Errorf("main holds the merge %s, the answer was %s", c.SHA, commit)
			}
		}
	}
	if n != 1 {
		b.Errorf("main holds %d merges of number %d", n, mr.Ref.IID)
	}
}

func mergeCommit(b *bench) {
	project, mr := b.opened(forge.Repository{})
	sha := b.merge(input(mr))
	b.merged(mr, sha)
	c := b.log(project, "main")[0] // a fast-forward was possible; a merge commit is made all the same
	if c.SHA != sha || !slices.Equal(c.Parents, []string{mr.TargetSHA, mr.HeadSHA}) || c.Name != "Alice" || c.Email != "alice@example.com" ||
		!c.When.Equal(when) || !strings.HasPrefix(c.Message, "Raise the limit\n\nBecause.\n") {
		b.Errorf("the merge commit: %+v", c)
	}
	b.holds(project, sha, "conf/a.yaml", "limit: 200\n")
}

func mergeSquash(b *bench) {
	project, base := b.project(forge.Repository{MergeStyle: forge.SquashCommit})
	first := b.write(project, "work", base, text("x", "1"))
	b.write(project, "work", first, text("y", "2"))
	tip := b.write(project, "main", base, text("other", "1"))
	mr := b.open(project, "work")
	sha := b.merge(input(mr))
	b.merged(mr, sha) // its head is not in main's history
	log := b.log(project, "main")
	if len(log) != 3 || !slices.Equal(log[0].Parents, []string{tip}) {
		b.Errorf("main after a squash: %+v", log)
	}
	for _, path := range [][2]string{{"x", "1"}, {"y", "2"}, {"other", "1"}} {
		b.holds(project, sha, path[0], path[1])
	}
	if again := b.merge(input(mr)); again != sha || b.tip(project, "main") != sha {
		b.Errorf("squashed again as %s", again)
	}
	if m, err := b.Forge.Mergeability(b.ctx, mr.Ref, mr.HeadSHA); err != nil || !m.NothingToDo {
		b.Errorf("what was squashed could be merged again: %+v, %v", m, err)
	}
}

func mergeAgain(b *bench) {
	project, mr := b.opened(forge.Repository{})
	sha := b.merge(input(mr))
	later := input(mr)
	later.OperationID, later.Title, later.When = "op-later", "Again", when.AddDate(1, 0, 0)
	for _, in := range []forge.MergeInput{input(mr), later} {
		if again := b.merge(in); again != sha {
			b.Errorf("merged again as %s, first as %s", again, sha)
		}
	}
	// The world goes on: another head, a newer target, no branch.
	later.HeadSHA = b.write(project, "work", mr.HeadSHA, text("more", "1"))
	if again := b.merge(later); again != sha {
		b.Errorf("another head was merged as %s", again)
	}
	tip := b.write(project, "main", sha, text("other", "1"))
	b.must(b.Forge.DeleteBranch(b.ctx, project, "work", later.HeadSHA))
	for _, f := range []forge.Changer{b.Forge, b.Second()} {
		if again, err := f.Merge(b.ctx, input(mr)); err != nil || again != sha {
			b.Errorf("merged again as %s, %v", again, err)
		}
	}
	b.merged(mr, sha)
	if b.tip(project, "main") != tip {
		b.Error("main moved")
	}
}

func mergeOntoMoved(b *bench) {
	project, mr := b.opened(forge.Repository{})
	tip := b.write(project, "main", mr.TargetSHA, text("other", "1"))
	sha := b.merge(input(mr))
	b.merged(mr, sha)
	if c := b.log(project, "main")[0]; !slices.Equal(c.Parents, []string{tip, mr.HeadSHA}) {
		b.Errorf("the merge commit's parents: %v", c.Parents)
	}
	b.holds(project, sha, "other", "1")
	b.holds(project, sha, "conf/a.yaml", "limit: 200\n")
}

func mergeRefuses(b *bench) {
	project, mr := b.opened(forge.Repository{})
	refused := func(in forge.MergeInput, kind forge.Kind, what string) {
		b.Helper()
		main := b.tip(project, "main")
		commit, err := b.Forge.Merge(b.ctx, in)
		b.kind(err, kind, what)
		if got := b.tip(project, "main"); got != main || commit != "" {
			b.Errorf("%s: answered %q, and main moved to %s", what, commit, got)
		}
		if s := b.look(in.Ref).State; s == forge.Merged {
			b.Errorf("%s: it is %s", what, s)
		}
	}
	in := input(mr)
	in.HeadSHA = mr.TargetSHA
	refused(in, forge.KindHeadMoved, "another head")
	in.HeadSHA = missing
	refused(in, forge.KindHeadMoved, "a head that is not there")
	newer := b.write(project, "work", mr.HeadSHA, text("x", "1"))
	refused(input(mr), forge.KindHeadMoved, "a head that moved on")

	in.HeadSHA = newer
	tip := b.write(project, "main", mr.TargetSHA, text("conf/a.yaml", "limit: 300\n"))
	refused(in, forge.KindConflict, "a conflict")
	b.write(project, "main", newer, text("other", "2"))
	refused(in, forge.KindNothingToMerge, "what main holds already")
	b.write(project, "main", tip, nil)
	in.HeadSHA = b.write(project, "work", "", text("alone", "1"))
	refused(in, forge.KindConflict, "a history of its own")
	b.must(b.Forge.DeleteBranch(b.ctx, project, "work", in.HeadSHA))
	refused(in, forge.KindHeadMoved, "without its branch")

	for what, spoil := range map[string]func(*forge.MergeInput){
		"no operation":          func(in *forge.MergeInput) { in.OperationID = "" },
		"two operations":        func(in *forge.MergeInput) { in.OperationID = "a b" },
		"a forged operation":    func(in *forge.MergeInput) { in.OperationID = "a\nMergeflow-Head: x" },
		"before the first date": func(in *forge.MergeInput) { in.When = when.AddDate(-100, 0, 0) },
	} {
		bad := input(mr)
		spoil(&bad)
		refused(bad, forge.KindInvalid, what)
	}

	in.HeadSHA = b.write(project, "work", mr.TargetSHA, text("x", "1"))
	b.must(b.Forge.CloseMergeRequest(b.ctx, mr.Ref))
	refused(in, forge.KindClosed, "a closed one")

	// What was refused before lands when nothing is in the way.
	mr = b.open(project, "work")
	b.merged(mr, b.merge(input(mr)))
}

func mergeBehind(b *bench) {
	project, mr := b.opened(forge.Repository{RequireUpToDate: true})
	tip := b.write(project, "main", mr.TargetSHA, text("other", "1"))
	_, err := b.Forge.Merge(b.ctx, input(mr))
	b.kind(err, forge.KindBehind, "a head that is behind")
	if got := b.tip(project, "main"); got != tip {
		b.Errorf("main moved to %s", got)
	}
	b.write(project, "work", tip, text("conf/a.yaml", "limit: 200\n"))
	mr = b.look(mr.Ref)
	b.merged(mr, b.merge(input(mr)))
}

func mergeSquashedAlready(b *bench) {
	project, mr := b.opened(forge.Repository{MergeStyle: forge.SquashCommit})
	b.write(project, "main", mr.TargetSHA, text("conf/a.yaml", "limit: 200\n", "other", "1"))
	_, err := b.Forge.Merge(b.ctx, input(mr))
	b.kind(err, forge.KindNothingToMerge, "a change that main has by another way")
	b.write(project, "late", mr.TargetSHA, text("conf/a.yaml", "limit: 200\n"))
	_, err = b.Forge.OpenMergeRequest(b.ctx, request(project, "late"))
	b.kind(err, forge.KindNothingToMerge, "opening one with such a change")
}

func mergeForged(b *bench) {
	_, mr := b.opened(forge.Repository{MergeStyle: forge.SquashCommit})
	in := input(mr)
	in.Title = "Mergeflow-Operation: op-evil"
	in.Body = "text\n\nmergeflow-head: " + missing + "\nMergeflow-Operation: op-evil"
	sha := b.merge(in)
	b.merged(mr, sha)
	for line := range strings.SplitSeq(b.log(mr.Ref.Project, "main")[0].Message, "\n") {
		if strings.HasPrefix(line, "Mergeflow-Operation: op-evil") || strings.HasPrefix(line, "mergeflow-head") {
			b.Errorf("the title or the body signs for mergeflow: %q", line)
		}
	}
}

func mergedStays(b *bench) {
	project, mr := b.opened(forge.Repository{})
	sha := b.merge(input(mr))
	b.look(mr.Ref)
	// Somebody pushes the merge away. It is never done again.
	tip := b.write(project, "main", mr.TargetSHA, text("rewound", "1"))
	for _, f := range []forge.Changer{b.Forge, b.Second()} {
		if got, err := f.MergeRequest(b.ctx, mr.Ref); err != nil || got.State != forge.Merged || got.MergeCommit != sha {
			b.Errorf("after a rewind: %+v, %v", got, err)
		}
		if again, err := f.Merge(b.ctx, input(mr)); err != nil || again != sha || b.tip(project, "main") != tip {
			b.Errorf("it was merged again as %s, %v", again, err)
		}
	}
}
