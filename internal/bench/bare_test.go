package bench

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/mergeflow/mergeflow/internal/engine"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

// batch is how many sagas share a transaction.
const batch = 200

// The bare loop: the same rows in the same batches, with no logic. It is sent
// in one go, as nothing in it depends on what was read.
var bareLoop = []string{
	`BEGIN`,
	`SELECT * FROM saga_instances WHERE saga_id = ANY($1) ORDER BY saga_id FOR UPDATE`,
	`SELECT * FROM outbox_events WHERE saga_id = ANY($1) ORDER BY saga_id FOR UPDATE`,
	`UPDATE saga_instances s SET state = t.state, version = t.version, data = t.data::json, waiting_since = t.at, updated_at = t.at, closed_at = t.closed
	FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::timestamptz[], $6::timestamptz[]) AS t(id, state, version, data, at, closed) WHERE s.saga_id = t.id`,
	`INSERT INTO saga_history (saga_id, seq, event, from_state, to_state, actor, detail, at)
	SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[])`,
	`UPDATE outbox_events o SET type = t.type, available_at = t.at, queued_since = t.at, attempt = 1, deadline_at = t.until, lease_token = t.token, lease_until = t.until
	FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::uuid[]) AS t(id, type, at, until, token) WHERE o.saga_id = t.id`,
	`DELETE FROM outbox_events WHERE saga_id = ANY($1)`,
	`COMMIT`,
}

const (
	bareBegin = iota
	bareLock
	bareRead
	bareUpdate
	bareHistory
	bareCommand
	bareDelete
	bareCommit
)

// bare carries all sagas of flow core that are due to their end.
func (d *database) bare() (transitions int, took time.Duration) {
	d.tb.Helper()
	ctx := d.tb.Context()
	rows, err := d.pg.Query(ctx, "SELECT saga_id FROM outbox_events WHERE type LIKE 'core/%' ORDER BY saga_id")
	if err != nil {
		d.tb.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	if err != nil {
		d.tb.Fatal(err)
	}
	began := time.Now()
	for len(ids) > 0 {
		some := ids[:min(batch, len(ids))]
		ids = ids[len(some):]
		for step := range steps {
			if err := d.bareStep(ctx, some, step); err != nil {
				d.tb.Fatal(err)
			}
			transitions += len(some)
		}
	}
	return transitions, time.Since(began)
}

func (d *database) bareStep(ctx context.Context, ids [][16]byte, step int) error {
	now := time.Now()
	from, to := core.States[step], core.States[step+1]
	var closed *time.Time
	if to.Kind == saga.Final {
		closed = &now
	}
	tokens := make([][16]byte, len(ids))
	for i := range tokens {
		tokens[i] = uuid.New()
	}
	seq, empty := same(int64(step+2), ids), same("", ids)
	b := &pgx.Batch{}
	b.Queue(bareLoop[bareBegin])
	for _, read := range []string{bareLoop[bareLock], bareLoop[bareRead]} {
		b.Queue(read, ids).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				_ = rows.RawValues()
			}
			return rows.Err()
		})
	}
	b.Queue(bareLoop[bareUpdate], ids, same(string(to.State), ids), seq, same(coreData, ids), same(now, ids), same(closed, ids))
	b.Queue(bareLoop[bareHistory], ids, seq, same("ok", ids), same(string(from.State), ids), same(string(to.State), ids), same("mergeflow", ids), empty, same(now, ids))
	if closed == nil {
		b.Queue(bareLoop[bareCommand], ids, same(saga.TypeOf(core.Name, core.Version, to.State, to.Command), ids), same(now, ids), same(now.Add(time.Hour), ids), tokens)
	} else {
		b.Queue(bareLoop[bareDelete], ids)
	}
	b.Queue(bareLoop[bareCommit])
	return d.pg.SendBatch(ctx, b).Close()
}

func same[T any](v T, like [][16]byte) []T {
	out := make([]T, len(like))
	for i := range out {
		out[i] = v
	}
	return out
}

