package pull

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Engine is what the service asks of the engine.
type Engine interface {
	Send(ctx context.Context, sagaID string, ev saga.Event) (saga.Decision, error)
	Wake(ctx context.Context)
	Settings() saga.Settings
}

// Store is what the service asks of the database.
type Store interface {
	store.Pulls
	PullByIID(ctx context.Context, forge, repo string, iid int64) (store.Pull, error)
	Saga(ctx context.Context, id string) (saga.Row, error)
	SetForgeState(ctx context.Context, pullID, state, mergeCommit string) error
}

// Service is what the API and the command line ask about pull requests. Its
// methods are safe for concurrent use.
type Service struct {
	Store  Store
	Host   forge.Host // the local forge
	Forges func(name string) (forge.Forge, bool)
	Engine Engine
	// Carrier answers the open operation of another flow whose branch a merge
	// request would merge, empty where there is none, and whether the merge
	// request is that operation's own. nil: there is no other flow.
	Carrier func(ctx context.Context, p store.Pull) (operationID string, own bool, err error)
}

// LocalForge is the name of the forge that mergeflow keeps itself.
const LocalForge = "default"

// Refusal is a request that was understood and not taken: nothing was written.
type Refusal struct {
	Code        string // stable, for programs
	Detail      string
	OperationID string // the operation that stands in the way, where there is one
}

// The refusals' codes.
const (
	CodeInProgress     = "merge-in-progress"
	CodeRetryInstead   = "retry-instead"
	CodeClosed         = "pull-closed"
	CodeAlreadyMerged  = "already-merged"
	CodeHeadMoved      = "head-moved"
	CodeNothingToMerge = "nothing-to-merge"
)

func (r *Refusal) Error() string { return r.Code + ": " + r.Detail }

// Invalid is bad input: the field that is wrong, and why.
type Invalid struct {
	Field  string
	Detail string
}

func (i *Invalid) Error() string { return i.Field + ": " + i.Detail }

// View is a pull request with what only the forge knows.
type View struct {
	store.Pull
	HeadSHA  string
	URL      string
	Checks   forge.Checks
	Watchers []string
}

// Create opens a pull request on the local forge.
func (s *Service) Create(ctx context.Context, in forge.NewMergeRequest) (View, error) {
	if err := validate(in); err != nil {
		return View{}, err
	}
	mr, err := s.Host.CreateMergeRequest(ctx, in)
	if err != nil {
		return View{}, err
	}
	return s.View(ctx, mr.ID)
}

// View reads a pull request and asks the forge for its head and checks.
func (s *Service) View(ctx context.Context, id string) (View, error) {
	p, err := s.Store.Pull(ctx, id)
	if err != nil {
		return View{}, err
	}
	return s.Complete(ctx, p)
}

// Complete adds what only the forge knows. A forge that can't be read leaves
// those fields empty: a list must not fail for one repository.
func (s *Service) Complete(ctx context.Context, p store.Pull) (View, error) {
	v := View{Pull: p}
	var err error
	if v.Watchers, err = s.Store.Watchers(ctx, p.ID); err != nil {
		return v, err
	}
	f, ok := s.Forges(p.Forge)
	if !ok {
		return v, nil
	}
	mr, err := f.MergeRequest(ctx, forge.Ref{Project: p.Repo, IID: p.IID})
	if err != nil {
		return v, nil
	}
	v.HeadSHA, v.URL = mr.HeadSHA, mr.URL
	if v.MergeCommit == "" {
		v.MergeCommit = mr.MergeCommit
	}
	if mr.MergedHead != "" {
		v.HeadSHA = mr.MergedHead
	}
	if v.HeadSHA != "" {
		v.Checks, _ = f.Checks(ctx, p.Repo, v.HeadSHA)
	}
	return v, nil
}

// Merge asks for a merge: it starts a saga for the current head (or for sha,
// which must be it) and answers its row. At most one saga of a pull request
// lives: a second request is refused with the first one's id. On an unmerged
// MERGE_FAILED it ends that saga and starts anew.
func (s *Service) Merge(ctx context.Context, pullID, sha, actor string) (saga.Row, error) {
	p, err := s.Store.Pull(ctx, pullID)
	if err != nil {
		return saga.Row{}, err
	}
	mr, err := s.mergeable(ctx, p, sha)
	if err != nil {
		return saga.Row{}, err
	}
	data := Data{
		PullID: p.ID, Forge: p.Forge, Repo: p.Repo, IID: p.IID, Source: p.Source, Target: p.Target,
		HeadSHA: mr.HeadSHA, URL: mr.URL, Title: p.Title, Author: author(actor),
	}
	row, err := s.Store.StartPull(ctx, pullID, func(p store.Pull, old *store.Locked, now time.Time) (store.StartPull, error) {
		return start(p, old, data, actor, now, s.Engine.Settings())
	})
	if err != nil {
		return saga.Row{}, err
	}
	s.Engine.Wake(ctx)
	return row, nil
}

