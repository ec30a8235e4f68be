package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// story is what has been told so far.
type story struct {
	*world
	*voice
	told []*operation
}

// operation is one run of a flow that the story began, and what it came to.
type operation struct {
	id, flow, state, status string
	pull                    httpapi.Pull
	mergeCommit             string
	merges                  int // that git has for it
	seen                    string
	title, content          string // a change's
}

var watchers = []string{"alice", "bob"}

// The lines that the two pull requests bring.
const (
	firstLine  = "hello, you"
	secondLine = "goodbye, and come back soon"
)

func (s *story) play(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.goesWell(ctx); err != nil {
		return fmt.Errorf("first pull request: %w", err)
	}
	if err := s.indexDown(ctx); err != nil {
		return fmt.Errorf("second pull request: %w", err)
	}
	if err := s.changes(ctx); err != nil {
		return err
	}
	s.say("Looked up:")
	return errors.Join(s.checkPulls(ctx), s.checkChanges(ctx))
}

// prepare makes the repository and its first commit, pushed over HTTP.
func (s *story) prepare(ctx context.Context) error {
	r, err := s.api.CreateRepo(ctx, httpapi.NewRepository{Name: repo})
	if err != nil {
		return err
	}
	if _, err := s.git(ctx, s.dir, "clone", "-q", r.CloneURL, s.clone()); err != nil {
		return err
	}
	if _, err := s.git(ctx, s.clone(), "symbolic-ref", "HEAD", "refs/heads/main"); err != nil {
		return err
	}
	return s.push(ctx, "main", "greeting.txt", "hello\n", "A greeting")
}

// push writes a file, commits it on the branch that is checked out and pushes it.
func (s *story) push(ctx context.Context, branch, file, content, message string) error {
	if err := os.WriteFile(filepath.Join(s.clone(), file), []byte(content), 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{{"add", file}, {"commit", "-q", "-m", message}, {"push", "-q", "origin", branch}} {
		if _, err := s.git(ctx, s.clone(), args...); err != nil {
			return err
		}
	}
	return nil
}

// open pushes a branch with one change and opens a pull request for it.
func (s *story) open(ctx context.Context, branch, file, content, title string) (*operation, error) {
	for _, args := range [][]string{{"switch", "-q", "main"}, {"pull", "-q", "--ff-only", "origin", "main"}, {"switch", "-q", "-c", branch}} {
		if _, err := s.git(ctx, s.clone(), args...); err != nil {
			return nil, err
		}
	}
	if err := s.push(ctx, branch, file, content, title); err != nil {
		return nil, err
	}
	p, err := s.api.CreatePull(ctx, httpapi.NewPull{Repo: repo, Source: branch, Target: "main", Title: title, Watchers: watchers})
	if err != nil {
		return nil, err
	}
	s.say("   git push: branch %s at %s", branch, short(p.HeadSHA))
	s.say("   pull request %s!%d %q, watched by %s", repo, p.IID, title, strings.Join(watchers, " and "))
	a, err := s.api.MergePull(ctx, p.ID, p.HeadSHA)
	if err != nil {
		return nil, err
	}
	op := &operation{id: a.OperationID, flow: "pull", pull: p}
	s.told = append(s.told, op)
	return op, nil
}

// follow tells each transition until nothing happens by itself any more.
func (s *story) follow(ctx context.Context, op *operation) (httpapi.Operation, error) {
	for ev, err := range s.api.Watch(ctx, op.id, op.seen) {
		if err != nil {
			return httpapi.Operation{}, err
		}
		if e := ev.Entry; e != nil {
			op.seen = ev.ID
			s.moved(op, *e)
		}
		if o := ev.Operation; o != nil {
			op.state, op.status = o.State, o.Status
			if o.MergeRequest != nil {
				op.mergeCommit = o.MergeRequest.MergeCommit
			}
			if o.Failed() || o.Final() {
				return *o, nil
			}
		}
	}
	return httpapi.Operation{}, errors.New("the server ended the watch")
}

func (s *story) goesWell(ctx context.Context) error {
	s.say("1. A pull request, from push to merged")
	op, err := s.open(ctx, "warmer", "greeting.txt", firstLine+"\n", "A warmer greeting")
	if err != nil {
		return err
	}
	o, err := s.follow(ctx, op)
	if err != nil {
		return err
	}
	if o.State != "MERGED" {
		return fmt.Errorf("it ended in %s: %s", o.State, o.Explain.Summary)
	}
	s.say("   merged as %s; %s\n", short(op.mergeCommit), found(s.find(ctx, firstLine)))
	return nil
}

func (s *story) indexDown(ctx context.Context) error {
	s.say("2. The same, with the index down")
	if err := s.indexer.Set("500"); err != nil {
		return err
	}
	s.say("   the index answers 500 to everything now")
	op, err := s.open(ctx, "farewell", "farewell.txt", secondLine+"\n", "A farewell")
	if err != nil {
		return err
	}
	o, err := s.follow(ctx, op)
	if err != nil {
		return err
	}
	if o.State != "MERGE_FAILED" || o.Failure == nil || o.Failure.Step != "INDEXING" || op.mergeCommit == "" {
		return fmt.Errorf("it should stand in MERGE_FAILED because of INDEXING, with its merge commit; it is %s: %s", o.State, o.Explain.Summary)
	}
	s.say("   step   %s", o.Failure.Step)
	s.say("   cause  %s (%s)", o.Failure.Error, o.Failure.Kind)
	s.say("   hint   %s", o.Failure.Hint)
	log, err := s.git(ctx, s.bare(), "log", "--first-parent", "--oneline", "-n", "3", "main")
	if err != nil {
		return err
	}
	s.say("   git has merged it, as %s:\n      %s", short(op.mergeCommit), strings.ReplaceAll(log, "\n", "\n      "))

	if err := s.indexer.Set("ok"); err != nil {
		return err
	}
	back := time.Now()
	s.say("   the index is back; retry runs that one step")
	if _, err := s.api.Retry(ctx, op.id, "the index is back"); err != nil {
		return err
	}
	if o, err = s.follow(ctx, op); err != nil {
		return err
	}
	if o.State != "MERGED" {
		return fmt.Errorf("after the retry it ended in %s: %s", o.State, o.Explain.Summary)
	}
	s.say("   merged %s after the index was back; %s\n", time.Since(back).Round(time.Millisecond), found(s.find(ctx, secondLine)))
	return nil
}

// find searches what was merged.
func (s *story) find(ctx context.Context, text string) ([]httpapi.Hit, error) {
	return s.api.Search(ctx, repo, text)
}

func found(hits []httpapi.Hit, err error) string {
	if err != nil || len(hits) == 0 {
		return "search finds nothing of it"
	}
	return fmt.Sprintf("search finds %q in %s, line %d", hits[0].Text, hits[0].Path, hits[0].Line)
}

func short(sha string) string { return sha[:min(len(sha), 10)] }
