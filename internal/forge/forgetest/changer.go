package forgetest

import (
	"slices"
	"strings"

	"github.com/mergeflow/mergeflow/internal/forge"
)

var changerCases = []testCase{
	{"CreateCommit makes one commit", createCommit},
	{"CreateCommit depends on its input alone", createSameCommit},
	{"CreateCommit keeps modes", createKeepsModes},
	{"CreateCommit finds the branch", createFindsBranch},
	{"CreateCommit of nothing", createNothing},
	{"CreateCommit refuses paths", createRefusesPaths},
	{"IsChange knows its own", isChange},
	{"Diff", diff},
	{"Digest", digest},
	{"MergeBase", mergeBase},
	{"DeleteBranch", deleteBranch},
}

func createCommit(b *bench) {
	project, base := b.project(forge.Repository{})
	in := change(project, base, "mergeflow/op-1")
	in.Files = append(in.Files,
		forge.FileChange{Path: "conf/b.yaml", Delete: true},
		forge.FileChange{Path: "new/deep/é.yaml", Content: "ü: 1\n"},
		forge.FileChange{Path: "empty"})
	sha, err := b.Forge.CreateCommit(b.ctx, in)
	b.must(err)
	if b.tip(project, "mergeflow/op-1") != sha || b.tip(project, "main") != base {
		b.Error("the branches are not where they should be")
	}
	c := b.log(project, "mergeflow/op-1")[0]
	if c.SHA != sha || !slices.Equal(c.Parents, []string{base}) || c.Name != "Alice" || c.Email != "alice@example.com" || !c.When.Equal(when) ||
		strings.TrimSpace(c.Message) != strings.TrimSpace(in.Message) {
		b.Errorf("the commit: %+v", c)
	}
	b.holds(project, sha, "conf/a.yaml", "limit: 200\n")
	b.holds(project, sha, "new/deep/é.yaml", "ü: 1\n")
	b.holds(project, sha, "empty", "")
	b.holds(project, sha, "README.md", "hello\n")
	files, err := b.Forge.Files(b.ctx, project, sha, []string{"conf/b.yaml"})
	b.must(err)
	if files["conf/b.yaml"].Kind != forge.FileAbsent {
		b.Errorf("the deleted file is there: %+v", files)
	}
}

func createSameCommit(b *bench) {
	project, base := b.project(forge.Repository{})
	in := change(project, base, "one")
	one, err := b.Forge.CreateCommit(b.ctx, in)
	b.must(err)
	b.must(b.Forge.DeleteBranch(b.ctx, project, "one", one))
	again, err := b.Second().CreateCommit(b.ctx, in)
	b.must(err)
	in.Branch = "two"
	two, err := b.Forge.CreateCommit(b.ctx, in)
	b.must(err)
	if again != one || two != one {
		b.Errorf("the same change became %s, %s and %s", one, again, two)
	}
	in.Branch, in.When = "three", when.AddDate(0, 0, 1)
	if three, err := b.Forge.CreateCommit(b.ctx, in); err != nil || three == one {
		b.Errorf("another date made %s, %v", three, err)
	}
}

func isChange(b *bench) {
	project, base := b.project(forge.Repository{})
	in := change(project, base, "own")
	own, err := b.Forge.CreateCommit(b.ctx, in)
	b.must(err)
	more := in
	more.Branch, more.Files = "more", append(slices.Clone(in.Files), forge.FileChange{Path: "evil.yaml", Content: "x: 1\n"})
	withMore, err := b.Forge.CreateCommit(b.ctx, more)
	b.must(err)
	other := in
	other.Branch, other.Files = "other", slices.Clone(in.Files)
	other.Files[0].Content += "# and more\n"
	changed, err := b.Forge.CreateCommit(b.ctx, other)
	b.must(err)
	second := other
	second.Branch, second.Base = "second", own
	onTop, err := b.Forge.CreateCommit(b.ctx, second)
	b.must(err)
	merged := b.write(project, "merged", base, text("elsewhere", "1"))
	for _, c := range []struct {
		name, head, parent string
		same               bool
	}{
		{"the change itself", own, base, true},
		{"a file more", withMore, base, false},
		{"another content", changed, base, false},
		{"on top of the change", onTop, own, false},
		{"another change", merged, base, false},
	} {
		parent, same, err := b.Forge.IsChange(b.ctx, in, c.head)
		if err != nil || same != c.same || parent != c.parent {
			b.Errorf("%s: %v on %.10s, %v", c.name, same, parent, err)
		}
	}
	// Whatever base and message it asks for: the files are what counts.
	again := in
	again.Base, again.Message = "", "another message"
	if _, same, err := b.Forge.IsChange(b.ctx, again, own); err != nil || !same {
		b.Errorf("%v %v", same, err)
	}
	_, _, err = b.Forge.IsChange(b.ctx, in, missing)
	if err == nil {
		b.Error("a commit that is not there was compared")
	}
}

