package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// rows is a store whose sagas are the test's.
type rows struct {
	httpapi.Store
	row saga.Row
	// after are the rows that later reads answer, one each; the last stays.
	after []saga.Row
}

func (r *rows) Saga(context.Context, string) (saga.Row, error) {
	row := r.row
	if len(r.after) > 0 {
		r.row, r.after = r.after[0], r.after[1:]
	}
	return row, nil
}

func (r *rows) Sagas(context.Context, store.SagaFilter) ([]saga.Row, error) {
	return []saga.Row{r.row}, nil
}

// sent is an engine that answers what the test says and counts.
type sent struct {
	httpapi.Engine
	err   error
	count int
}

func (s *sent) Send(context.Context, string, saga.Event) (saga.Decision, error) {
	s.count++
	return saga.Decision{}, s.err
}

// During a rollout a newer instance's rows are shown as they are, and moved by nobody here.
func TestRowsOfAnUnknownTable(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.FixedZone("", 7200))
	db := &rows{row: saga.Row{
		ID: noID, Flow: "pull", FlowVersion: 99, State: "POLISHING", CreatedAt: at, UpdatedAt: at, WaitingSince: at,
		About: saga.About{Project: "a", Title: "T"}, Failure: &saga.Failure{Step: "SANDING", Kind: saga.NeedsHuman, Error: "dust"},
		Command: &saga.CommandRow{DeadlineAt: at.Add(time.Hour), Evidence: "half smooth"},
	}}
	f := start(t, func(o *httpapi.Options) {
		db.Store = o.Store
		o.Store = db
	})
	for _, path := range []string{"/v1/operations/" + noID, "/v1/operations"} {
		a := f.do("GET", path, "")
		var op httpapi.Operation
		if body := a.body; strings.HasPrefix(body, `{"items"`) {
			var l httpapi.List[httpapi.Operation]
			decode(t, body, &l)
			op = l.Items[0]
		} else {
			decode(t, body, &op)
		}
		if op.State != "POLISHING" || op.Status != "unknown" || op.Phase != "unknown" || op.Final() || op.Failed() || op.Explain.Deadline.IsZero() ||
			op.Explain.LastEvidence != "half smooth" || op.Explain.Who == "" || op.Failure.Step != "SANDING" {
			t.Errorf("%s: %s", path, a.body)
		}
		if !strings.Contains(a.body, `"createdAt":"2026-05-04T01:02:01Z"`) {
			t.Errorf("times are not UTC: %s", a.body)
		}
	}
	f.do("POST", "/v1/operations/"+noID+"/retry", "").refused(t, http.StatusConflict, "not-allowed-now")
	db.row.ClosedAt = at
	a := f.do("GET", "/v1/operations/"+noID, "")
	var op httpapi.Operation
	if decode(t, a.body, &op); !op.Final() {
		t.Errorf("a closed one goes on: %s", a.body)
	}
}

// A flow without a service of its own gets its events straight from the engine;
// an event that was overtaken is sent again for the row as it is then.
func TestOvertakenEvents(t *testing.T) {
	t.Parallel()
	flow := *pull.Table
	flow.Name = "other"
	row := saga.Row{ID: noID, Flow: "other", FlowVersion: 1, State: pull.MergeFailed, Version: 5, Data: json.RawMessage(`{}`)}
	advanced := &saga.Refusal{Flow: "other", State: pull.MergeFailed, Event: saga.Retry, Err: saga.ErrAlreadyAdvanced}
	moving := func(n int64) saga.Row {
		r := row
		r.Version += n
		return r
	}
	for _, c := range []struct {
		name  string
		after []saga.Row
		want  int
		sends int
	}{
		{"nothing moved: its effect is under way", nil, http.StatusAccepted, 1},
		{"moved once", []saga.Row{moving(1), moving(1)}, http.StatusAccepted, 2},
		{"moves for ever", []saga.Row{moving(1), moving(1), moving(2), moving(2), moving(3)}, http.StatusConflict, 3},
	} {
		db, engine := &rows{row: row, after: c.after}, &sent{err: advanced}
		f := start(t, func(o *httpapi.Options) {
			db.Store, engine.Engine = o.Store, o.Engine
			o.Store, o.Engine, o.Flows = db, engine, []*saga.Flow{&flow}
		})
		if a := f.do("POST", "/v1/operations/"+noID+"/retry", ""); a.status != c.want || engine.count != c.sends {
			t.Errorf("%s: %d after %d sends: %s", c.name, a.status, engine.count, a.body)
		}
	}
}
