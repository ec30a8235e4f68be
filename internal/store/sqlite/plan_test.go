package sqlite

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// What runs all the time looks along an index: it costs what is due, not what
// is stored. A plan that scans or sorts a table fails here, not in production.
func TestPlans(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Path: Memory})
	row := start(t, db, nil)
	ctx := t.Context()
	lease := store.Lease{SagaID: row.ID, Token: "x"}
	steps := map[string]func() error{
		"claim": func() error {
			_, err := db.Claim(ctx, store.Claim{Kinds: []store.ClaimKind{{Type: kind, Cap: 1}}, Max: 1, Lease: time.Minute})
			return err
		},
		"claim overdue": func() error {
			_, err := db.Claim(ctx, store.Claim{Kinds: []store.ClaimKind{{Type: kind, Cap: 1}}, Max: 1, OverdueOnly: true})
			return err
		},
		"apply": func() error {
			rs, err := db.Apply(ctx, []store.Request{{SagaID: row.ID}}, func(_ int, l store.Locked) (store.Writes, error) {
				d := saga.Decision{Row: l.Row, Moves: []saga.Move{{Seq: 2}}, Notes: []saga.Note{{}}}
				return store.Writes{Decision: d, Outward: store.Outward{Pull: &store.PullWrite{PullID: row.AggregateID}}}, nil
			})
			return errors.Join(err, rs[0].Err)
		},
		"heartbeat": func() error { _, err := db.Heartbeat(ctx, []store.Lease{lease}, time.Minute); return err },
		"release":   func() error { return db.Release(ctx, []store.Lease{lease}) },
		"next due":  func() error { _, _, err := db.NextDue(ctx, []string{kind}); return err },
		"backlog":   func() error { _, err := db.Backlog(ctx, 10); return err },
		"saga":      func() error { _, err := db.Saga(ctx, row.ID); return err },
		"history":   func() error { _, err := db.History(ctx, row.ID, store.Mark{}, 10); return err },
		"note":      func() error { return db.Note(ctx, row.ID, saga.Note{}) },
		"list":      func() error { _, err := db.Sagas(ctx, store.SagaFilter{}); return err },
		"list of one aggregate": func() error {
			_, err := db.Sagas(ctx, store.SagaFilter{Aggregate: row.AggregateID})
			return err
		},
		"next page": func() error {
			_, err := db.Sagas(ctx, store.SagaFilter{Before: &store.Cursor{At: row.CreatedAt, ID: row.ID}})
			return err
		},
		"pull requests": func() error { _, err := db.Pulls(ctx, store.PullFilter{}); return err },
		"start a change": func() error {
			in := store.ChangeDoor{Key: &store.IdempotencyKey{Scope: "ada", Key: uuid.NewString(), Hash: "h"}, Subject: "team", Target: "quota"}
			_, err := db.StartChange(ctx, in, func(d store.DoorState) (store.StartChange, error) {
				r := saga.Row{ID: uuid.NewString(), Flow: "change", CreatedAt: d.Now, WaitingSince: d.Now, UpdatedAt: d.Now, Data: saga.Patch(map[string]int{"mrIid": 1})}
				return store.StartChange{New: saga.Decision{Row: r}, Inputs: []store.Input{{Path: "a"}}}, nil
			})
			return err
		},
		"callback": func() error {
			cb := store.Callback{ID: uuid.NewString(), Source: "s", RequestID: uuid.NewString(), OperationID: row.ID}
			_, err := db.Callback(ctx, cb, func(s store.CallbackState) (store.CallbackDecision, error) {
				d := saga.Decision{Row: s.Saga.Row, Applied: []string{uuid.NewString()}, KeepCommand: true}
				return store.CallbackDecision{Writes: &store.Writes{Decision: d, Outward: store.Outward{Binding: &store.BindingWrite{}}}, Deploy: &store.DeployRecord{}}, nil
			})
			return err
		},
		"ledger":     func() error { _, err := db.Callbacks(ctx, row.ID, 0, 10); return err },
		"inputs":     func() error { _, err := db.Inputs(ctx, row.ID); return err },
		"live since": func() error { _, err := db.LiveSince(ctx, "p", "main", time.Time{}, 5); return err },
		"find a merge": func() error {
			if _, err := db.OperationOf(ctx, "p", "c", 1); !errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("found: %w", err)
			}
			return nil
		},
		"by number": func() error { _, err := db.PullByIID(ctx, "default", "r", 1); return err },
	}
	for name, step := range steps {
		clear(db.prepared)
		if err := step(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for query := range db.prepared {
			for _, line := range explain(t, db, query) {
				if scansTable(line) {
					t.Errorf("%s: %s: %s", name, line, query)
				}
				if strings.HasSuffix(line, "outbox_events_due (type=?)") {
					t.Errorf("%s looks at what isn't due (%s): %s", name, line, query)
				}
				if strings.Contains(line, "TEMP B-TREE") && name != "history" && name != "list of one aggregate" {
					t.Errorf("%s sorts (%s): %s", name, line, query)
				}
			}
		}
	}

	// The look itself: without its index, a claim is a scan.
	if _, err := db.conn.ExecContext(ctx, "DROP INDEX outbox_events_due"); err != nil {
		t.Fatal(err)
	}
	if lines := explain(t, db, selectDue); !slices.ContainsFunc(lines, scansTable) {
		t.Errorf("a scan goes unnoticed: %v", lines)
	}
}

