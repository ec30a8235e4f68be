package postgres

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Ids go to the database as 16 bytes. What isn't an id in its one canonical
// spelling names nothing, as on a database that compares text.
func idOf(s string) (pgtype.UUID, bool) {
	if len(s) != 36 {
		return pgtype.UUID{}, false
	}
	u, err := uuid.Parse(s)
	if err != nil || u.String() != s {
		return pgtype.UUID{}, false
	}
	return pgtype.UUID{Bytes: u, Valid: true}, true
}

// optionalID is NULL for the empty text.
func optionalID(s string) (pgtype.UUID, bool) {
	if s == "" {
		return pgtype.UUID{}, true
	}
	return idOf(s)
}

func textOf(u pgtype.UUID) string {
	if !u.Valid {
		return ""
	}
	return uuid.UUID(u.Bytes).String()
}

// optionalTime is NULL for the zero time.
func optionalTime(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

func timeOf(t pgtype.Timestamptz) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time.UTC()
}

// stored is a time as the database will give it back.
func stored(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Microsecond)
}

const (
	sagaColumns = `s.saga_id, s.flow, s.flow_version, s.flow_order, s.aggregate_id, s.subject, s.target, s.project, s.title,
		s.created_at, s.state, s.version, s.failed_step, s.error_kind, s.last_error, s.hint, s.pending_event, s.data,
		s.waiting_since, s.updated_at, s.closed_at, s.early`
	commandColumns = `o.type, o.available_at, o.queued_since, o.deadline_at, o.attempt, o.checks, o.unclear, o.evidence,
		o.lease_token, o.lease_until, o.held_for`
)

// sagaScan takes one row of sagaColumns.
type sagaScan struct {
	row              saga.Row
	id               pgtype.UUID
	failure          saga.Failure
	pending, data    []byte
	early            []byte
	created, waiting time.Time
	updated          time.Time
	closed           pgtype.Timestamptz
}

func (x *sagaScan) into() []any {
	r, a, f := &x.row, &x.row.About, &x.failure
	return []any{&x.id, &r.Flow, &r.FlowVersion, (*string)(&r.Order), &r.AggregateID, &a.Subject, &a.Target, &a.Project, &a.Title,
		&x.created, (*string)(&r.State), &r.Version, (*string)(&f.Step), (*string)(&f.Kind), &f.Error, &f.Hint, &x.pending, &x.data,
		&x.waiting, &x.updated, &x.closed, &x.early}
}

// errUnreadable is a saga whose row holds what nobody can read: a hand in the
// database. It must not stop the others.
var errUnreadable = errors.New("the row can't be read")

func (x *sagaScan) saga() (saga.Row, error) {
	r := x.row
	r.ID, r.Data = textOf(x.id), json.RawMessage(x.data)
	r.CreatedAt, r.WaitingSince, r.UpdatedAt, r.ClosedAt = x.created.UTC(), x.waiting.UTC(), x.updated.UTC(), timeOf(x.closed)
	if x.failure != (saga.Failure{}) {
		f := x.failure
		r.Failure = &f
	}
	if x.pending != nil {
		r.Pending = new(saga.Event)
		if err := json.Unmarshal(x.pending, r.Pending); err != nil {
			return r, fmt.Errorf("saga %s: pending event: %w: %w", r.ID, errUnreadable, err)
		}
	}
	if x.early != nil {
		if err := json.Unmarshal(x.early, &r.Early); err != nil {
			return r, fmt.Errorf("saga %s: early events: %w: %w", r.ID, errUnreadable, err)
		}
	}
	return r, nil
}

// commandScan takes one row of commandColumns, all NULL where an outer join found none.
type commandScan struct {
	typ, evidence                            pgtype.Text
	available, queued, deadline, leasedUntil pgtype.Timestamptz
	attempt, checks                          pgtype.Int4
	unclear                                  pgtype.Bool
	token, heldFor                           pgtype.UUID
}

func (x *commandScan) into() []any {
	return []any{&x.typ, &x.available, &x.queued, &x.deadline, &x.attempt, &x.checks, &x.unclear, &x.evidence,
		&x.token, &x.leasedUntil, &x.heldFor}
}

func (x *commandScan) command() *saga.CommandRow {
	if !x.typ.Valid {
		return nil
	}
	return &saga.CommandRow{Type: x.typ.String, AvailableAt: timeOf(x.available), QueuedSince: timeOf(x.queued),
		DeadlineAt: timeOf(x.deadline), Attempt: int(x.attempt.Int32), Checks: int(x.checks.Int32), Unclear: x.unclear.Bool,
		Evidence: x.evidence.String, LeaseToken: textOf(x.token), LeaseUntil: timeOf(x.leasedUntil), HeldFor: textOf(x.heldFor)}
}

// scanWhole reads one row of sagaColumns, commandColumns.
func scanWhole(r pgx.CollectableRow) (saga.Row, error) {
	var s sagaScan
	var c commandScan
	if err := r.Scan(append(s.into(), c.into()...)...); err != nil {
		return saga.Row{}, err
	}
	row, err := s.saga()
	row.Command = c.command()
	return row, err
}

