package change

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Engine is what the service asks of the engine.
type Engine interface {
	Send(ctx context.Context, sagaID string, ev saga.Event) (saga.Decision, error)
	Apply(ctx context.Context, sagaID string, decide func(l store.Locked, s saga.Settings) (store.Writes, error)) (saga.Decision, error)
	Announce(ctx context.Context, d saga.Decision)
	Wake(ctx context.Context)
	Settings() saga.Settings
	Stopping() <-chan struct{}
}

// Store is what the service asks of the database.
type Store interface {
	store.Changes
	Saga(ctx context.Context, id string) (saga.Row, error)
}

// Service is what the API and the command line ask about changes. Its methods
// are safe for concurrent use.
type Service struct {
	Store    Store
	Forges   func(name string) (forge.Changer, bool)
	Projects func(project string) Project
	// DefaultBase is a project's default branch, for a change that names none.
	DefaultBase func(ctx context.Context, project string) (string, error)
	Engine      Engine
	Order       func() saga.Order // in force for changes that name none
	Exclusive   bool              // binding.live_is_exclusive
	Builtin     *Rules            // nil where approvals come from outside
	Backlog     func(ctx context.Context) (due, limit int, err error)
}

// Refusal is a request that was understood and not taken: nothing was written.
type Refusal struct {
	Code        string
	Detail      string
	OperationID string
	RetryAfter  time.Duration
}

// The refusals' codes.
const (
	CodeInProgress = "binding-in-progress"
	CodeNoChange   = "no-change"
	CodeMismatch   = "idempotency-mismatch"
	CodeOverloaded = "overloaded"
	CodeNotAllowed = "not-allowed"
)

func (r *Refusal) Error() string { return r.Code + ": " + r.Detail }

// MayApplyAgain is the one place that says whether a binding takes a new
// request: the stores, the API and the pages all read it here.
func MayApplyAgain(status saga.Status, state saga.State, exclusive bool) bool {
	switch {
	case status == StatusRejected, status == StatusClosed, state == CreateRefused:
		return true
	case status == StatusValidated:
		return !exclusive
	}
	return false
}

// Submit is the synchronous part of a change: it checks the input, the files
// against the repository, the idempotency key and the binding, and stores the
// request. Everything after it is the flow's. key may be nil.
func (s *Service) Submit(ctx context.Context, in Submission, key *store.IdempotencyKey, actor string) (store.ChangeStarted, error) {
	if bad := in.check(); bad != nil {
		return store.ChangeStarted{}, bad
	}
	due, limit, err := s.Backlog(ctx)
	if err != nil {
		return store.ChangeStarted{}, err
	}
	if due > limit+limit/10 {
		return store.ChangeStarted{}, &Refusal{Code: CodeOverloaded, Detail: fmt.Sprintf("%d commands are due; nothing was stored", due), RetryAfter: 5 * time.Second}
	}
	data, err := s.examine(ctx, &in, actor)
	if err != nil {
		// A repeated request answers as before even where the repository has
		// moved on meanwhile: its change may be in by now.
		if first, ok := s.replay(ctx, in, key); ok {
			return first, nil
		}
		return store.ChangeStarted{}, err
	}
	order := in.Order
	if order == "" {
		order = s.Order()
	}
	entry, why := Table.Entry[order], ""
	switch {
	case due > limit:
		entry, why = CreateRefused, fmt.Sprintf("overloaded: %d commands are due", due)
	case s.stopping():
		entry, why = CreateRefused, "the instance is stopping"
	}
	started, err := s.Store.StartChange(ctx, store.ChangeDoor{Key: key, Subject: in.Subject, Target: in.Target}, func(d store.DoorState) (store.StartChange, error) {
		return s.start(d, in, data, order, entry, why, actor)
	})
	if errors.Is(err, store.ErrIdempotencyMismatch) {
		return started, &Refusal{Code: CodeMismatch, Detail: "this idempotency key was used with another body"}
	}
	if err == nil && !started.Replayed {
		s.Engine.Wake(ctx)
	}
	return started, err
}

// replay answers a repeated request whose examination fails now. Its decision
// writes nothing: an unknown key comes back as not replayed.
func (s *Service) replay(ctx context.Context, in Submission, key *store.IdempotencyKey) (store.ChangeStarted, bool) {
	if key == nil {
		return store.ChangeStarted{}, false
	}
	errNew := errors.New("new")
	first, err := s.Store.StartChange(ctx, store.ChangeDoor{Key: key, Subject: in.Subject, Target: in.Target},
		func(store.DoorState) (store.StartChange, error) { return store.StartChange{}, errNew })
	return first, err == nil && first.Replayed
}

func (s *Service) stopping() bool {
	select {
	case <-s.Engine.Stopping():
		return true
	default:
		return false
	}
}

