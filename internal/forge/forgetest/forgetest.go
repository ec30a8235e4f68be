// Package forgetest is the conformance suite of forges: one set of cases that
// every driver runs over real Git, so that they can't drift apart. Run holds a
// driver to forge.Changer (and so to forge.Forge), RunHost to forge.Host.
//
// Each write is tried with both faults: "failed, not applied" and "failed, but
// applied". The read that settles it must tell them apart, and the write done
// again, by another handle as after a crash, must end in the same place as one
// that went well.
package forgetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/forge"
)

// Harness is what a driver brings along.
type Harness struct {
	// Open makes an empty forge and cleans it up with t. It is called from
	// parallel tests.
	Open func(t testing.TB) Env
}

// Env is one forge.
type Env struct {
	Forge forge.Changer
	// Create makes an empty project; only what it says matters.
	Create func(ctx context.Context, r forge.Repository) error
	// Status posts a commit's status, as CI does.
	Status func(ctx context.Context, s forge.Status) error
	// Write commits onto a branch, as a user's push does: the files of parent
	// (of nothing, when it is empty) with these over them, and moves the branch to
	// it. Without files the branch moves to parent itself.
	Write func(ctx context.Context, project, branch, parent string, files Tree) (sha string, err error)
	// Log is a branch's first-parent history, the newest first.
	Log func(ctx context.Context, project, branch string) ([]Commit, error)
	// Git runs the stock client in a folder, and URL is where it reaches a project.
	Git func(ctx context.Context, dir string, args ...string) (string, error)
	URL func(project string) string
	// Fail lets the next call of a write on Forge fail once: before it has taken
	// effect, or after.
	Fail func(op Write, applied bool)
	// Second makes a handle like another process's on the same forge.
	Second func() forge.Changer
}

// Write names one of a forge's writes.
type Write string

// The writes that fail on demand.
const (
	Merge             Write = "Merge"
	CreateCommit      Write = "CreateCommit"
	OpenMergeRequest  Write = "OpenMergeRequest"
	CloseMergeRequest Write = "CloseMergeRequest"
	DeleteBranch      Write = "DeleteBranch"
	Approve           Write = "Approve"
)

// Commit is what a commit says.
type Commit struct {
	SHA     string
	Parents []string
	Message string
	Name    string // of the author
	Email   string
	When    time.Time
}

// Tree is files by path.
type Tree map[string]File

// File is a file as git has it. Mode is empty for a plain one; a submodule's
// content is its commit.
type File struct {
	Mode, Content string
}

func text(pathsAndContents ...string) Tree {
	t := Tree{}
	for i := 0; i < len(pathsAndContents); i += 2 {
		t[pathsAndContents[i]] = File{Content: pathsAndContents[i+1]}
	}
	return t
}

// Run holds a forge to forge.Changer, each case on a forge of its own and in
// parallel.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range slices.Concat(lookCases, mergeCases, changerCases, requestCases, faultCases, raceCases) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(&bench{T: t, Env: h.Open(t), ctx: t.Context()})
		})
	}
}

// A testCase is one promise of the interface.
type testCase struct {
	name string
	run  func(*bench)
}

// bench is a case with its forge.
type bench struct {
	*testing.T
	Env
	ctx  context.Context
	made atomic.Int64
}

// project makes a project with a first commit on main, and answers both.
func (b *bench) project(r forge.Repository) (name, base string) {
	b.Helper()
	if r.Name == "" {
		r.Name = fmt.Sprintf("team/app%d", b.made.Add(1))
	}
	b.must(b.Create(b.ctx, r))
	return r.Name, b.write(r.Name, "main", "", text("README.md", "hello\n", "conf/a.yaml", "limit: 100\n", "conf/b.yaml", "x: 1\n"))
}

func (b *bench) write(project, branch, parent string, files Tree) string {
	b.Helper()
	sha, err := b.Write(b.ctx, project, branch, parent, files)
	b.must(err)
	return sha
}

// opened is a merge request of branch "work" with one commit, into main.
func (b *bench) opened(r forge.Repository) (project string, mr forge.MergeRequest) {
	b.Helper()
	project, base := b.project(r)
	b.write(project, "work", base, text("conf/a.yaml", "limit: 200\n"))
	return project, b.open(project, "work")
}

func (b *bench) open(project, source string) forge.MergeRequest {
	b.Helper()
	mr, err := b.Forge.OpenMergeRequest(b.ctx, request(project, source))
	b.must(err)
	return mr
}

func request(project, source string) forge.NewMergeRequest {
	return forge.NewMergeRequest{Project: project, Source: source, Target: "main", Title: "Raise the limit", Description: "because", Author: "alice"}
}

// when is the date of the suite's commits.
var when = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// input asks to merge what mr shows.
func input(mr forge.MergeRequest) forge.MergeInput {
	return forge.MergeInput{
		Ref: mr.Ref, HeadSHA: mr.HeadSHA, OperationID: "op-" + fmt.Sprint(mr.Ref.IID), Title: "Raise the limit", Body: "Because.",
		Author: forge.Identity{Name: "Alice", Email: "alice@example.com"}, When: when,
	}
}

// change is a small change of conf/a.yaml.
func change(project, base, branch string) forge.NewChange {
	return forge.NewChange{
		Project: project, Base: base, Branch: branch, Message: "Raise the limit\n\nMergeflow-Operation: op-1\n", When: when,
		Author: forge.Identity{Name: "Alice", Email: "alice@example.com"},
		Files:  []forge.FileChange{{Path: "conf/a.yaml", Content: "limit: 200\n"}},
	}
}

func (b *bench) look(ref forge.Ref) forge.MergeRequest {
	b.Helper()
	mr, err := b.Forge.MergeRequest(b.ctx, ref)
	b.must(err)
	return mr
}

func (b *bench) log(project, branch string) []Commit {
	b.Helper()
	log, err := b.Log(b.ctx, project, branch)
	b.must(err)
	return log
}

// tip is where a branch stands; empty when it is gone.
func (b *bench) tip(project, branch string) string {
	b.Helper()
	br, err := b.Forge.Branch(b.ctx, project, branch)
	if forge.KindOf(err) == forge.KindNotFound {
		return ""
	}
	b.must(err)
	return br.SHA
}

// holds wants a file of a commit to have that content.
func (b *bench) holds(project, commit, path, content string) {
	b.Helper()
	files, err := b.Forge.Files(b.ctx, project, commit, []string{path})
	b.must(err)
	blob, err := b.Forge.Blob(b.ctx, project, content)
	b.must(err)
	if f := files[path]; f.Kind != forge.FileRegular || f.Blob != blob {
		b.Errorf("%s of %s is %+v, not %q", path, commit, f, content)
	}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// kind wants an error of that kind, as a *forge.Error that says what was asked.
func (b *bench) kind(err error, want forge.Kind, what string) {
	b.Helper()
	if err == nil || forge.KindOf(err) != want {
		b.Errorf("%s: %v, want the kind %s", what, err, want)
		return
	}
	if e, ok := errors.AsType[*forge.Error](err); !ok || e.Op == "" {
		b.Errorf("%s: %#v does not say what was asked", what, err)
	}
}

// field is kind for bad input, whose field is named.
func (b *bench) field(err error, want, what string) {
	b.Helper()
	b.kind(err, forge.KindInvalid, what)
	if e, ok := errors.AsType[*forge.Error](err); ok && e.Field != want {
		b.Errorf("%s: the field is %q, want %q (%v)", what, e.Field, want, err)
	}
}
