package forgetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mergeflow/mergeflow/internal/forge"
)

var raceCases = []testCase{
	{"Racers create one branch", raceCreate},
	{"Racers create the same commit", raceSameCommit},
	{"Racers open one merge request", raceOpen},
	{"Racers merge one merge request", raceMerge},
	{"Merges meet at one target", raceTarget},
	{"A close meets a merge", raceClose},
	{"A delete meets a push", raceDelete},
	{"A merge meets pushes", raceMergePush},
}

// together runs n calls at once, by turns on both handles.
func (b *bench) together(n int, do func(i int, f forge.Changer) error) []error {
	handles := []forge.Changer{b.Forge, b.Second()}
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = do(i, handles[i%len(handles)])
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// winner wants exactly one without an error, all others with that kind.
func (b *bench) winner(errs []error, others forge.Kind) int {
	b.Helper()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won >= 0:
			b.Errorf("racers %d and %d both won", won, i)
		case err == nil:
			won = i
		case forge.KindOf(err) != others:
			b.Errorf("racer %d: %v, want the kind %s", i, err, others)
		}
	}
	if won < 0 {
		b.Fatal("nobody won")
	}
	return won
}

func raceCreate(b *bench) {
	project, base := b.project(forge.Repository{})
	shas := make([]string, 6)
	errs := b.together(len(shas), func(i int, f forge.Changer) (err error) {
		in := change(project, base, "work")
		in.Files[0].Content = fmt.Sprintf("limit: %d\n", 1000+i)
		shas[i], err = f.CreateCommit(b.ctx, in)
		return err
	})
	won := b.winner(errs, forge.KindExists)
	if got := b.tip(project, "work"); got != shas[won] {
		b.Errorf("the branch is at %s, the winner made %s", got, shas[won])
	}
	b.holds(project, shas[won], "conf/a.yaml", fmt.Sprintf("limit: %d\n", 1000+won))
}

func raceSameCommit(b *bench) {
	project, base := b.project(forge.Repository{})
	shas := make([]string, 6)
	errs := b.together(len(shas), func(i int, f forge.Changer) (err error) {
		shas[i], err = f.CreateCommit(b.ctx, change(project, base, "work"))
		return err
	})
	won := b.winner(errs, forge.KindExists)
	if log := b.log(project, "work"); len(log) != 2 || log[0].SHA != shas[won] {
		b.Errorf("the branch: %+v", log)
	}
}

func raceOpen(b *bench) {
	project, base := b.project(forge.Repository{})
	b.write(project, "work", base, text("x", "1"))
	b.winner(b.together(6, func(_ int, f forge.Changer) error {
		_, err := f.OpenMergeRequest(b.ctx, request(project, "work"))
		return err
	}), forge.KindExists)
	if got := b.found(project, "work", "main"); len(got) != 1 {
		b.Errorf("found %v", got)
	}
}

func raceMerge(b *bench) {
	for _, style := range []forge.MergeStyle{forge.MergeCommit, forge.SquashCommit} {
		_, mr := b.opened(forge.Repository{MergeStyle: style})
		shas := make([]string, 6)
		for i, err := range b.together(len(shas), func(i int, f forge.Changer) (err error) {
			in := input(mr)
			in.Title = fmt.Sprint("racer ", i) // each has its own idea of the commit
			shas[i], err = f.Merge(b.ctx, in)
			return err
		}) {
			if err != nil || shas[i] != shas[0] {
				b.Errorf("%s: racer %d: %s, %v, the first: %s", style, i, shas[i], err, shas[0])
			}
		}
		b.merged(mr, shas[0])
	}
}

func raceTarget(b *bench) {
	project, base := b.project(forge.Repository{})
	var mrs []forge.MergeRequest
	for i := range 5 {
		branch := fmt.Sprint("work", i)
		b.write(project, branch, base, text(branch, "1"))
		mrs = append(mrs, b.open(project, branch))
	}
	shas := make([]string, len(mrs))
	for i, err := range b.together(len(mrs), func(i int, f forge.Changer) (err error) {
		shas[i], err = f.Merge(b.ctx, input(mrs[i]))
		return err
	}) {
		if err != nil {
			b.Errorf("merge %d: %v", i, err)
			continue
		}
		b.merged(mrs[i], shas[i])
	}
	if log := b.log(project, "main"); len(log) != len(mrs)+1 {
		b.Errorf("main has %d commits in a row, want %d", len(log), len(mrs)+1)
	}
}

