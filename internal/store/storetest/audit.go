package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

var tables = []store.AuditFlow{allowing(trial), allowing(offer)}

// mostAttempts is more than any case of the suite needs.
const mostAttempts = 1000

func allowing(f *saga.Flow) store.AuditFlow {
	a := store.AuditOf(f)
	a.Attempts = mostAttempts
	return a
}

// stock fills a database with sagas of both flows in every kind of state, all
// of them made by the product's own verbs.
func (b *bench) stock() {
	b.Helper()
	again := keyed(submission("team", "again"), "ada", "k", "h")
	b.submit(again)
	b.submit(keyed(again, "ada", "k2", "h"))
	for _, way := range [][]saga.Name{
		{}, {hold}, {saga.OK}, {saga.OK, yes}, {saga.OK, yes, saga.OK}, {saga.Fail}, {saga.Fail, saga.Retry}, {saga.Close},
	} {
		p, c := b.start(), b.submitNew()
		for _, e := range way {
			b.must(b.send(p.ID, saga.Event{Name: e, Actor: "ada"}).Err, string(e))
			b.must(b.told(c.ID, saga.Event{Name: e, Actor: "ada", Data: saga.Patch(map[string]any{"mrIid": 3, "mergeCommit": "c"})}).Err, string(e))
		}
		b.must(b.Store.AddReceipt(b.ctx, p.ID, store.Receipt{Recipient: "ada", DeliveryID: newID()}), "receipt")
		if b.saga(c.ID).State != asking { // it stays there
			b.callback(said(c.ID, "r-"+c.ID))
		}
	}
}

func auditOfSoundData(b *bench) {
	b.sound() // an empty database
	b.stock()
	b.sound()
	// Leases, an event put aside, a displaced worker.
	cs := b.claim(3)
	for _, c := range cs[:2] {
		b.must(b.send(c.Row.ID, saga.Event{Name: saga.Close, Actor: "ada"}).Err, "close")
	}
	b.sound()
	b.Advance(time.Hour)
	b.sound()
}