// scansTable: a whole table is read. Scans of lists that the caller hands in,
// of the kinds, and of an index in its own order are what is meant.
func scansTable(line string) bool {
	for _, table := range []string{"s", "o", "saga_instances", "outbox_events", "pull_requests", "saga_history", "saga_notes",
		"bindings", "change_inputs", "change_refs", "idempotency_keys", "callbacks", "callback_keys", "deploy_callbacks"} {
		if line == "SCAN "+table {
			return true
		}
	}
	return false
}

func explain(t *testing.T, db *DB, query string) []string {
	t.Helper()
	switch verb, _, _ := strings.Cut(strings.TrimSpace(query), " "); verb {
	case "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE":
		return nil // these have no plan
	}
	rows, err := db.conn.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, nullsFor(query)...)
	if err != nil {
		t.Fatalf("explain %s: %v", query, err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		var id, parent, unused int
		var line string
		if err := rows.Scan(&id, &parent, &unused, &line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

// nullsFor makes as many arguments as a query has placeholders.
func nullsFor(query string) []any {
	n := strings.Count(query, "?")
	for i := 9; i > 0; i-- {
		if strings.Contains(query, "?"+string(rune('0'+i))) {
			n = i
			break
		}
	}
	return make([]any, n)
}

func TestBadEscapes(t *testing.T) {
	t.Parallel()
	for text, bad := range map[string]bool{
		`{}`:                         false,
		`{"a":"plain"}`:              false,
		`"\n\t\"\\"`:                 false,
		`"\\u0000"`:                  false, // a backslash and the text u0000
		`"\\\u0000"`:                 true,
		`"\u0000"`:                   true,
		`"\u0001\u00e9"`:             false,
		`"\ud83d\ude80"`:             false,
		`"\uD83D\uDE80 \ud83d"`:      true,
		`"\ud83d\u0041"`:             true,
		`"\ud83d"`:                   true,
		`"\ud83d\\ude80"`:            true,
		`"\ude80"`:                   true,
		`{"\u0000":1}`:               true,
		`"x\ud83d\ude80\u0000"`:      true,
		`"\ud83d\ude80\ud83d\ude80"`: false,
	} {
		if !json.Valid([]byte(text)) {
			t.Fatalf("%s is no JSON", text)
		}
		if got := hasBadEscape([]byte(text)); got != bad {
			t.Errorf("%s: bad %v, want %v", text, got, bad)
		}
	}
}