func raceClose(b *bench) {
	for range 4 {
		project, mr := b.opened(forge.Repository{})
		errs := b.together(4, func(i int, f forge.Changer) error {
			if i%4 < 2 {
				return f.CloseMergeRequest(b.ctx, mr.Ref)
			}
			_, err := f.Merge(b.ctx, input(mr))
			return err
		})
		state := b.look(mr.Ref).State
		want := map[forge.State][4]forge.Kind{
			forge.Merged: {forge.KindInvalid, forge.KindInvalid, "", ""},
			forge.Closed: {"", "", forge.KindClosed, forge.KindClosed},
		}[state]
		for i, err := range errs {
			if forge.KindOf(err) != want[i] {
				b.Errorf("it is %s in the end, and call %d was told %v", state, i, err)
			}
		}
		moved := b.tip(project, "main") != mr.TargetSHA
		if moved != (state == forge.Merged) {
			b.Errorf("it is %s, and main moved: %v", state, moved)
		}
		if other, err := b.Second().MergeRequest(b.ctx, mr.Ref); err != nil || other.State != state {
			b.Errorf("it is %s to one, %s to another (%v)", state, other.State, err)
		}
	}
}

// clone is a user's copy of a project.
func (b *bench) clone(project string) string {
	b.Helper()
	dir := b.TempDir()
	b.git(dir, "clone", "-q", b.URL(project), ".")
	return dir
}

func (b *bench) git(dir string, args ...string) string {
	b.Helper()
	out, err := b.Git(b.ctx, dir, args...)
	if err != nil {
		b.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(out)
}

func raceDelete(b *bench) {
	for range 3 {
		project, base := b.project(forge.Repository{})
		head := b.write(project, "work", base, text("x", "1"))
		dir := b.clone(project)
		b.git(dir, "checkout", "-q", "work")
		b.git(dir, "commit", "-q", "--allow-empty", "-m", "theirs")
		theirs := b.git(dir, "rev-parse", "HEAD")
		errs := b.together(2, func(i int, f forge.Changer) error {
			if i == 0 {
				return f.DeleteBranch(b.ctx, project, "work", head)
			}
			_, err := b.Git(b.ctx, dir, "push", "-q", "origin", "work")
			return err
		})
		if errs[0] != nil && forge.KindOf(errs[0]) != forge.KindHeadMoved {
			// The push held the branch's lock for a moment.
			b.kind(errs[0], forge.KindTransient, "the delete")
		}
		switch tip := b.tip(project, "work"); {
		case errs[1] == nil && tip != theirs:
			b.Errorf("the push went well, and its commit is lost: the branch is at %q", tip)
		case errs[1] != nil && errs[0] == nil && tip != "":
			b.Errorf("it was deleted, the push failed, and the branch is at %s", tip)
		case forge.KindOf(errs[0]) == forge.KindHeadMoved && tip != theirs:
			b.Errorf("the branch is said to have moved, and is at %q", tip)
		}
	}
}

func raceMergePush(b *bench) {
	project, mr := b.opened(forge.Repository{})
	source, target := b.clone(project), b.clone(project)
	b.git(source, "checkout", "-q", "work")
	for _, dir := range []string{source, target} {
		b.git(dir, "commit", "-q", "--allow-empty", "-m", "theirs")
	}
	theirs := b.git(target, "rev-parse", "HEAD")
	var sha string
	errs := b.together(3, func(i int, f forge.Changer) (err error) {
		switch i {
		case 0:
			sha, err = f.Merge(b.ctx, input(mr))
		case 1:
			_, err = b.Git(b.ctx, source, "push", "-q", "origin", "work")
		default:
			_, err = b.Git(b.ctx, target, "push", "-q", "origin", "main")
		}
		return err
	})
	if errs[1] != nil {
		b.Errorf("a push that nothing is against: %v", errs[1])
	}
	if errs[0] == nil {
		b.merged(mr, sha)
	} else if k := forge.KindOf(errs[0]); k != forge.KindHeadMoved && k != forge.KindTransient {
		b.Errorf("the merge: %v", errs[0])
	}
	kept := slices.ContainsFunc(b.log(project, "main"), func(c Commit) bool { return c.SHA == theirs })
	if kept != (errs[2] == nil) {
		b.Errorf("the push to main was told %v, and main holds its commit: %v", errs[2], kept)
	}
}