func createKeepsModes(b *bench) {
	project, base := b.project(forge.Repository{})
	base = b.write(project, "main", base, Tree{"run.sh": {Mode: "100755", Content: "#!/bin/sh\n"}, "link": {Mode: "120000", Content: "run.sh"}})
	in := change(project, base, "work")
	in.Files = []forge.FileChange{{Path: "run.sh", Content: "#!/bin/sh\n:\n"}}
	sha, err := b.Forge.CreateCommit(b.ctx, in)
	b.must(err)
	dir := b.TempDir()
	if out, err := b.Git(b.ctx, dir, "clone", "-q", "--branch", "work", b.URL(project), "."); err != nil {
		b.Fatal(out, err)
	}
	out, err := b.Git(b.ctx, dir, "ls-tree", "-r", sha)
	b.must(err)
	for _, want := range []string{"100755 blob", "120000 blob"} {
		if !strings.Contains(out, want) {
			b.Errorf("a mode changed:\n%s", out)
		}
	}
}

func createFindsBranch(b *bench) {
	project, base := b.project(forge.Repository{})
	theirs := b.write(project, "work", base, text("theirs", "1"))
	_, err := b.Forge.CreateCommit(b.ctx, change(project, base, "work"))
	b.kind(err, forge.KindExists, "a branch that is there")
	if got := b.tip(project, "work"); got != theirs {
		b.Errorf("their branch is at %s", got)
	}
	for _, name := range []string{"work/below", "conf"} {
		if name == "conf" {
			b.write(project, "conf/above", base, nil)
		}
		_, err := b.Forge.CreateCommit(b.ctx, change(project, base, name))
		b.field(err, "branch", "a name inside or around another one")
	}
}

func createNothing(b *bench) {
	project, base := b.project(forge.Repository{})
	in := change(project, base, "work")
	in.Files = []forge.FileChange{{Path: "conf/a.yaml", Content: "limit: 100\n"}, {Path: "none", Delete: true}}
	_, err := b.Forge.CreateCommit(b.ctx, in)
	b.kind(err, forge.KindNothingToMerge, "a change of nothing")
	if got := b.tip(project, "work"); got != "" {
		b.Errorf("there is a branch at %s", got)
	}
	if text, err := b.Forge.Diff(b.ctx, in, 1000); err != nil || text != "" {
		b.Errorf("the diff of nothing: %q, %v", text, err)
	}
}

func createRefusesPaths(b *bench) {
	project, base := b.project(forge.Repository{})
	base = b.write(project, "main", base, Tree{"link": {Mode: "120000", Content: "conf"}, "out": {Mode: "120000", Content: "/etc"}, "sub": {Mode: "160000", Content: missing}})
	for _, path := range []string{"", "/etc/passwd", "../x", "conf/../../x", "./x", "conf//x", "conf/", ".git/config", "conf/.GIT/hooks/x", "a\x00b", "a\nb",
		"link", "link/x", "out/passwd", "sub", "sub/x", "conf", "README.md/x"} {
		in := change(project, base, "work")
		in.Files = append(in.Files, forge.FileChange{Path: path, Content: "x"})
		_, err := b.Forge.CreateCommit(b.ctx, in)
		b.field(err, "files[1].path", "CreateCommit "+path)
		_, err = b.Forge.Diff(b.ctx, in, 1000)
		b.field(err, "files[1].path", "Diff "+path)
	}
	in := change(project, base, "work")
	in.Files = append(in.Files, forge.FileChange{Path: "conf/a.yaml/below", Content: "x"})
	_, err := b.Forge.CreateCommit(b.ctx, in)
	b.field(err, "files[1].path", "below another file of the change")
	in.Files = append(change(project, base, "work").Files, in.Files[0])
	_, err = b.Forge.CreateCommit(b.ctx, in)
	b.field(err, "files[1].path", "one path twice")
	if got := b.tip(project, "work"); got != "" {
		b.Errorf("there is a branch at %s", got)
	}
}