func auditFindsFaults(b *bench) {
	b.stock()
	b.sound()
	// in finds one saga of the stock by its flow and state.
	in := func(f *saga.Flow, s saga.State) string {
		b.Helper()
		rs, err := b.Store.Sagas(b.ctx, store.SagaFilter{Flow: f.Name, States: []saga.State{s}, Limit: 1})
		b.must(err, "sagas")
		if len(rs) != 1 {
			b.Fatalf("no saga of %s in %s", f.Name, s)
		}
		return rs[0].ID
	}
	const gone = "00000000-0000-7000-8000-000000000001"
	for _, c := range []struct {
		what      string
		invariant string
		saga      string // "" where none is named
		plant     []string
		mend      []string
	}{
		{"a gap in the history", "I1", in(trial, asking),
			[]string{"UPDATE saga_history SET seq = 5 WHERE saga_id = '$' AND seq = 2"}, []string{"UPDATE saga_history SET seq = 2 WHERE saga_id = '$' AND seq = 5"}},
		{"an entry that begins elsewhere", "I1", in(trial, finishing),
			[]string{"UPDATE saga_history SET from_state = 'NOWHERE' WHERE saga_id = '$' AND seq = 2"},
			[]string{"UPDATE saga_history SET from_state = 'WORKING' WHERE saga_id = '$' AND seq = 2"}},
		{"a state without its entry", "I2", in(trial, holding),
			[]string{"UPDATE saga_history SET to_state = 'ELSEWHERE' WHERE saga_id = '$' AND seq = 2"},
			[]string{"UPDATE saga_history SET to_state = 'HOLDING' WHERE saga_id = '$' AND seq = 2"}},
		{"a history of nothing", "I2", gone,
			[]string{"INSERT INTO saga_history SELECT '$', seq, event, from_state, to_state, actor, detail, at FROM saga_history WHERE saga_id = '" + in(trial, working) + "' AND seq = 1"},
			[]string{"DELETE FROM saga_history WHERE saga_id = '$'"}},
		{"the command of another state", "I2", in(trial, working),
			[]string{"UPDATE outbox_events SET type = 'trial/1/FINISHING/Finish' WHERE saga_id = '$'"},
			[]string{"UPDATE outbox_events SET type = 'trial/1/WORKING/Work' WHERE saga_id = '$'"}},
		{"a pull request that lags", "I2", in(trial, done),
			[]string{"UPDATE pull_requests SET saga_status = 'merging' WHERE operation_id = '$'"}, []string{"UPDATE pull_requests SET saga_status = 'merged' WHERE operation_id = '$'"}},
		{"a binding that lags", "I2", in(offer, done),
			[]string{"UPDATE bindings SET status = 'merging' WHERE operation_id = '$'"}, []string{"UPDATE bindings SET status = 'merged' WHERE operation_id = '$'"}},
		{"a command of a failed saga", "I3", in(offer, broken),
			[]string{"INSERT INTO outbox_events (saga_id, type, available_at, queued_since) SELECT '$', type, available_at, queued_since FROM outbox_events WHERE saga_id = '" + in(trial, working) + "'"},
			[]string{"DELETE FROM outbox_events WHERE saga_id = '$'"}},
		{"a command of nothing", "I3", gone,
			[]string{"INSERT INTO outbox_events (saga_id, type, available_at, queued_since) SELECT '$', type, available_at, queued_since FROM outbox_events WHERE saga_id = '" + in(trial, working) + "'"},
			[]string{"DELETE FROM outbox_events WHERE saga_id = '$'"}},
		{"two live sagas of one aggregate", "I3", in(offer, working),
			[]string{"UPDATE saga_instances SET aggregate_id = 'both' WHERE flow = 'change' AND state IN ('WORKING', 'HOLDING')"},
			[]string{"UPDATE saga_instances SET aggregate_id = subject || '/' || target WHERE flow = 'change'"}},
		{"half a lease", "I5", in(trial, working),
			[]string{"UPDATE outbox_events SET lease_until = available_at WHERE saga_id = '$'"}, []string{"UPDATE outbox_events SET lease_until = NULL WHERE saga_id = '$'"}},
		{"a wait without an end", "I6", in(trial, asking),
			[]string{"UPDATE outbox_events SET deadline_at = NULL WHERE saga_id = '$'"}, []string{"UPDATE outbox_events SET deadline_at = available_at WHERE saga_id = '$'"}},
		{"a failure without a cause", "I7", in(trial, broken),
			[]string{"UPDATE saga_instances SET failed_step = '' WHERE saga_id = '$'"}, []string{"UPDATE saga_instances SET failed_step = 'WORKING' WHERE saga_id = '$'"}},
		{"a merge that nobody finds", "I8", in(offer, holding),
			[]string{"UPDATE change_refs SET merge_commit = '' WHERE saga_id = '$'"}, []string{"UPDATE change_refs SET merge_commit = 'c' WHERE saga_id = '$'"}},
		{"a final saga that is open", "I10", in(trial, closed),
			[]string{"UPDATE saga_instances SET closed_at = NULL WHERE saga_id = '$'"}, []string{"UPDATE saga_instances SET closed_at = updated_at WHERE saga_id = '$'"}},
		{"an open saga that is closed", "I10", in(trial, broken),
			[]string{"UPDATE saga_instances SET closed_at = updated_at WHERE saga_id = '$'"}, []string{"UPDATE saga_instances SET closed_at = NULL WHERE saga_id = '$'"}},
		{"a closed saga that keeps an event", "I10", in(offer, closed),
			[]string{"UPDATE saga_instances SET early = '[]' WHERE saga_id = '$'"}, []string{"UPDATE saga_instances SET early = NULL WHERE saga_id = '$'"}},
		{"a step that is begun again and again", "I12", in(trial, working),
			[]string{fmt.Sprintf("UPDATE outbox_events SET attempt = %d WHERE saga_id = '$'", mostAttempts+1)},
			[]string{fmt.Sprintf("UPDATE outbox_events SET attempt = %d WHERE saga_id = '$'", mostAttempts)}},
		{"a pull request with another merge", "I13", in(trial, done),
			[]string{`UPDATE saga_instances SET data = '{"mergeCommit":"c"}' WHERE saga_id = '$'`, "UPDATE pull_requests SET merge_commit = 'd' WHERE operation_id = '$'"},
			[]string{"UPDATE pull_requests SET merge_commit = 'c' WHERE operation_id = '$'"}},
		{"a change with another merge than its merge request", "I13", in(offer, holding),
			[]string{`UPDATE saga_instances SET data = '{"forge":"default","mrIid":3,"mergeCommit":"c"}' WHERE saga_id = '$'`,
				"UPDATE pull_requests SET repo = 'platform/config', iid = 3, merge_commit = 'd' WHERE operation_id = '" + in(trial, holding) + "'"},
			[]string{"UPDATE pull_requests SET merge_commit = 'c' WHERE repo = 'platform/config'"}},
		{"a pull request of nothing", "I15", gone,
			[]string{"UPDATE pull_requests SET operation_id = '$' WHERE operation_id = '" + in(trial, closed) + "'"},
			[]string{"UPDATE pull_requests SET operation_id = '" + in(trial, closed) + "' WHERE operation_id = '$'"}},
		{"an idempotency key of nothing", "I15", gone,
			[]string{"INSERT INTO idempotency_keys SELECT scope, 'x', hash, '$', state, status, at FROM idempotency_keys WHERE key = 'k'"},
			[]string{"DELETE FROM idempotency_keys WHERE key = 'x'"}},
		{"a change without its files", "I15", in(offer, asking),
			[]string{"UPDATE change_inputs SET saga_id = '" + gone + "' WHERE saga_id = '$'"}, []string{"UPDATE change_inputs SET saga_id = '$' WHERE saga_id = '" + gone + "'"}},
		{"a delivery twice", store.Once, "",
			[]string{"INSERT INTO notification_receipts SELECT saga_id, 'bob', delivery_id, at FROM notification_receipts WHERE saga_id = '" + in(trial, done) + "'"},
			[]string{"DELETE FROM notification_receipts WHERE recipient = 'bob'"}},
		{"a callback that took effect twice", store.Once, in(offer, working),
			[]string{"INSERT INTO callbacks (callback_id, saga_id, kind, source, request_id, verdict, rule, actor, payload, at) " +
				"SELECT '" + gone + "', saga_id, kind, source, request_id, 'applied', 'doubled', actor, payload, at FROM callbacks WHERE saga_id = '$'"},
			[]string{"DELETE FROM callbacks WHERE callback_id = '" + gone + "'"}},
		{"a callback without its key", store.Once, in(offer, holding),
			[]string{"UPDATE callback_keys SET source = 'x' WHERE request_id = 'r-$'"}, []string{"UPDATE callback_keys SET source = 'approval/secret-1' WHERE request_id = 'r-$'"}},
		{"a stay in a passing state", "I6", in(trial, holding),
			[]string{"UPDATE saga_instances SET state = 'LEAVING' WHERE saga_id = '$'"}, []string{"UPDATE saga_instances SET state = 'HOLDING' WHERE saga_id = '$'"}},
		// Last: they are not mended.
		{"a running saga without a command", "I3", in(offer, finishing), []string{"DELETE FROM outbox_events WHERE saga_id = '$'"}, nil},
		{"a binding of nothing", "I15", gone, []string{"UPDATE bindings SET operation_id = '$' WHERE operation_id = '" + in(offer, done) + "'"}, nil},
	} {
		for _, sql := range c.plant {
			b.Exec(strings.ReplaceAll(sql, "$", c.saga))
		}
		found, err := b.Store.Audit(b.ctx, tables, 50)
		b.must(err, "audit")
		if !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Invariant == c.invariant && f.SagaID == c.saga && f.Detail != "" }) {
			b.Errorf("%s: no %s of %q among %+v", c.what, c.invariant, c.saga, found)
		}
		for _, sql := range c.mend {
			b.Exec(strings.ReplaceAll(sql, "$", c.saga))
		}
		if c.mend != nil {
			b.sound()
		}
	}
	// A lease that nobody renews so far ahead.
	cs, err := b.Store.Claim(b.ctx, store.Claim{Kinds: kinds(1), Max: 1, Lease: store.MaxLease + time.Hour, Queued: queuePatience})
	if err != nil || len(cs) != 1 {
		b.Fatalf("claimed %+v, %v", cs, err)
	}
	all, err := b.Store.Audit(b.ctx, tables, 0)
	b.must(err, "audit")
	if !slices.ContainsFunc(all, func(f store.Finding) bool { return f.Invariant == "I5" && f.SagaID == cs[0].Row.ID }) {
		b.Errorf("a lease of more than a day is no finding: %+v", all)
	}
	// The limit holds over all checks.
	few, err := b.Store.Audit(b.ctx, tables, 2)
	if err != nil || len(few) != 2 || len(all) < 3 {
		b.Errorf("%d findings of %d, %v", len(few), len(all), err)
	}
}