// loop carries n sagas of a flow to their end through the store alone, by the
// engine's own decisions, so many of them a transaction. As in the engine, the
// committer keeps the next command.
func loop(tb testing.TB, db store.Store, f engine.Flow, n, perCommit int) (took time.Duration) {
	tb.Helper()
	ctx := tb.Context()
	var kinds []store.ClaimKind
	for _, s := range f.Table.States {
		if s.Kind == saga.Running {
			kinds = append(kinds, store.ClaimKind{Type: saga.TypeOf(f.Table.Name, f.Table.Version, s.State, s.Command), Cap: batch, Deadline: s.Deadline.After})
		}
	}
	began := time.Now()
	var ready []store.Claimed
	for done := 0; done < n*steps; {
		if len(ready) == 0 {
			var err error
			ready, err = db.Claim(ctx, store.Claim{Kinds: kinds, Max: batch, Lease: time.Hour, Queued: time.Hour})
			if err != nil || len(ready) == 0 {
				tb.Fatalf("claimed %d commands: %v", len(ready), err)
			}
		}
		now := ready[:min(perCommit, len(ready))]
		ready = ready[len(now):]
		reqs, outs := make([]store.Request, len(now)), make([]saga.Outcome, len(now))
		for i, c := range now {
			_, _, _, command, _ := saga.ParseType(c.Row.Command.Type)
			reqs[i], outs[i] = store.Request{SagaID: c.Row.ID, Token: c.Lease.Token}, f.Steps[command].Perform(ctx, engine.Run{Row: c.Row})
		}
		results, err := db.Apply(ctx, reqs, func(i int, l store.Locked) (store.Writes, error) {
			w, err := f.Settle(l, reqs[i].Token, outs[i], saga.Execution{}, saga.Settings{})
			w.Keep = &store.Keep{Token: uuid.NewString(), Lease: time.Hour, Deadline: time.Hour}
			return w, err
		})
		if err != nil {
			tb.Fatal(err)
		}
		for _, r := range results {
			if r.Err != nil {
				tb.Fatal(r.Err)
			}
			if r.Kept {
				ready = append(ready, store.Claimed{Row: r.Decision.Row, Lease: store.Lease{SagaID: r.Decision.Row.ID, Token: r.Decision.Row.Command.LeaseToken}})
			}
		}
		done += len(now)
	}
	return time.Since(began)
}

// grouping compares one saga a commit with many, and many with the bare loop.
// The store's own loop and the whole engine are both measured.
func grouping(b *testing.B, alone, engines *database) {
	title := "Grouped commits"
	d := alone.driver
	f := flows()[0]
	s, n := readyCore(b), perRound()
	few := max(60, n/20) // one saga a commit is slow
	db, err := options{Driver: d, DSN: alone.dsn}.open(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	together := start(b, engines, throughput)
	var single, grouped, bare, whole series
	rate := func(n int, took time.Duration) measured { return measured{rate: float64(n) / took.Seconds()} }
	for round := range max(4, rounds()/2) + 1 {
		runs := []func(){
			func() {
				alone.feed(s, few)
				single.add(rate(few*steps, loop(b, db, f, few, 1)))
			},
			func() {
				alone.feed(s, n)
				grouped.add(rate(n*steps, loop(b, db, f, n, batch)))
			},
			func() { whole.add(work(engines, s, n, together)) },
		}
		if d == onPostgres {
			runs = append(runs, func() {
				alone.feed(s, n)
				bare.add(rate(alone.bare()))
			})
		}
		for i := range runs {
			runs[(i+round)%len(runs)]()
		}
		if round == 0 { // it warmed up
			single, grouped, bare, whole = series{}, series{}, series{}, series{}
		}
	}
	together.stop()
	promise := bound{}
	if d == onSQLite {
		promise = atLeast(5)
	}
	measurements.add(title, d, fmt.Sprintf("store, %d sagas a commit: throughput, one a commit = 1", batch), grouped.relative(&single), times, promise)
	measurements.add(title, d, "whole engine, 200 workers: throughput, store with one a commit = 1", whole.relative(&single), times, bound{})
	if d == onPostgres {
		measurements.add(title, d, fmt.Sprintf("store, %d sagas a commit: throughput, bare loop = 1", batch), grouped.relative(&bare), times, atLeast(0.4))
		measurements.add(title, d, "whole engine, 200 workers: throughput, bare loop = 1", whole.relative(&bare), times, bound{})
		var list strings.Builder
		list.WriteString("The bare loop sends this in one round trip for 200 sagas, four times for each of them, and reads what it is answered\n(the DELETE instead of the last UPDATE at the fourth time):\n\n```sql\n")
		for _, q := range bareLoop {
			list.WriteString(strings.ReplaceAll(q, "\n\t", "\n  ") + ";\n")
		}
		measurements.explain(title, list.String()+"```")
	}
	b.ReportMetric(median(single.rates), "single/s")
	b.ReportMetric(median(grouped.rates), "grouped/s")
	b.ReportMetric(median(whole.rates), "engine/s")
}

// hold opens a transaction that keeps its snapshot until release is called.
func (d *database) hold() (release func()) {
	d.tb.Helper()
	ctx := d.tb.Context()
	if d.driver == onPostgres {
		c, err := pgx.Connect(ctx, d.dsn)
		if err != nil {
			d.tb.Fatal(err)
		}
		tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		if err == nil {
			_, err = tx.Exec(ctx, "SELECT count(*) FROM outbox_events")
		}
		if err != nil {
			d.tb.Fatal(err)
		}
		return func() { c.Close(ctx) }
	}
	c, err := sql.Open("sqlite", "file:"+d.dsn+"?_pragma=query_only(1)")
	if err != nil {
		d.tb.Fatal(err)
	}
	tx, err := c.BeginTx(ctx, nil)
	if err == nil {
		var n int
		err = tx.QueryRowContext(ctx, "SELECT count(*) FROM outbox_events").Scan(&n)
	}
	if err != nil {
		d.tb.Fatal(err)
	}
	return func() {
		_ = tx.Rollback()
		_ = c.Close()
	}
}
