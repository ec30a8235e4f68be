package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

type listOperationsIn struct {
	Flow    string `query:"flow"`
	Status  string `query:"status" doc:"Outward status"`
	State   string `query:"state"`
	Subject string `query:"subject"`
	Target  string `query:"target"`
	Project string `query:"project"`
	Query   string `query:"q" maxLength:"200" doc:"Part of title, subject, target or project"`
	Limit   int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
	Cursor  string `query:"cursor" maxLength:"1000" doc:"next of the page before"`
}

type readOperationIn struct {
	ID          string `path:"id"`
	IfNoneMatch string `header:"If-None-Match"`
}

type operationOut struct {
	Status int
	ETag   string `header:"ETag"`
	Body   Operation
}

type historyIn struct {
	ID     string `path:"id"`
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
	Cursor string `query:"cursor" maxLength:"1000" doc:"next of the page before"`
}

type actIn struct {
	ID   string `path:"id"`
	Body Reason
}

type acceptedOut struct {
	Location string `header:"Location"`
	Body     Accepted
}

type page[T any] struct {
	Body List[T]
}

func (a *api) operationRoutes() {
	register(a, get("list-operations", "/v1/operations", "List operations, newest first", 422), a.listOperations)
	register(a, get("get-operation", "/v1/operations/{id}", "Read an operation", 404), a.getOperation)
	register(a, get("get-operation-history", "/v1/operations/{id}/history", "Transitions and notes, oldest first", 404), a.history)
	a.watchRoute()
	for _, act := range []struct {
		event   saga.Name
		summary string
	}{
		{saga.Retry, "Re-enter the step that failed, and nothing before it"},
		{saga.Resume, "Keep waiting"},
		{saga.Fail, "Give up a wait"},
		{saga.Close, "End an operation that has not merged"},
	} {
		op := post(string(act.event)+"-operation", "/v1/operations/{id}/"+string(act.event), act.summary, http.StatusAccepted, 404, 409, 503)
		register(a, op, func(ctx context.Context, in *actIn) (*acceptedOut, error) {
			return a.act(ctx, in.ID, act.event, in.Body.Reason)
		})
	}
}

func (a *api) listOperations(ctx context.Context, in *listOperationsIn) (*page[Operation], error) {
	l, err := a.ops.List(ctx, OperationFilter{Flow: in.Flow, Status: in.Status, State: in.State, Subject: in.Subject,
		Target: in.Target, Project: in.Project, Query: in.Query, Limit: in.Limit, Cursor: in.Cursor})
	return &page[Operation]{l}, err
}

func (a *api) getOperation(ctx context.Context, in *readOperationIn) (*operationOut, error) {
	op, err := a.ops.Get(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	out := &operationOut{Status: http.StatusOK, ETag: etag(op), Body: op}
	if matches(in.IfNoneMatch, out.ETag) {
		out.Status = http.StatusNotModified
	}
	return out, nil
}

// etag changes with anything that the operation shows.
func etag(op Operation) string {
	b, _ := json.Marshal(op) // texts, numbers and times
	sum := sha256.Sum256(b)
	return `"` + hex.EncodeToString(sum[:12]) + `"`
}

func matches(header, tag string) bool {
	for _, t := range strings.Split(header, ",") {
		if t = strings.TrimSpace(t); t == "*" || strings.TrimPrefix(t, "W/") == tag {
			return true
		}
	}
	return false
}

func (a *api) history(ctx context.Context, in *historyIn) (*page[HistoryEntry], error) {
	row, err := a.ops.row(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	var after store.Mark
	if in.Cursor != "" {
		parts, ok := decodeCursor("h", in.Cursor, 1)
		if ok {
			after, ok = readMark(parts[0])
		}
		if !ok {
			return nil, badCursor()
		}
	}
	entries, err := a.Store.History(ctx, row.ID, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	return &page[HistoryEntry]{pageOf(entries, in.Limit, showEntry, func(e store.Entry) string { return encodeCursor("h", markText(e.Mark)) })}, nil
}

func showEntry(e store.Entry) HistoryEntry {
	kind := kindTransition
	if e.IsNote {
		kind = kindNote
	}
	return HistoryEntry{Seq: e.Mark.Seq, Kind: kind, Event: string(e.Event), From: string(e.From), To: string(e.To), Actor: e.Actor, At: e.At.UTC(), Detail: e.Detail}
}

// actRounds bounds how often an operator's event is tried again on a row that
// moved between the look and the write.
const actRounds = 3

// act sends an operator's event. A repeat whose effect is under way is accepted
// like the first.
func (a *api) act(ctx context.Context, id string, event saga.Name, reason string) (*acceptedOut, error) {
	var err error
	for range actRounds {
		var row saga.Row
		if row, err = a.ops.row(ctx, id); err != nil {
			return nil, err
		}
		var d saga.Decision
		if d, err = a.send(ctx, row, event, reason); err == nil {
			return a.accepted(d.Row), nil
		}
		if !errors.Is(err, saga.ErrAlreadyAdvanced) {
			return nil, err
		}
		now, lookErr := a.ops.row(ctx, id)
		if lookErr != nil {
			return nil, lookErr
		}
		if now.Version == row.Version {
			return a.accepted(now), nil // nothing moved in between: what was asked is under way
		}
	}
	return nil, err
}

func (a *api) send(ctx context.Context, row saga.Row, event saga.Name, reason string) (saga.Decision, error) {
	_, spec, ok := a.ops.table(row)
	if !ok {
		return saga.Decision{}, notAllowed(fmt.Sprintf("flow %s version %d is not known to this instance", row.Flow, row.FlowVersion), nil)
	}
	// Tables let a step fail its state; a person may only where it is offered.
	if event == saga.Fail && !slices.Contains(spec.Actions(row), saga.Fail) {
		return saga.Decision{}, &saga.Refusal{Flow: row.Flow, State: row.State, Event: event, Allowed: spec.Actions(row), Err: saga.ErrIllegalTransition}
	}
	switch {
	case row.Flow == pull.Table.Name:
		return a.Pulls.Operate(ctx, row, event, reason, actor)
	case row.Flow == change.Table.Name && a.Changes != nil:
		return a.Changes.Operate(ctx, row, event, reason, actor)
	}
	return a.Engine.Send(ctx, row.ID, saga.Event{Name: event, Actor: actor, Detail: reason})
}

func (a *api) accepted(row saga.Row) *acceptedOut {
	op := a.ops.Show(row)
	return &acceptedOut{Location: "/v1/operations/" + row.ID, Body: Accepted{OperationID: row.ID, Status: op.Status, State: op.State}}
}
