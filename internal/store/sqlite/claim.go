package sqlite

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// candidate is a due command as the index of due commands shows it.
type candidate struct {
	id   string
	due  int64
	kind *store.ClaimKind
}

// Claim looks at what is due, kind by kind along the index, so that it costs
// what is due and not what is stored.
func (db *DB) Claim(ctx context.Context, in store.Claim) ([]store.Claimed, error) {
	if in.Max <= 0 {
		return nil, wrap("claim", ctx.Err())
	}
	var out []store.Claimed
	err := db.write(ctx, "claim", func(s *session) error {
		now := db.now()
		picked, err := s.candidates(in, now)
		if err != nil || len(picked) == 0 {
			return err
		}
		ids := make([]string, len(picked))
		for i, c := range picked {
			ids[i] = c.id
		}
		rows, _, err := s.sagas(ids)
		if err != nil {
			return err
		}
		out = make([]store.Claimed, 0, len(picked))
		for _, c := range picked {
			row, ok := rows[c.id]
			if !ok {
				continue // a command without its saga, or with one that can't be read: nobody can perform it
			}
			claimed, m := claim(row, in, *c.kind, now)
			if err := s.putLease(claimed.Row, m); err != nil {
				return err
			}
			out = append(out, claimed)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// claim is the pure part of Claim. A claim of an overdue command is a look and
// no attempt. One that waited too long in the queue keeps its deadline empty:
// that tells it from the others.
func claim(row saga.Row, in store.Claim, k store.ClaimKind, now time.Time) (store.Claimed, marks) {
	late := overdue(row.Command, now, in.Queued)
	deadline := k.Deadline
	if late {
		deadline = 0
	}
	l := store.Lease{SagaID: row.ID, Token: uuid.NewString()}
	m := grant(&row, l, now.Add(in.Lease), k.Look || late, now, deadline)
	return store.Claimed{Row: row, Lease: l, Overdue: late, Now: now}, m
}

// marks say what a lease's beginning did to the command, for Release to undo.
type marks struct {
	counted bool // the attempt
	dated   bool // the deadline
}

// grant leases a copy of the row's command. With a person's event waiting it is
// a look. The deadline starts with the first lease; 0 leaves it as it is.
func grant(r *saga.Row, l store.Lease, until time.Time, look bool, now time.Time, deadline time.Duration) marks {
	c := *r.Command
	m := marks{counted: !look && r.Pending == nil, dated: c.DeadlineAt.IsZero() && deadline > 0}
	if m.counted {
		c.Attempt++
	}
	if m.dated {
		c.DeadlineAt = now.Add(deadline)
	}
	c.LeaseToken, c.LeaseUntil, c.HeldFor = l.Token, until, ""
	r.Command = &c
	return m
}

// overdue: the deadline has passed, or the limit in the queue (0: none).
func overdue(c *saga.CommandRow, now time.Time, queued time.Duration) bool {
	if !c.DeadlineAt.IsZero() {
		return !c.DeadlineAt.After(now)
	}
	return queued > 0 && c.Attempt == 0 && !c.QueuedSince.Add(queued).After(now)
}

func (s *session) putLease(r saga.Row, m marks) error {
	c := r.Command
	_, err := s.exec(`
UPDATE outbox_events
SET lease_token = ?, lease_until = ?, held_for = NULL, attempt = ?, deadline_at = ?, counted = ?, dated = ?
WHERE saga_id = ?`,
		c.LeaseToken, micros(c.LeaseUntil), c.Attempt, micros(c.DeadlineAt), m.counted, m.dated, r.ID)
	return err
}

const (
	selectDue = `
SELECT saga_id, available_at FROM outbox_events
WHERE type = ?1 AND available_at <= ?2 AND (lease_until IS NULL OR lease_until <= ?2)
ORDER BY available_at, saga_id LIMIT ?3`
	selectOverdue = `
SELECT saga_id, available_at FROM outbox_events
WHERE type = ?1 AND available_at <= ?2 AND (lease_until IS NULL OR lease_until <= ?2)
  AND (deadline_at <= ?2 OR (deadline_at IS NULL AND attempt = 0 AND queued_since <= ?4))
ORDER BY available_at, saga_id LIMIT ?3`
)

func (s *session) candidates(in store.Claim, now time.Time) ([]candidate, error) {
	var kinds [][]candidate
	for i := range in.Kinds {
		k := &in.Kinds[i]
		if k.Cap <= 0 {
			continue
		}
		query, args := selectDue, []any{k.Type, now.UnixMicro(), min(k.Cap, in.Max)}
		if in.OverdueOnly {
			queuedBefore := int64(math.MinInt64)
			if in.Queued > 0 {
				queuedBefore = now.Add(-in.Queued).UnixMicro()
			}
			query, args = selectOverdue, append(args, queuedBefore)
		}
		cs, err := all(s, func(sc scanner) (c candidate, err error) {
			c.kind = k
			return c, sc.Scan(&c.id, &c.due)
		}, query, args...)
		if err != nil {
			return nil, err
		}
		if len(cs) > 0 {
			kinds = append(kinds, cs)
		}
	}
	return share(kinds, in.Max), nil
}

// share deals out n places in rounds, one for each kind and the oldest heads
// first: a crowd of one kind can't keep another from being served.
func share(kinds [][]candidate, n int) []candidate {
	var out []candidate
	for len(kinds) > 0 {
		slices.SortFunc(kinds, func(a, b []candidate) int {
			return cmp.Or(cmp.Compare(a[0].due, b[0].due), cmp.Compare(a[0].id, b[0].id))
		})
		for i := range kinds {
			if len(out) == n {
				return out
			}
			out, kinds[i] = append(out, kinds[i][0]), kinds[i][1:]
		}
		kinds = slices.DeleteFunc(kinds, func(k []candidate) bool { return len(k) == 0 })
	}
	return out
}
