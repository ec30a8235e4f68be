package localgit

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/store"
)

// The states of a commit status, and of a required one that nobody has posted.
const (
	statusPending = "pending"
	statusSuccess = "success"
	statusFailure = "failure"
	statusError   = "error"
	statusMissing = "missing"
)

// SetStatus keeps the newest status of a commit and context. The commit must be
// in the repository. A zero At is the database's now. The errors' fields are those of the HTTP API.
func (h *Host) SetStatus(ctx context.Context, s forge.Status) error {
	const op = "set status"
	if !git.IsSHA(s.SHA) {
		return invalid(op, "sha", "%.60q is no full commit id", s.SHA)
	}
	if err := checkEach([]string{s.Context}, "check"); err != nil {
		return invalid(op, "context", "%v", err)
	}
	switch s.State {
	case statusPending, statusSuccess, statusFailure, statusError:
	default:
		return invalid(op, "state", "must be pending, success, failure or error")
	}
	if err := checkText(s.Description, 1000); err != nil {
		return invalid(op, "description", "the description %v", err)
	}
	if s.TargetURL != "" {
		// It becomes a link on a page.
		u, err := url.Parse(s.TargetURL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || checkLine(s.TargetURL, 2000) != nil {
			return invalid(op, "targetUrl", "must be an http or https URL")
		}
	}
	_, repo, err := h.open(ctx, op, s.Project)
	if err != nil {
		return err
	}
	if _, err := repo.Resolve(ctx, s.SHA); errors.Is(err, git.ErrNotFound) {
		return &forge.Error{Op: op, Kind: forge.KindNotFound, Field: "sha", Detail: "repository " + s.Project + " has no commit " + s.SHA}
	} else if err != nil {
		return fromGit(op, err)
	}
	err = h.Store.SetStatus(ctx, store.CommitStatus{
		Repo: s.Project, SHA: s.SHA, Context: s.Context, State: s.State,
		Description: s.Description, TargetURL: s.TargetURL, UpdatedAt: s.At,
	})
	if err != nil {
		return fromStore(op, "repo", "status", err)
	}
	return nil
}

// Checks sums up the repository's required checks for one commit. Without any
// required it is passed.
func (h *Host) Checks(ctx context.Context, project, sha string) (forge.Checks, error) {
	const op = "read checks"
	if !git.IsSHA(sha) {
		return forge.Checks{}, invalid(op, "sha", "%.60q is no full commit id", sha)
	}
	row, _, err := h.open(ctx, op, project)
	if err != nil {
		return forge.Checks{}, err
	}
	statuses, err := h.Store.Statuses(ctx, project, sha)
	if err != nil {
		return forge.Checks{}, fromStore(op, "repo", "repository "+project, err)
	}
	return sumUp(row.RequiredChecks, statuses), nil
}

func sumUp(required []string, statuses []store.CommitStatus) forge.Checks {
	posted := make(map[string]forge.Check, len(statuses))
	for _, s := range statuses {
		posted[s.Context] = forge.Check{Context: s.Context, State: s.State, Description: s.Description, TargetURL: s.TargetURL}
	}
	sum := forge.Checks{State: forge.ChecksPassed}
	for _, name := range required {
		c, ok := posted[name]
		if !ok {
			c = forge.Check{Context: name, State: statusMissing}
		}
		delete(posted, name)
		c.Required = true
		switch {
		case c.State == statusFailure || c.State == statusError:
			sum.State = forge.ChecksFailed
		case c.State != statusSuccess && sum.State != forge.ChecksFailed:
			sum.State = forge.ChecksPending
		}
		sum.Checks = append(sum.Checks, c)
	}
	rest := len(sum.Checks)
	for _, c := range posted {
		sum.Checks = append(sum.Checks, c)
	}
	slices.SortFunc(sum.Checks[rest:], func(a, b forge.Check) int { return cmp.Compare(a.Context, b.Context) })
	return sum
}