// mergeable asks the forge whether there is anything to start a saga for.
func (s *Service) mergeable(ctx context.Context, p store.Pull, sha string) (forge.MergeRequest, error) {
	f, ok := s.Forges(p.Forge)
	if !ok {
		return forge.MergeRequest{}, fmt.Errorf("forge %q is not configured", p.Forge)
	}
	mr, err := f.MergeRequest(ctx, forge.Ref{Project: p.Repo, IID: p.IID})
	if err != nil {
		return mr, err
	}
	switch mr.State {
	case forge.Merged:
		return mr, s.merged(ctx, p, mr)
	case forge.Closed:
		return mr, &Refusal{Code: CodeClosed, Detail: "the pull request is closed", OperationID: p.OperationID}
	}
	switch id, _, err := s.carrier(ctx, p); {
	case err != nil:
		return mr, err
	case id != "":
		return mr, carried(id)
	}
	if live, err := s.live(ctx, p); err != nil || live != nil {
		if err == nil && !replaceable(*live) {
			err = inProgress(*live)
		}
		if err != nil {
			return mr, err
		}
	}
	switch {
	case mr.HeadSHA == "":
		return mr, &Refusal{Code: CodeHeadMoved, Detail: "the source branch " + p.Source + " is gone"}
	case sha != "" && sha != mr.HeadSHA:
		return mr, &Refusal{Code: CodeHeadMoved, Detail: headMoved(sha, mr.HeadSHA)}
	}
	m, err := f.Mergeability(ctx, mr.Ref, mr.HeadSHA)
	if err != nil {
		return mr, err
	}
	if m.NothingToDo {
		return mr, &Refusal{Code: CodeNothingToMerge, Detail: p.Target + " already holds everything that " + p.Source + " has"}
	}
	return mr, nil
}

func (s *Service) carrier(ctx context.Context, p store.Pull) (operationID string, own bool, err error) {
	if s.Carrier == nil {
		return "", false, nil
	}
	return s.Carrier(ctx, p)
}

// carried refuses what is another flow's operation's to do: nothing of its
// branch is merged but by it, and its own merge request is closed by it alone.
func carried(operationID string) *Refusal {
	return &Refusal{Code: CodeInProgress, Detail: "the branch belongs to change " + operationID + ", which merges it or closes its pull request", OperationID: operationID}
}

// merged answers a request for what the forge has merged already. A failed saga
// that did not know it goes on with the steps after the merge.
func (s *Service) merged(ctx context.Context, p store.Pull, mr forge.MergeRequest) error {
	live, err := s.live(ctx, p)
	if err != nil {
		return err
	}
	if live == nil {
		return &Refusal{Code: CodeAlreadyMerged, Detail: "the pull request is merged as " + short(mr.MergeCommit), OperationID: p.OperationID}
	}
	if replaceable(*live) {
		if _, err := s.foundMerged(ctx, live.ID, mr); err != nil && !errors.Is(err, saga.ErrAlreadyAdvanced) {
			return err
		}
		return &Refusal{Code: CodeInProgress, Detail: "git has merged already; the operation goes on with the steps after it", OperationID: live.ID}
	}
	return inProgress(*live)
}

func (s *Service) foundMerged(ctx context.Context, sagaID string, mr forge.MergeRequest) (saga.Decision, error) {
	return s.Engine.Send(ctx, sagaID, saga.Event{Name: saga.Found, Actor: saga.ActorEngine,
		Detail: "merged on the forge as " + short(mr.MergeCommit), Data: saga.Patch(Data{}.learnt(mr.MergeCommit))})
}

// live is the pull request's open saga, or nil.
func (s *Service) live(ctx context.Context, p store.Pull) (*saga.Row, error) {
	if p.OperationID == "" {
		return nil, nil
	}
	row, err := s.Store.Saga(ctx, p.OperationID)
	if err != nil {
		return nil, err
	}
	if !row.ClosedAt.IsZero() {
		return nil, nil
	}
	return &row, nil
}

// replaceable says that a new request may end this saga: it failed, and git has not merged.
func replaceable(row saga.Row) bool {
	d, err := dataOf(row)
	return err == nil && row.State == MergeFailed && d.MergeCommit == ""
}

func inProgress(row saga.Row) *Refusal {
	if row.State == MergeFailed {
		return &Refusal{Code: CodeRetryInstead, Detail: "git has merged; a later step failed: retry that step", OperationID: row.ID}
	}
	return &Refusal{Code: CodeInProgress, Detail: "a merge of this pull request is under way", OperationID: row.ID}
}

// start decides, with the pull request and its last saga under lock, whether a
// new saga begins.
func start(p store.Pull, old *store.Locked, data Data, actor string, now time.Time, settings saga.Settings) (store.StartPull, error) {
	var out store.StartPull
	if p.ForgeState != "open" {
		code := CodeClosed
		if p.ForgeState == "merged" {
			code = CodeAlreadyMerged
		}
		return out, &Refusal{Code: code, Detail: "the pull request is " + p.ForgeState, OperationID: p.OperationID}
	}
	if old != nil && old.Row.ClosedAt.IsZero() {
		if !replaceable(old.Row) {
			return out, inProgress(old.Row)
		}
		ended, err := saga.Decide(Table, old.Row, saga.Event{Name: saga.Superseded, Actor: or(actor, saga.ActorEngine), Detail: "a new request to merge " + short(data.HeadSHA), At: now}, settings)
		if err != nil {
			return out, err
		}
		out.Old = &store.Writes{Decision: ended}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return out, err
	}
	out.New, err = saga.Start(Table, saga.Row{
		ID: id.String(), AggregateID: p.ID, CreatedAt: now, Data: saga.Patch(data),
		About: saga.About{Project: p.Repo, Title: p.Title},
	}, Validating, actor, "merge "+short(data.HeadSHA)+" of "+p.Source+" into "+p.Target, settings)
	out.Status = string(StatusMerging)
	return out, err
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func author(actor string) forge.Identity {
	name := saga.Clean(or(actor, "mergeflow"), 100)
	return forge.Identity{Name: name, Email: "mergeflow@localhost"}
}
