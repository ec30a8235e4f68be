package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// The configuration repository of the second half, and what a change of it needs.
const (
	configRepo = "platform/config"
	check      = "ci"
	quotaFile  = "quotas/payments.yaml"
	approver   = "ann"
)

var reviewers = []string{"rita", "rob"}

// changes plays one configuration change in each order.
func (s *story) changes(ctx context.Context) error {
	if _, err := s.api.CreateRepo(ctx, httpapi.NewRepository{Name: configRepo, RequiredChecks: []string{check}, Reviewers: reviewers}); err != nil {
		return err
	}
	if err := s.firstConfig(ctx); err != nil {
		return err
	}
	s.say("3. A configuration change, from submit to live: people approve first")
	if err := s.change(ctx, "approval_first", "limit: 200\n", "Raise the quota"); err != nil {
		return fmt.Errorf("change with approval first: %w", err)
	}
	s.say("4. The next one for the same target: the merge request first, then people")
	if err := s.change(ctx, "mr_first", "limit: 300\n", "Raise the quota again"); err != nil {
		return fmt.Errorf("change with the merge request first: %w", err)
	}
	return nil
}

// firstConfig gives the repository its first commit, from a work tree of its own.
func (s *story) firstConfig(ctx context.Context) error {
	dir := filepath.Join(s.dir, "config")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte("What runs where.\n"), 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{{"init", "-q"}, {"symbolic-ref", "HEAD", "refs/heads/main"}, {"add", "."}, {"commit", "-q", "-m", "A beginning"},
		{"push", "-q", s.app.URL() + "/git/" + configRepo + ".git", "main"}} {
		if _, err := s.git(ctx, dir, args...); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) change(ctx context.Context, order, content, title string) error {
	a, err := s.api.Submit(ctx, httpapi.NewChange{Subject: "team-payments", Target: "prod/eu/quota", Project: configRepo, Title: title, Order: order,
		Files: []httpapi.ChangeFile{{Path: quotaFile, Action: "upsert", Content: content}}}, "")
	if err != nil {
		return err
	}
	s.say("   submitted %q for team-payments, prod/eu/quota: %s", title, strings.TrimSpace(content))
	op := &operation{id: a.OperationID, flow: "change", title: title, content: content}
	s.told = append(s.told, op)
	o, err := s.carry(ctx, op)
	if err != nil {
		return err
	}
	if o.State != "CALLED_BACK" {
		return fmt.Errorf("it ended in %s: %s", o.State, o.Explain.Summary)
	}
	s.say("   live as %s: %s says %q\n", short(op.mergeCommit), s.liveFile(), strings.TrimSpace(s.live()))
	return nil
}

// carry follows a change and does what people and CI do on its way.
func (s *story) carry(ctx context.Context, op *operation) (httpapi.Operation, error) {
	acted := map[string]bool{}
	for ev, err := range s.api.Watch(ctx, op.id, "") {
		if err != nil {
			return httpapi.Operation{}, err
		}
		if e := ev.Entry; e != nil {
			s.moved(op, *e)
			switch e.To {
			case "CREATE_CHECKING", "HANDLE_APPROVED", "HANDLE_MERGED":
				s.say("                 %s", e.Detail)
			}
		}
		o := ev.Operation
		if o == nil {
			continue
		}
		op.state, op.status = o.State, o.Status
		if o.MergeRequest != nil {
			op.mergeCommit = o.MergeRequest.MergeCommit
		}
		if o.Failed() || o.Final() {
			return *o, nil
		}
		if acted[o.State] {
			continue
		}
		acted[o.State] = true
		switch o.State {
		case "APPROVAL_SENT":
			s.say("   %s approves it", approver)
			if _, err := s.api.Approval(ctx, op.id, httpapi.ApprovalInput{Decision: "approved", Reason: "looks right", As: approver}); err != nil {
				return *o, err
			}
		case "CREATE_CHECKING":
			s.say("   CI says that %s of %s is green", check, short(o.MergeRequest.HeadSHA))
			if _, err := s.api.SetStatus(ctx, configRepo, o.MergeRequest.HeadSHA, httpapi.NewStatus{Context: check, State: "success"}); err != nil {
				return *o, err
			}
		}
	}
	return httpapi.Operation{}, errors.New("the server ended the watch")
}

func (s *story) liveFile() string {
	return filepath.Join(s.dir, "data", "live", filepath.FromSlash(configRepo), filepath.FromSlash(quotaFile))
}

// live is what the deployed file says; empty where there is none.
func (s *story) live() string {
	b, err := os.ReadFile(s.liveFile())
	if err != nil {
		return ""
	}
	return string(b)
}

// checkChanges looks up what must be true of the changes: in git, in the folder
// they were deployed to, and in the API.
func (s *story) checkChanges(ctx context.Context) error {
	bare := filepath.Join(s.dir, "data", "repos", filepath.FromSlash(configRepo)+".git")
	last := ""
	for _, op := range s.told {
		if op.flow != "change" {
			continue
		}
		o, err := s.api.Operation(ctx, op.id)
		if err != nil {
			return err
		}
		op.state, op.status = o.State, o.Status
		s.must(o.State == "CALLED_BACK" && o.Status == "VALIDATED" && o.Failure == nil, "%q is %s", op.title, o.State)
		found, err := s.git(ctx, bare, "log", "--first-parent", "--fixed-strings", "--grep", "Mergeflow-Operation: "+op.id, "--format=%H", "main")
		if err != nil {
			return err
		}
		commits := strings.Fields(found)
		op.merges = len(commits)
		s.must(op.merges == 1 && commits[0] == op.mergeCommit, "commits in git that merge %q: %d (%s)", op.title, op.merges, strings.Join(shorten(commits), ", "))
		shown, err := s.git(ctx, bare, "show", op.mergeCommit+":"+quotaFile)
		if err != nil {
			return err
		}
		s.must(shown == strings.TrimSpace(op.content), "%s of %s says %q", quotaFile, short(op.mergeCommit), shown)
		inBranch, err := s.git(ctx, bare, "rev-list", "--count", op.mergeCommit+"^1.."+op.mergeCommit+"^2")
		if err != nil {
			return err
		}
		s.must(inBranch == "1", "commits that %s brings: %s", short(op.mergeCommit), inBranch)
		if err := s.checkApprovals(ctx, op); err != nil {
			return err
		}
		last = op.id
	}
	b, err := s.api.Binding(ctx, "team-payments", "prod/eu/quota")
	if err != nil {
		return err
	}
	s.must(b.Status == "VALIDATED" && b.OperationID == last && len(b.Operations) == 2, "team-payments, prod/eu/quota is %s, after %d changes", b.Status, len(b.Operations))
	s.must(s.live() == "limit: 300\n", "the live file says %q", strings.TrimSpace(s.live()))
	return nil
}

// checkApprovals looks up in the history who let the change pass: a person, and
// each reviewer account.
func (s *story) checkApprovals(ctx context.Context, op *operation) error {
	var people, accounts string
	for e, err := range s.api.History(ctx, op.id) {
		switch {
		case err != nil:
			return err
		case e.Event == "approved":
			people = e.Actor
		case e.To == "HANDLE_APPROVED":
			accounts = e.Detail
		}
	}
	s.must(people == approver && accounts == "approved by "+strings.Join(reviewers, ", "), "who let %q pass: %s; %s", op.title, people, strings.TrimPrefix(accounts, "approved by "))
	return nil
}
