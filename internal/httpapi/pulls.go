package httpapi

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/store"
)

type listPullsIn struct {
	Repo   string `query:"repo"`
	Status string `query:"status" enum:"open,merging,merged,merge-failed,closed"`
	Query  string `query:"q" maxLength:"200" doc:"Part of the title"`
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
	Cursor string `query:"cursor" maxLength:"1000" doc:"next of the page before"`
}

type pullIn struct {
	ID string `path:"id"`
}

type createPullIn struct {
	Body NewPull
}

type mergePullIn struct {
	ID   string `path:"id"`
	Body MergeInput
}

type closePullIn struct {
	ID   string `path:"id"`
	Body Reason
}

type watchersIn struct {
	ID   string `path:"id"`
	Body WatchersInput
}

type pullOut struct {
	Body Pull
}

type closedPullOut struct {
	Status int
	Body   Pull
}

type createdPullOut struct {
	Location string `header:"Location"`
	Body     Pull
}

func (a *api) pullRoutes() {
	register(a, get("list-pulls", "/v1/pulls", "List pull requests, newest first", 422), a.listPulls)
	register(a, post("create-pull", "/v1/pulls", "Open a pull request", http.StatusCreated, 409, 422, 503), a.createPull)
	register(a, get("get-pull", "/v1/pulls/{id}", "Read a pull request", 404), a.getPull)
	register(a, post("merge-pull", "/v1/pulls/{id}/merge", "Ask for the merge", http.StatusAccepted, 404, 409, 503), a.mergePull)
	register(a, post("close-pull", "/v1/pulls/{id}/close", "End a pull request without a merge; 202 where a running step has to stop first", http.StatusOK, 404, 409, 503), a.closePull)
	register(a, post("add-watchers", "/v1/pulls/{id}/watchers", "Add watchers", http.StatusOK, 404), a.addWatchers)
}

func (a *api) createPull(ctx context.Context, in *createPullIn) (*createdPullOut, error) {
	b := in.Body
	v, err := a.Pulls.Create(ctx, forge.NewMergeRequest{
		Project: b.Repo, Source: b.Source, Target: b.Target, Title: b.Title, Description: b.Description, Author: actor, Watchers: b.Watchers,
	})
	if err != nil {
		return nil, inBody(err, "repo")
	}
	return &createdPullOut{Location: "/v1/pulls/" + v.ID, Body: showPull(v)}, nil
}

func (a *api) getPull(ctx context.Context, in *pullIn) (*pullOut, error) {
	id, err := pullID(in.ID)
	if err != nil {
		return nil, err
	}
	v, err := a.Pulls.View(ctx, id)
	return &pullOut{showPull(v)}, missing(err, "pull request "+id)
}

// viewers bounds how many pull requests of a page are asked of the forge at once.
const viewers = 4

func (a *api) listPulls(ctx context.Context, in *listPullsIn) (*page[Pull], error) {
	before, err := readTimeCursor("p", in.Cursor)
	if err != nil {
		return nil, err
	}
	rows, err := a.Store.Pulls(ctx, store.PullFilter{Repo: in.Repo, Status: in.Status, Query: in.Query, Limit: in.Limit + 1, Before: before})
	if err != nil {
		return nil, err
	}
	out := pageOf(rows, in.Limit, func(p store.Pull) Pull { return showPull(pull.View{Pull: p}) },
		func(p store.Pull) string { return timeCursor("p", p.CreatedAt, p.ID) })
	errs, turns := make([]error, len(out.Items)), make(chan struct{}, viewers)
	var all sync.WaitGroup
	for i := range out.Items {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			v, err := a.Pulls.Complete(ctx, rows[i])
			out.Items[i], errs[i] = showPull(v), err
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return &page[Pull]{out}, nil
}

func (a *api) mergePull(ctx context.Context, in *mergePullIn) (*acceptedOut, error) {
	id, err := pullID(in.ID)
	if err != nil {
		return nil, err
	}
	if in.Body.SHA != "" && !isCommit(in.Body.SHA) {
		return nil, invalid("sha", "must be a full commit id")
	}
	row, err := a.Pulls.Merge(ctx, id, in.Body.SHA, actor)
	if err != nil {
		return nil, missing(err, "pull request "+id)
	}
	return a.accepted(row), nil
}

func (a *api) closePull(ctx context.Context, in *closePullIn) (*closedPullOut, error) {
	id, err := pullID(in.ID)
	if err != nil {
		return nil, err
	}
	v, err := a.Pulls.Close(ctx, id, in.Body.Reason, actor)
	if err != nil {
		return nil, missing(err, "pull request "+id)
	}
	out := &closedPullOut{Status: http.StatusOK, Body: showPull(v)}
	if out.Body.Status != "closed" {
		out.Status = http.StatusAccepted // it waits for the running step
	}
	return out, nil
}

func (a *api) addWatchers(ctx context.Context, in *watchersIn) (*pullOut, error) {
	id, err := pullID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := pull.Watchers(in.Body.Watchers); err != nil {
		return nil, err
	}
	if _, err := a.Pulls.Store.Pull(ctx, id); err != nil {
		return nil, missing(err, "pull request "+id)
	}
	if err := a.Store.AddWatchers(ctx, id, in.Body.Watchers); err != nil {
		return nil, err
	}
	v, err := a.Pulls.View(ctx, id)
	return &pullOut{showPull(v)}, err
}

func pullID(s string) (string, error) {
	if id, ok := canonicalID(s); ok {
		return id, nil
	}
	return "", notFound("there is no pull request " + s)
}

// isCommit is true for a full SHA-1 or SHA-256 id in lower case.
func isCommit(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

func showPull(v pull.View) Pull {
	out := Pull{
		ID: v.ID, IID: v.IID, Repo: v.Repo, Source: v.Source, Target: v.Target, Title: v.Title, Description: v.Description,
		Status: v.Status(), HeadSHA: v.HeadSHA, MergeCommit: v.MergeCommit, OperationID: v.OperationID,
		Checks: make([]Check, 0, len(v.Checks.Checks)), Watchers: append([]string{}, v.Watchers...),
		URL: v.URL, CreatedAt: v.CreatedAt.UTC(), UpdatedAt: v.UpdatedAt.UTC(),
	}
	for _, c := range v.Checks.Checks {
		out.Checks = append(out.Checks, Check(c))
	}
	return out
}
