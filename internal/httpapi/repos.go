package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/store"
)

type listReposIn struct {
	Query  string `query:"q" maxLength:"200" doc:"Part of the name"`
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
	Cursor string `query:"cursor" maxLength:"1000" doc:"next of the page before"`
}

type repoIn struct {
	Name string `path:"name" doc:"Percent-encoded: a name may hold /"`
}

type createRepoIn struct {
	Body NewRepository
}

type repoOut struct {
	Body Repository
}

type createdRepoOut struct {
	Location string `header:"Location"`
	Body     Repository
}

type statusIn struct {
	Name string `path:"name" doc:"Percent-encoded: a name may hold /"`
	SHA  string `path:"sha"`
	Body NewStatus
}

type statusOut struct {
	Body CommitStatus
}

func (a *api) repoRoutes() {
	register(a, get("list-repos", "/v1/repos", "List local repositories by name", 422), a.listRepos)
	register(a, post("create-repo", "/v1/repos", "Create a local repository", http.StatusCreated, 409, 503), a.createRepo)
	register(a, get("get-repo", "/v1/repos/{name}", "Read a repository", 404), a.getRepo)
	register(a, post("set-status", "/v1/repos/{name}/statuses/{sha}", "Report a commit status", http.StatusCreated, 404, 503), a.setStatus)
}

func (a *api) createRepo(ctx context.Context, in *createRepoIn) (*createdRepoOut, error) {
	b := in.Body
	if err := names("requiredChecks", b.RequiredChecks); err != nil {
		return nil, err
	}
	if err := names("reviewers", b.Reviewers); err != nil {
		return nil, err
	}
	r, err := a.Host.CreateRepository(ctx, forge.Repository{
		Name: b.Name, DefaultBranch: b.DefaultBranch, RequiredChecks: b.RequiredChecks, MergeStyle: forge.MergeStyle(b.MergeStyle),
		RequireUpToDate: b.RequireUpToDate, Reviewers: b.Reviewers,
	})
	if err != nil {
		return nil, err
	}
	out := a.showRepo(store.Repo{Name: r.Name, DefaultBranch: r.DefaultBranch, RequiredChecks: r.RequiredChecks, MergeStyle: string(r.MergeStyle),
		RequireUpToDate: r.RequireUpToDate, Reviewers: r.Reviewers, CreatedAt: r.CreatedAt})
	return &createdRepoOut{Location: "/v1/repos/" + url.PathEscape(out.Name), Body: out}, nil
}

// names checks a list of short names: each there, one line, once.
func names(field string, list []string) error {
	seen := map[string]bool{}
	for i, n := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case strings.TrimSpace(n) == "" || utf8.RuneCountInString(n) > 255 || strings.ContainsAny(n, "\r\n"):
			return invalid(at, "must be one line of 1 to 255 characters")
		case seen[n]:
			return invalid(at, "stands twice")
		}
		seen[n] = true
	}
	return nil
}

func (a *api) getRepo(ctx context.Context, in *repoIn) (*repoOut, error) {
	r, err := a.Store.Repo(ctx, in.Name)
	return &repoOut{a.showRepo(r)}, missing(err, "repository "+in.Name)
}

func (a *api) listRepos(ctx context.Context, in *listReposIn) (*page[Repository], error) {
	after, err := readNameCursor("r", in.Cursor)
	if err != nil {
		return nil, err
	}
	rows, err := a.Store.Repos(ctx, store.RepoFilter{Query: in.Query, Limit: in.Limit + 1, After: after})
	if err != nil {
		return nil, err
	}
	return &page[Repository]{pageOf(rows, in.Limit, a.showRepo, func(r store.Repo) string { return encodeCursor("r", r.Name) })}, nil
}

func (a *api) setStatus(ctx context.Context, in *statusIn) (*statusOut, error) {
	b := in.Body
	err := a.Host.SetStatus(ctx, forge.Status{Project: in.Name, SHA: in.SHA, Context: b.Context, State: b.State, Description: b.Description, TargetURL: b.TargetURL})
	if err != nil {
		return nil, err
	}
	return &statusOut{CommitStatus{Repo: in.Name, SHA: in.SHA, NewStatus: b}}, nil
}

func (a *api) showRepo(r store.Repo) Repository {
	return Repository{
		Name: r.Name, DefaultBranch: r.DefaultBranch, RequiredChecks: append([]string{}, r.RequiredChecks...), MergeStyle: r.MergeStyle,
		RequireUpToDate: r.RequireUpToDate, Reviewers: append([]string{}, r.Reviewers...),
		CloneURL: a.ops.base + "/git/" + r.Name + ".git", CreatedAt: r.CreatedAt.UTC(),
	}
}