// normal is a decision as it will read back: times in microseconds, data never empty.
func normal(d saga.Decision) saga.Decision {
	r := &d.Row
	r.CreatedAt, r.WaitingSince, r.UpdatedAt, r.ClosedAt = stored(r.CreatedAt), stored(r.WaitingSince), stored(r.UpdatedAt), stored(r.ClosedAt)
	if len(r.Data) == 0 {
		r.Data = json.RawMessage(`{}`)
	}
	if r.Command != nil {
		c := *r.Command
		c.AvailableAt, c.QueuedSince, c.DeadlineAt, c.LeaseUntil = stored(c.AvailableAt), stored(c.QueuedSince), stored(c.DeadlineAt), stored(c.LeaseUntil)
		if c.LeaseUntil.IsZero() {
			c.LeaseToken = ""
		}
		r.Command = &c
	}
	return d
}

// refused answers ErrConflict for a decision that the database can't hold, so
// that it never spoils the batch it is in.
func refused(w store.Writes) error {
	d := w.Decision
	r := d.Row
	texts := []string{string(r.State)}
	if f := r.Failure; f != nil {
		texts = append(texts, string(f.Step), string(f.Kind), f.Error, f.Hint)
	}
	for _, m := range d.Moves {
		texts = append(texts, string(m.Event), string(m.From), string(m.To), m.Actor, m.Detail)
	}
	for _, n := range d.Notes {
		texts = append(texts, string(n.Event), n.Actor, n.Detail)
	}
	if p := w.Outward.Pull; p != nil {
		texts = append(texts, p.Status, p.MergeCommit)
		if _, ok := idOf(p.PullID); !ok {
			return fmt.Errorf("%w: %q is no pull request's id", store.ErrConflict, p.PullID)
		}
	}
	if b := w.Outward.Binding; b != nil {
		texts = append(texts, b.Status)
	}
	kept := r.Early
	if r.Pending != nil {
		kept = append(slices.Clone(kept), *r.Pending)
	}
	for _, e := range kept {
		texts = append(texts, e.ID, string(e.Name), e.Actor, e.Detail)
		if err := refusedJSON(e.Data); err != nil {
			return err
		}
	}
	for _, id := range d.Applied {
		if _, ok := idOf(id); !ok {
			return fmt.Errorf("%w: %q is no callback's id", store.ErrConflict, id)
		}
	}
	if k := w.Keep; k != nil {
		if _, ok := idOf(k.Token); !ok {
			return fmt.Errorf("%w: the lease's token is no uuid", store.ErrConflict)
		}
	}
	if c := r.Command; c != nil {
		texts = append(texts, c.Type, c.Evidence)
		_, token := optionalID(c.LeaseToken)
		_, held := optionalID(c.HeldFor)
		if !token || !held {
			return fmt.Errorf("%w: the command's token is no uuid", store.ErrConflict)
		}
		if c.Attempt < 0 || c.Attempt > math.MaxInt32 || c.Checks < 0 || c.Checks > math.MaxInt32 {
			return fmt.Errorf("%w: attempts or checks out of range", store.ErrConflict)
		}
	}
	for _, t := range texts {
		if err := refusedText(t); err != nil {
			return err
		}
	}
	return refusedJSON(r.Data)
}

// refusedStart is refused with what only a new saga writes.
func refusedStart(d saga.Decision) error {
	r := d.Row
	for _, t := range []string{r.Flow, string(r.Order), r.AggregateID, r.About.Subject, r.About.Target, r.About.Project, r.About.Title} {
		if err := refusedText(t); err != nil {
			return err
		}
	}
	if _, ok := idOf(r.ID); !ok {
		return fmt.Errorf("%w: %q is no saga's id", store.ErrConflict, r.ID)
	}
	return refused(store.Writes{Decision: d})
}

func refusedText(s string) error {
	if strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s) {
		return fmt.Errorf("%w: a text holds NUL or is not UTF-8", store.ErrConflict)
	}
	return nil
}

func refusedJSON(b []byte) error {
	switch {
	case len(b) == 0:
		return nil
	case !utf8.Valid(b) || !json.Valid(b):
		return fmt.Errorf("%w: the saga's data is not JSON", store.ErrConflict)
	case unstorable(b):
		return fmt.Errorf("%w: the saga's data holds NUL or half a character", store.ErrConflict)
	}
	return nil
}

// unstorable finds, in valid JSON, an escape that stands for no text that a
// database can hold: NUL, or half of a surrogate pair.
func unstorable(b []byte) bool {
	if bytes.IndexByte(b, '\\') < 0 {
		return false
	}
	high := false // a first half stands directly before
	for i := 0; i < len(b); i++ {
		unit := uint64(' ')
		if b[i] == '\\' {
			i++ // valid JSON: something follows
			if b[i] == 'u' {
				unit, _ = strconv.ParseUint(string(b[i+1:i+5]), 16, 16) // and four digits follow the u
				i += 4
			}
		}
		low := unit >= 0xDC00 && unit < 0xE000
		if unit == 0 || low != high {
			return true
		}
		high = unit >= 0xD800 && unit < 0xDC00
	}
	return high
}
