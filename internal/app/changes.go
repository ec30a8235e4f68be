package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mergeflow/mergeflow/internal/approval"
	"github.com/mergeflow/mergeflow/internal/approval/builtin"
	"github.com/mergeflow/mergeflow/internal/approval/webhook"
	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/deploy"
	"github.com/mergeflow/mergeflow/internal/deploy/directory"
	"github.com/mergeflow/mergeflow/internal/deploy/outside"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/forge/localgit"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// changeSteps are flow change's steps, from the configuration.
func (a *App) changeSteps(host *localgit.Host) (*change.Steps, error) {
	approver, err := a.approver()
	if err != nil {
		return nil, err
	}
	return &change.Steps{
		Forges:   changers(host),
		Projects: projects(a.o.Config.Current),
		Approver: approver,
		Deployer: a.deployer(host),
		Store:    a.store,
		Settings: settings(a.o.Config.Current),
		// Approvers answer over the network; the deploy of a folder calls back
		// to the address that is listened on.
		CallbackURL: a.cfg.PublicURLAt(a.addr) + "/v1/callbacks/approval",
	}, nil
}

func changers(host *localgit.Host) func(string) (forge.Changer, bool) {
	return func(name string) (forge.Changer, bool) { return host, name == host.Forge }
}

// projects answers what the configuration says of a project; first match wins.
func projects(current func() *config.Config) func(string) change.Project {
	return func(name string) change.Project {
		p := current().Project(name)
		out := change.Project{Forge: p.Forge, Branch: p.MR.Branch, Title: p.MR.Title,
			RemoveSource: p.MR.RemoveSourceBranch, InOrder: p.Deploy.InOrder}
		if out.Forge == "" {
			out.Forge = pull.LocalForge
		}
		return out
	}
}

func (a *App) approver() (approval.Approver, error) {
	if a.cfg.Approval.Kind != "webhook" {
		return builtin.Approver{}, nil
	}
	w, err := webhook.New(webhook.Options{URL: a.cfg.Approval.URL, Secret: a.cfg.Approval.Secret.Func()})
	if err != nil {
		return nil, err
	}
	a.onClose(func() error { w.Close(); return nil })
	return w, nil
}

func (a *App) deployer(host *localgit.Host) deploy.Deployer {
	switch a.cfg.Deploy.Kind {
	case "callback":
		return outside.Pipeline{}
	case "none":
		return outside.None{}
	}
	d := directory.New(directory.Options{
		Path: a.cfg.DeployPath(), Source: source{host}, DefaultBranch: a.defaultBranch,
		Callback: func() string { return a.URL() + "/v1/callbacks/deploy" },
		Secret: func() string {
			if valid := config.Values(a.o.Config.Current().Deploy.Secret); len(valid) > 0 {
				return valid[0]
			}
			return ""
		},
	})
	a.onClose(func() error { d.Close(); return nil })
	return d
}

// defaultBranch is a project's default branch.
func (a *App) defaultBranch(ctx context.Context, project string) (string, error) {
	r, err := a.store.Repo(ctx, project)
	if errors.Is(err, store.ErrNotFound) {
		return "", &forge.Error{Op: "default branch", Kind: forge.KindNotFound, Field: "repo", Detail: fmt.Sprintf("there is no repository %s", project)}
	}
	return r.DefaultBranch, err
}

// source is where the folder deploy has its trees from.
type source struct{ *localgit.Host }

// Export says of a tree that no folder can hold that only another tree helps.
func (s source) Export(ctx context.Context, project, commit, dir string) error {
	err := s.Host.Export(ctx, project, commit, dir)
	if forge.KindOf(err) == forge.KindInvalid {
		return &deploy.Refused{Cause: err.Error(), Hint: "change or delete that file on the branch by another change, then retry: what holds this one is live then"}
	}
	return err
}

func (a *App) changeService(host *localgit.Host) *change.Service {
	s := &change.Service{
		Store: a.store, Forges: changers(host), Projects: projects(a.o.Config.Current), Engine: a.engine,
		Order:       func() saga.Order { return saga.Order(a.o.Config.Current().Flow.Order) },
		Exclusive:   a.cfg.Binding.LiveIsExclusive,
		DefaultBase: a.defaultBranch,
		Backlog:     backlog(a.store, a.cfg.Engine.MaxBacklog),
	}
	if a.cfg.Approval.Kind != "webhook" {
		s.Builtin = &change.Rules{AllowSelf: a.cfg.Approval.AllowSelf, For: func(target string) ([]string, int) {
			r, _ := a.cfg.Rule(target)
			return r.Approvers, max(1, r.Quorum)
		}}
	}
	return s
}

// backlogAge is how old the count of due commands may be at the door: counting
// at each submit would make a full queue slower still.
const backlogAge = 250 * time.Millisecond

// backlog counts the due commands, up to a little more than what is refused.
func backlog(db store.Sagas, limit int) func(context.Context) (int, int, error) {
	var mu sync.Mutex
	var due int
	var at time.Time
	return func(ctx context.Context) (int, int, error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(at) < backlogAge {
			return due, limit, nil
		}
		n, err := db.Backlog(ctx, limit+limit/10+1)
		if err != nil {
			return 0, limit, err
		}
		due, at = n, time.Now()
		return due, limit, nil
	}
}