func diff(b *bench) {
	project, base := b.project(forge.Repository{})
	in := change(project, base, "work")
	in.Files = append(in.Files, forge.FileChange{Path: "README.md", Delete: true}, forge.FileChange{Path: "n", Content: strings.Repeat("a line\n", 1000)})
	text, err := b.Forge.Diff(b.ctx, in, 1<<20)
	b.must(err)
	for _, line := range []string{"--- a/conf/a.yaml", "+++ b/conf/a.yaml", "-limit: 100", "+limit: 200", "-hello", "+a line"} {
		if !strings.Contains(text, line+"\n") {
			b.Errorf("the diff lacks %q", line)
		}
	}
	short, err := b.Forge.Diff(b.ctx, in, 500)
	b.must(err)
	if len(short) > 500 || len(short) < 400 || !strings.HasSuffix(short, "\n") || !strings.HasPrefix(text, short) {
		b.Errorf("cut at 500 bytes: %d bytes", len(short))
	}
	if got := b.tip(project, "work"); got != "" {
		b.Errorf("there is a branch at %s", got)
	}
}

func digest(b *bench) {
	project, base := b.project(forge.Repository{})
	head, err := b.Forge.CreateCommit(b.ctx, change(project, base, "one"))
	b.must(err)
	of := func(from, to string) string {
		b.Helper()
		d, err := b.Forge.Digest(b.ctx, project, from, to)
		b.must(err)
		return d
	}
	moved := b.write(project, "main", base, text("other", "1", "conf/b.yaml", "x: 2\n"))
	rebased, err := b.Forge.CreateCommit(b.ctx, change(project, moved, "two"))
	b.must(err)
	if of(base, head) != of(moved, rebased) {
		b.Error("the same change on another base has another digest")
	}
	if of(base, base) != of(head, head) || of(base, base) == "" || of(base, base) == of(base, head) {
		b.Error("a change of nothing has no digest of its own")
	}
	for _, content := range []string{"limit: 201\n", "  limit: 200\n", "limit: 200", "limit:  200\n"} {
		in := change(project, base, "n")
		in.Files[0].Content = content
		other, err := b.Forge.CreateCommit(b.ctx, in)
		b.must(err)
		if of(base, other) == of(base, head) {
			b.Errorf("%q has the digest of another change", content)
		}
		b.must(b.Forge.DeleteBranch(b.ctx, project, "n", other))
	}
}

func mergeBase(b *bench) {
	project, base := b.project(forge.Repository{})
	one := b.write(project, "one", base, text("x", "1"))
	two := b.write(project, "two", base, text("y", "1"))
	alone := b.write(project, "alone", "", text("z", "1"))
	for _, c := range [][3]string{{one, two, base}, {two, one, base}, {one, base, base}, {one, one, one}} {
		if got, err := b.Forge.MergeBase(b.ctx, project, c[0], c[1]); err != nil || got != c[2] {
			b.Errorf("MergeBase = %s, %v, want %s", got, err, c[2])
		}
	}
	_, err := b.Forge.MergeBase(b.ctx, project, one, alone)
	b.kind(err, forge.KindConflict, "no commit in common")
}

func deleteBranch(b *bench) {
	project, base := b.project(forge.Repository{})
	sha, err := b.Forge.CreateCommit(b.ctx, change(project, base, "work"))
	b.must(err)
	b.kind(b.Forge.DeleteBranch(b.ctx, project, "work", base), forge.KindHeadMoved, "a branch that stands elsewhere")
	if b.tip(project, "work") != sha {
		b.Error("the branch moved")
	}
	for range 2 { // absent is no error
		b.must(b.Forge.DeleteBranch(b.ctx, project, "work", sha))
		if got := b.tip(project, "work"); got != "" {
			b.Errorf("the branch is at %s", got)
		}
	}
	b.kind(b.Forge.DeleteBranch(b.ctx, project, "main", base), forge.KindInvalid, "the default branch")
	if b.tip(project, "main") != base {
		b.Error("the default branch is gone")
	}
}