func (s *Service) start(d store.DoorState, in Submission, data Data, order saga.Order, entry saga.State, why, actor string) (store.StartChange, error) {
	var out store.StartChange
	settings := s.Engine.Settings()
	if old := d.Old; old != nil {
		spec, known := Table.Spec(old.Row.State)
		if !known || !MayApplyAgain(spec.Status, old.Row.State, s.Exclusive) {
			return out, &Refusal{Code: CodeInProgress, Detail: fmt.Sprintf("a change of %s for %s is in %s", in.Target, in.Subject, old.Row.State), OperationID: old.Row.ID}
		}
		if old.Row.ClosedAt.IsZero() {
			ended, err := saga.Decide(Table, old.Row, saga.Event{Name: saga.Superseded, Actor: actor, Detail: "applied for again", At: d.Now}, settings)
			if err != nil {
				return out, err
			}
			out.Old = &store.Writes{Decision: ended}
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return out, err
	}
	row := saga.Row{
		ID: id.String(), Order: order, AggregateID: in.Subject + "\x1f" + in.Target, CreatedAt: d.Now, Data: saga.Patch(data),
		About: saga.About{Subject: in.Subject, Target: in.Target, Project: in.Project, Title: in.Title},
	}
	detail := "submitted"
	if why != "" {
		row.Failure = &saga.Failure{Step: Table.Entry[order], Kind: saga.Transient, Error: why, Hint: "retry when the load has passed"}
		detail = why
	}
	if out.New, err = saga.Start(Table, row, entry, actor, detail, settings); err != nil {
		return out, err
	}
	spec, _ := Table.Spec(entry)
	out.Status, out.Inputs = string(spec.Status), in.Files
	return out, nil
}

// examine looks at the repository: the base branch, what stands at each path,
// whether anything would change. It only reads.
func (s *Service) examine(ctx context.Context, in *Submission, actor string) (Data, error) {
	conf := s.Projects(in.Project)
	d := Data{Forge: conf.Forge, Description: in.Description, Labels: in.Labels, Ext: in.Ext, SubmittedBy: actor,
		Author: forge.Identity{Name: saga.Clean(actor, 100), Email: "mergeflow@localhost"}}
	f, ok := s.Forges(conf.Forge)
	if !ok {
		return d, invalid("project", "is on forge %q, which is not configured", conf.Forge)
	}
	if in.Base == "" {
		base, err := s.DefaultBase(ctx, in.Project)
		if err != nil {
			return d, asField(err, "project")
		}
		in.Base = base
	}
	base, err := f.Branch(ctx, in.Project, in.Base)
	if err != nil {
		return d, asField(err, "base")
	}
	d.Base, d.BaseSHA = in.Base, base.SHA
	if err := branchRoom(ctx, f, conf, in); err != nil {
		return d, err
	}
	paths := make([]string, len(in.Files), 2*len(in.Files))
	for i, x := range in.Files {
		paths[i] = x.Path
	}
	for _, x := range in.Files {
		if dir := path.Dir(x.Path); dir != "." {
			paths = append(paths, dir)
		}
	}
	have, err := f.Files(ctx, in.Project, base.SHA, paths)
	if err != nil {
		return d, err
	}
	bad := Invalid{}
	changes := 0
	for i, x := range in.Files {
		field := fmt.Sprintf("files[%d].path", i)
		h := have[x.Path]
		add := func(format string, a ...any) {
			bad.Fields = append(bad.Fields, FieldError{field, fmt.Sprintf(format, a...)})
		}
		switch {
		case h.Kind == forge.FileSymlink:
			add("is or lies behind a symbolic link in %s", in.Base)
			continue
		case h.Kind == forge.FileDir:
			add("is a folder in %s", in.Base)
			continue
		case h.Kind == forge.FileOther:
			add("is or lies in a submodule in %s", in.Base)
			continue
		case have[path.Dir(x.Path)].Kind == forge.FileRegular:
			// The file above answers for what is below it.
			add("lies below a file in %s", in.Base)
			continue
		case x.Action == "create" && h.Kind != forge.FileAbsent:
			add("exists in %s already: use update or upsert", in.Base)
			continue
		case (x.Action == "update" || x.Action == "delete") && h.Kind == forge.FileAbsent:
			add("does not exist in %s", in.Base)
			continue
		}
		if x.Action == "delete" {
			changes++
			continue
		}
		blob, err := f.Blob(ctx, in.Project, x.Content)
		if err != nil {
			return d, err
		}
		if blob != h.Blob {
			changes++
		}
	}
	if len(bad.Fields) > 0 {
		return d, &bad
	}
	if changes == 0 {
		return d, &Refusal{Code: CodeNoChange, Detail: in.Base + " already says so: nothing would change"}
	}
	return d, nil
}

// ids finds what looks like an operation's id.
var ids = regexp.MustCompile(`[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// Carrier answers the open operation whose branch a merge request would merge,
// empty where there is none, and whether the merge request is that operation's
// own. Every operation's branch has its id in its name, so it is known before
// anything of the merge request is recorded.
func (s *Service) Carrier(ctx context.Context, p store.Pull) (operationID string, own bool, err error) {
	for _, id := range ids.FindAllString(p.Source, -1) {
		row, err := s.Store.Saga(ctx, id)
		switch {
		case errors.Is(err, store.ErrNotFound):
			continue
		case err != nil:
			return "", false, err
		case row.Flow != Table.Name || row.About.Project != p.Repo || !row.ClosedAt.IsZero():
			continue
		}
		d, err := dataOf(row)
		if err != nil {
			return "", false, err
		}
		if o := (opened{row: row, d: d, conf: s.Projects(p.Repo)}); o.branch() != p.Source {
			continue
		}
		return id, d.MRIID == p.IID || d.MRIID == 0 && isOwn(p.Description, id), nil
	}
	return "", false, nil
}

func invalid(field, format string, a ...any) *Invalid {
	return &Invalid{Fields: []FieldError{{field, fmt.Sprintf(format, a...)}}}
}

// asField turns a forge's word on a name that doesn't exist into bad input.
func asField(err error, field string) error {
	e, ok := errors.AsType[*forge.Error](err)
	if !ok || e.Kind != forge.KindNotFound && e.Kind != forge.KindInvalid {
		return err
	}
	if e.Field == "repo" || e.Field == "project" {
		field = "project"
	}
	return invalid(field, "%s", e.Detail)
}

// Plan is what a change would do. Nothing is written anywhere.
type Plan struct {
	Order     saga.Order
	States    []saga.State // the way it would go, when nothing fails
	Base      string
	BaseSHA   string
	Branch    string
	Title     string
	Body      string
	Diff      string
	Approvers []string
	Quorum    int
	Checks    []string
	Reviewers []string
	Deadlines map[saga.State]time.Duration
	InTheWay  string // an operation that a submit would be refused for
}

// maxDiff bounds a plan's diff in bytes.
const maxDiff = 256 << 10

// Plan examines a change like Submit and says what would happen.
func (s *Service) Plan(ctx context.Context, in Submission, actor string) (Plan, error) {
	if bad := in.check(); bad != nil {
		return Plan{}, bad
	}
	d, err := s.examine(ctx, &in, actor)
	if err != nil {
		return Plan{}, err
	}
	order := in.Order
	if order == "" {
		order = s.Order()
	}
	conf := s.Projects(in.Project)
	f, _ := s.Forges(conf.Forge)
	row := saga.Row{ID: "00000000-0000-0000-0000-000000000000", CreatedAt: time.Unix(0, 0), About: saga.About{Subject: in.Subject, Target: in.Target, Project: in.Project, Title: in.Title}}
	p := Plan{Order: order, Base: d.Base, BaseSHA: d.BaseSHA, Branch: strings.ReplaceAll(conf.branch(row), row.ID, "{operation}"), Title: conf.title(row),
		Body: strings.TrimSpace(in.Description + "\n\n" + trailer("{operation}")), Deadlines: map[saga.State]time.Duration{}}
	if p.Diff, err = f.Diff(ctx, newChange(row, d, conf.branch(row), d.BaseSHA, in.Files), maxDiff); err != nil {
		return p, err
	}
	if p.Reviewers, err = f.Reviewers(ctx, in.Project); err != nil {
		return p, err
	}
	checks, err := f.Checks(ctx, in.Project, d.BaseSHA)
	if err != nil {
		return p, err
	}
	for _, c := range checks.Checks {
		if c.Required {
			p.Checks = append(p.Checks, c.Context)
		}
	}
	if s.Builtin != nil {
		p.Approvers, p.Quorum = s.Builtin.For(in.Target)
	}
	p.States = way(order)
	settings := s.Engine.Settings()
	for _, st := range p.States {
		if spec, ok := Table.Spec(st); ok && spec.Deadline.After > 0 {
			p.Deadlines[st] = settings.DeadlineOf(spec)
		}
	}
	if b, err := s.Store.Binding(ctx, in.Subject, in.Target); err == nil {
		if row, err := s.Store.Saga(ctx, b.OperationID); err == nil && !MayApplyAgain(saga.Status(b.Status), row.State, s.Exclusive) {
			p.InTheWay = b.OperationID
		}
	} else if !errors.Is(err, store.ErrNotFound) {
		return p, err
	}
	return p, nil
}

// way is the path of a change that nothing stops.
func way(order saga.Order) []saga.State {
	approve, create := []saga.State{ApprovalSending, ApprovalSent}, []saga.State{CreateStarted, CreateChecking, CreateSucceeded}
	first, second := approve, create
	if order == MRFirst {
		first, second = create, approve
	}
	return slices.Concat(first, second, []saga.State{HandleStarted, HandleApproved, HandleMerged, CalledBack})
}
