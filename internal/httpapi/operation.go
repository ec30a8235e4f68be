package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// OperationStore is where operations are read.
type OperationStore interface {
	Saga(ctx context.Context, id string) (saga.Row, error)
	Sagas(ctx context.Context, f store.SagaFilter) ([]saga.Row, error)
}

// Operations shows sagas as users see them. It is safe for concurrent use.
type Operations struct {
	store    OperationStore
	flows    []*saga.Flow
	settings func() saga.Settings
	base     string
}

// OperationFilter selects operations for a list, newest first. Empty members
// select all; Limit 0 means the default, and Cursor is the Next of a page before.
type OperationFilter struct {
	Flow, Status, State, Subject, Target, Project, Query string
	Limit                                                int
	Cursor                                               string
}

// Get reads one operation. An id that names none, or is none, is an *Error
// with status 404.
func (o *Operations) Get(ctx context.Context, id string) (Operation, error) {
	row, err := o.row(ctx, id)
	if err != nil {
		return Operation{}, err
	}
	return o.Show(row), nil
}

func (o *Operations) row(ctx context.Context, id string) (saga.Row, error) {
	known, ok := canonicalID(id)
	if !ok {
		return saga.Row{}, notFound("there is no operation " + id)
	}
	row, err := o.store.Saga(ctx, known)
	return row, missing(err, "operation "+id)
}

// List reads one page. A bad filter is an *Error that names its field.
func (o *Operations) List(ctx context.Context, f OperationFilter) (List[Operation], error) {
	if f.Limit == 0 {
		f.Limit = pageDefault
	}
	before, err := readTimeCursor("o", f.Cursor)
	if err != nil {
		return List[Operation]{}, err
	}
	filter := store.SagaFilter{Flow: f.Flow, Subject: f.Subject, Target: f.Target, Project: f.Project, Query: f.Query, Limit: f.Limit + 1, Before: before}
	if f.State != "" {
		filter.States = []saga.State{saga.State(f.State)}
	}
	if f.Status != "" {
		states := o.statesOf(f.Flow, f.Status)
		if len(states) == 0 {
			return List[Operation]{}, invalid("status", "is none of "+strings.Join(o.Statuses(f.Flow), ", "))
		}
		if f.State != "" {
			states = slices.DeleteFunc(states, func(s saga.State) bool { return string(s) != f.State })
		}
		if filter.States = states; len(states) == 0 {
			return List[Operation]{Items: []Operation{}}, nil // that state never has that status
		}
	}
	rows, err := o.store.Sagas(ctx, filter)
	if err != nil {
		return List[Operation]{}, err
	}
	return pageOf(rows, f.Limit, o.Show, func(r saga.Row) string { return timeCursor("o", r.CreatedAt, r.ID) }), nil
}

// Flows lists the names of the flows.
func (o *Operations) Flows() []string {
	var out []string
	for _, f := range o.flows {
		if !slices.Contains(out, f.Name) {
			out = append(out, f.Name)
		}
	}
	return out
}

// Statuses lists the outward statuses of a flow, or of all where flow is empty.
func (o *Operations) Statuses(flow string) []string {
	var out []string
	o.each(flow, func(s *saga.Spec) {
		if !slices.Contains(out, string(s.Status)) {
			out = append(out, string(s.Status))
		}
	})
	return out
}

// statesOf expands a status.
func (o *Operations) statesOf(flow, status string) []saga.State {
	var out []saga.State
	o.each(flow, func(s *saga.Spec) {
		if string(s.Status) == status && !slices.Contains(out, s.State) {
			out = append(out, s.State)
		}
	})
	return out
}

func (o *Operations) each(flow string, visit func(*saga.Spec)) {
	for _, f := range o.flows {
		if flow != "" && f.Name != flow {
			continue
		}
		for i := range f.States {
			visit(&f.States[i])
		}
	}
}

// table finds a row's table and its state; ok is false for one that this
// instance doesn't know: a newer one's, during a rollout.
func (o *Operations) table(row saga.Row) (f *saga.Flow, spec *saga.Spec, ok bool) {
	for _, f := range o.flows {
		if f.Name == row.Flow && f.Version == row.FlowVersion {
			spec, ok := f.Spec(row.State)
			return f, spec, ok
		}
	}
	return nil, nil, false
}

// Show is the one place that makes an operation of a row.
func (o *Operations) Show(row saga.Row) Operation {
	out := Operation{
		ID: row.ID, Flow: row.Flow, Order: string(row.Order),
		Subject: row.About.Subject, Target: row.About.Target, Project: row.About.Project, Title: row.About.Title,
		State: string(row.State), Status: unknown, Phase: unknown, Actions: []string{},
		MergeRequest: mergeRequest(row),
		Links:        Links{Self: o.base + "/v1/operations/" + row.ID, Page: o.base + "/operations/" + row.ID},
		CreatedAt:    row.CreatedAt.UTC(), UpdatedAt: row.UpdatedAt.UTC(),
	}
	if f := row.Failure; f != nil {
		out.Failure = &Failure{Step: string(f.Step), Kind: string(f.Kind), Error: f.Error, Hint: f.Hint}
	}
	flow, spec, ok := o.table(row)
	if !ok {
		out.Explain = foreign(row)
		return out
	}
	out.Status, out.Code, out.Phase, out.Actions = string(spec.Status), spec.Code, spec.Phase, texts(spec.Actions(row))
	x := saga.Explain(flow, row, o.settings())
	out.Explain = Explain{
		Summary: x.Summary, WaitingFor: x.WaitingFor, Who: x.Who, Since: utc(x.Since), Deadline: utc(x.Deadline),
		OnDeadline: x.OnDeadline, NextCheck: utc(x.NextCheck), LastEvidence: x.LastEvidence, Attempt: x.Attempt,
	}
	return out
}

const unknown = "unknown"

// foreign explains a row of a table that this instance doesn't have.
func foreign(row saga.Row) Explain {
	x := Explain{
		Summary: fmt.Sprintf("Flow %s version %d, state %s: not known to this instance", row.Flow, row.FlowVersion, row.State),
		Since:   utc(row.WaitingSince),
	}
	if row.ClosedAt.IsZero() {
		x.WaitingFor, x.Who = "an instance that knows this flow", "operators"
	}
	if c := row.Command; c != nil {
		x.Deadline, x.NextCheck, x.LastEvidence = utc(c.DeadlineAt), utc(c.AvailableAt), c.Evidence
	}
	return x
}

// mergeRequest is what the saga's data says of its merge request.
func mergeRequest(row saga.Row) *MergeRequest {
	switch row.Flow {
	case change.Table.Name:
		return changeMergeRequest(row)
	case pull.Table.Name:
	default:
		return nil
	}
	var d pull.Data
	if json.Unmarshal(row.Data, &d) != nil || d.IID == 0 {
		return nil
	}
	return &MergeRequest{IID: d.IID, URL: d.URL, Branch: d.Source, HeadSHA: d.HeadSHA, MergeCommit: d.MergeCommit}
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}