func auditOfUnknownFlows(b *bench) {
	b.stock()
	newer := store.AuditOf(trial)
	newer.Version++
	for _, flows := range [][]store.AuditFlow{nil, {newer}} {
		if found, err := b.Store.Audit(b.ctx, flows, 50); err != nil || len(found) != 0 {
			b.Errorf("found %+v, %v", found, err)
		}
	}
	// What holds in every flow is checked all the same.
	id := b.start().ID
	b.Exec("UPDATE saga_instances SET version = 9 WHERE saga_id = '" + id + "'")
	found, err := b.Store.Audit(b.ctx, nil, 50)
	if err != nil || len(found) != 1 || found[0].Invariant != "I1" || found[0].SagaID != id {
		b.Errorf("found %+v, %v", found, err)
	}
}

func auditOfLiveDatabase(b *bench) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				in := submission(fmt.Sprint("team-", w), fmt.Sprint(n%3))
				s, err := b.Store.StartChange(b.ctx, in, func(d store.DoorState) (store.StartChange, error) { return offered(in, d) })
				if err != nil {
					b.Errorf("start: %v", err)
					return
				}
				for _, e := range []saga.Name{hold, saga.Resume, saga.OK, yes}[:1+n%4] {
					if err := b.told(s.OperationID, saga.Event{Name: e, Data: saga.Patch(map[string]any{"mrIid": n + 1})}).Err; err != nil {
						b.Errorf("%s: %v", e, err)
						return
					}
				}
			}
		})
	}
	for range 10 {
		b.sound()
	}
	close(stop)
	wg.Wait()
	b.sound()
}
