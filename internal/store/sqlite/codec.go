package sqlite

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// micros is a time as a column holds it; nil for the zero time.
func micros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// null is a text column that is null instead of empty.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// moment scans a time; null is the zero time.
type moment struct{ t *time.Time }

func (m moment) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*m.t = time.Time{}
	case int64:
		*m.t = time.UnixMicro(v).UTC()
	default:
		return fmt.Errorf("%T is no time", v)
	}
	return nil
}

// text scans a string that may be null.
type text struct{ s *string }

func (t text) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*t.s = ""
	case string:
		*t.s = v
	default:
		return fmt.Errorf("%T is no text", v)
	}
	return nil
}

// jsonText scans JSON; null leaves the value as it is.
// errUnreadable is a row that holds what nobody can read: a hand in the
// database. It must not stop the others.
var errUnreadable = errors.New("the row can't be read")

type jsonText struct{ v any }

func (j jsonText) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		if err := json.Unmarshal([]byte(v), j.v); err != nil {
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}
		return nil
	}
	return fmt.Errorf("%T is no JSON", v)
}

func toJSON(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// dataText is a saga's data as its column holds it.
func dataText(d json.RawMessage) string {
	if len(bytes.TrimSpace(d)) == 0 {
		return "{}"
	}
	return string(d)
}

const selectSaga = `
SELECT s.saga_id, s.flow, s.flow_version, s.flow_order, s.aggregate_id, s.subject, s.target, s.project, s.title,
       s.created_at, s.state, s.version, s.failed_step, s.error_kind, s.last_error, s.hint, s.pending_event, s.data,
       s.waiting_since, s.updated_at, s.closed_at, s.early,
       o.type, o.available_at, o.queued_since, o.deadline_at, coalesce(o.attempt, 0), coalesce(o.checks, 0), coalesce(o.unclear, 0), o.evidence,
       o.lease_until, o.lease_token, o.held_for
FROM saga_instances s LEFT JOIN outbox_events o ON o.saga_id = s.saga_id `

func scanSaga(sc scanner) (saga.Row, error) {
	var r saga.Row
	var f saga.Failure
	var c saga.CommandRow
	var data string
	err := sc.Scan(&r.ID, &r.Flow, &r.FlowVersion, &r.Order, &r.AggregateID, &r.About.Subject, &r.About.Target, &r.About.Project, &r.About.Title,
		moment{&r.CreatedAt}, &r.State, &r.Version, &f.Step, &f.Kind, &f.Error, &f.Hint, jsonText{&r.Pending}, &data,
		moment{&r.WaitingSince}, moment{&r.UpdatedAt}, moment{&r.ClosedAt}, jsonText{&r.Early},
		text{&c.Type}, moment{&c.AvailableAt}, moment{&c.QueuedSince}, moment{&c.DeadlineAt}, &c.Attempt, &c.Checks, &c.Unclear, text{&c.Evidence},
		moment{&c.LeaseUntil}, text{&c.LeaseToken}, text{&c.HeldFor})
	r.Data = json.RawMessage(data)
	if f.Step != "" {
		r.Failure = &f
	}
	if c.Type != "" {
		r.Command = &c
	}
	return r, err
}

const selectPull = `
SELECT pull_id, forge, repo, iid, source, target, title, description, author, forge_state, saga_status, merge_commit,
       operation_id, created_at, updated_at
FROM pull_requests `

func scanPull(sc scanner) (store.Pull, error) {
	var p store.Pull
	err := sc.Scan(&p.ID, &p.Forge, &p.Repo, &p.IID, &p.Source, &p.Target, &p.Title, &p.Description, &p.Author,
		&p.ForgeState, &p.SagaStatus, &p.MergeCommit, text{&p.OperationID}, moment{&p.CreatedAt}, moment{&p.UpdatedAt})
	return p, err
}

const selectRepo = `
SELECT name, default_branch, required_checks, merge_style, require_up_to_date, reviewers, created_at
FROM repositories `

func scanRepo(sc scanner) (store.Repo, error) {
	var r store.Repo
	err := sc.Scan(&r.Name, &r.DefaultBranch, jsonText{&r.RequiredChecks}, &r.MergeStyle, &r.RequireUpToDate, jsonText{&r.Reviewers}, moment{&r.CreatedAt})
	return r, err
}

func scanInt(sc scanner) (n int64, err error) {
	err = sc.Scan(&n)
	return n, err
}

func scanText(sc scanner) (s string, err error) {
	err = sc.Scan(&s)
	return s, err
}
