package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/store"
)

func sagaReadsBack(b *bench) {
	p := b.pull()
	var want saga.Row
	got, err := b.Store.StartPull(b.ctx, p.ID, func(p store.Pull, old *store.Locked, now time.Time) (store.StartPull, error) {
		row := saga.Row{ID: newID(), Order: "other_first", AggregateID: p.ID, CreatedAt: now,
			About: saga.About{Subject: "team-größe", Target: "prod/eu", Project: p.Repo, Title: "„Quote” 'it' \\ % _ 🚀"},
			Data:  saga.Patch(map[string]any{"n": 12345678901234, "text": "ü\n\t\"", "list": []int{1}})}
		d, err := saga.Start(trial, row, working, "", "by the way", saga.Settings{})
		want = d.Row
		return store.StartPull{New: d, Status: "merging"}, err
	})
	b.must(err, "start")
	for what, r := range map[string]saga.Row{"answered": got, "read": b.saga(want.ID)} {
		r.Data = compact(r.Data)
		want.Data = compact(want.Data)
		if d := cmp.Diff(want, r); d != "" {
			b.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	b.moved(want.ID, saga.Fail)
	r := b.saga(want.ID)
	if r.Failure == nil || r.Failure.Step != working || r.Failure.Kind != saga.Deterministic || r.Failure.Error != "fail" || r.Command != nil {
		b.Errorf("failed row: %+v, failure %+v", r, r.Failure)
	}
	if loc := r.CreatedAt.Location(); loc != time.UTC {
		b.Errorf("times are in %v", loc)
	}
}

func listSagas(b *bench) {
	var rows []saga.Row
	for i := range 7 {
		rows = append(rows, b.start())
		if i != 3 { // two share a time
			b.Advance(time.Second)
		}
	}
	b.moved(rows[0].ID, saga.Close)
	b.moved(rows[1].ID, hold)
	b.moved(rows[2].ID, saga.Fail)
	list := func(f store.SagaFilter) []string {
		b.Helper()
		if f.Limit == 0 {
			f.Limit = 100
		}
		rs, err := b.Store.Sagas(b.ctx, f)
		b.must(err, "list")
		return ids(rs)
	}
	newest := ids(rows)
	slices.Reverse(newest)
	if got := list(store.SagaFilter{}); !sameSet(got, newest) || got[0] != newest[0] || got[6] != newest[6] {
		b.Errorf("listed %v, want %v", got, newest)
	}
	// Pages of two give the same list.
	var paged []string
	var before *store.Cursor
	for range 10 {
		rs, err := b.Store.Sagas(b.ctx, store.SagaFilter{Limit: 2, Before: before})
		b.must(err, "page")
		if len(rs) == 0 {
			break
		}
		last := rs[len(rs)-1]
		paged, before = append(paged, ids(rs)...), &store.Cursor{At: last.CreatedAt, ID: last.ID}
	}
	if want := list(store.SagaFilter{}); !slices.Equal(paged, want) {
		b.Errorf("paged %v, want %v", paged, want)
	}
	rs, err := b.Store.Sagas(b.ctx, store.SagaFilter{States: []saga.State{holding}, Limit: 1})
	if err != nil || len(rs) != 1 || rs[0].Command == nil || rs[0].Command.Type != typeOf(holding) {
		b.Errorf("a listed saga carries its command: %+v, %v", rs, err)
	}
	for _, c := range []struct {
		name string
		f    store.SagaFilter
		want []saga.Row
	}{
		{"flow", store.SagaFilter{Flow: "trial"}, rows},
		{"other flow", store.SagaFilter{Flow: "change"}, nil},
		{"one state", store.SagaFilter{States: []saga.State{holding}}, rows[1:2]},
		{"two states", store.SagaFilter{States: []saga.State{holding, broken}}, rows[1:3]},
		{"aggregate", store.SagaFilter{Aggregate: rows[4].AggregateID}, rows[4:5]},
		{"subject", store.SagaFilter{Subject: rows[5].About.Subject}, rows[5:6]},
		{"target", store.SagaFilter{Target: "main"}, rows},
		{"project", store.SagaFilter{Project: repo}, rows},
		{"other project", store.SagaFilter{Project: "x"}, nil},
		{"open", store.SagaFilter{OpenOnly: true}, rows[1:]},
		{"query in the title", store.SagaFilter{Query: "CHANGE 3"}, rows[2:3]},
		{"query in the subject", store.SagaFilter{Query: "eature-4"}, rows[3:4]},
		{"query is no pattern", store.SagaFilter{Query: "change%"}, nil},
		{"query is no pattern either", store.SagaFilter{Query: "change_3"}, nil},
		{"all together", store.SagaFilter{Flow: "trial", OpenOnly: true, Project: repo, Target: "main", Query: "change", States: []saga.State{working}}, rows[3:]},
	} {
		if got := list(c.f); !sameSet(got, ids(c.want)) {
			b.Errorf("%s: listed %v, want %v", c.name, got, ids(c.want))
		}
	}
}

func historyInOrder(b *bench) {
	row := b.start()
	note := func(text string) {
		b.Helper()
		b.must(b.Store.Note(b.ctx, row.ID, saga.Note{Event: "seen", Actor: "ci", Detail: text}), "note")
	}
	note("one")
	note("two")
	b.moved(row.ID, hold)
	note("three")
	b.moved(row.ID, saga.Resume)
	b.wantErr(b.Store.Note(b.ctx, row.ID, saga.Note{Event: "seen", Detail: "\x00"}), store.ErrConflict, "a note with a NUL")

	want := []string{"created", "seen one", "seen two", "hold", "seen three", "resume"}
	text := func(es []store.Entry) (out []string) {
		for _, e := range es {
			s := string(e.Event)
			if e.IsNote {
				s += " " + e.Detail
			}
			if (e.Mark.Note != 0) != e.IsNote {
				b.Errorf("mark %+v of a note: %v", e.Mark, e.IsNote)
			}
			out = append(out, s)
		}
		return out
	}
	if got := text(b.history(row.ID)); !slices.Equal(got, want) {
		b.Errorf("history %v, want %v", got, want)
	}
	var paged []store.Entry
	var after store.Mark
	for range 10 {
		es, err := b.Store.History(b.ctx, row.ID, after, 2)
		b.must(err, "page")
		if len(es) == 0 {
			break
		}
		paged, after = append(paged, es...), es[len(es)-1].Mark
	}
	if got := text(paged); !slices.Equal(got, want) {
		b.Errorf("in pages %v, want %v", got, want)
	}
	for _, e := range paged {
		if !about(e.At, b.now()) || e.At.Location() != time.UTC {
			b.Errorf("entry at %v, now is %v", e.At, b.now())
		}
	}
	if e := paged[3]; e.Actor != "ada" || e.From != working || e.To != holding || e.Mark != (store.Mark{Seq: 2}) {
		b.Errorf("entry: %+v", e)
	}
	if es, err := b.Store.History(b.ctx, newID(), store.Mark{}, 10); err != nil || len(es) != 0 {
		b.Errorf("history of nothing: %+v, %v", es, err)
	}
}

func statsAndBacklog(b *bench) {
	backlog := func(limit int) int {
		b.Helper()
		n, err := b.Store.Backlog(b.ctx, limit)
		b.must(err, "backlog")
		return n
	}
	if n := backlog(10); n != 0 {
		b.Errorf("backlog of an empty store: %d", n)
	}
	rows := b.startMany(5)
	oldest := rows[0].Command.AvailableAt
	b.startIn(asking)
	b.moved(rows[4].ID, saga.Close)
	b.moved(rows[3].ID, saga.Fail)
	if n := backlog(10); n != 3 {
		b.Errorf("backlog %d, want 3", n)
	}
	if n := backlog(2); n != 2 {
		b.Errorf("backlog %d, want to stop counting at 2", n)
	}
	st, err := b.Store.Stats(b.ctx, kindNames())
	b.must(err, "stats")
	got := map[string]int64{}
	for _, s := range st.States {
		got[fmt.Sprint(s.Flow, " ", s.State, " ", s.Open)] += s.Count
	}
	want := map[string]int64{"trial WORKING true": 3, "trial ASKING true": 1, "trial BROKEN true": 1, "trial CLOSED false": 1}
	if d := cmp.Diff(want, got); d != "" {
		b.Errorf("states (-want +got):\n%s", d)
	}
	if st.Due != 3 || st.Leased != 0 || st.Parked != 0 || !st.Oldest.Equal(oldest) {
		b.Errorf("stats: %+v, oldest %v", st, oldest)
	}
	cs := b.claim(2)
	if n := backlog(10); n != 1 {
		b.Errorf("backlog %d after a claim of %d, want 1", n, len(cs))
	}
	if st, err = b.Store.Stats(b.ctx, kindNames()); err != nil || st.Due != 1 || st.Leased != 2 {
		b.Errorf("stats: %+v, %v", st, err)
	}
}

func pingSchemaClock(b *bench) {
	b.must(b.Store.Ping(b.ctx), "ping")
	if v, err := b.Store.Schema(b.ctx); err != nil || v < 2 {
		b.Errorf("schema %d, %v", v, err)
	}
	t := b.now()
	if t.Location() != time.UTC || !t.Equal(t.Truncate(time.Microsecond)) {
		b.Errorf("now is %v", t)
	}
	b.Advance(time.Hour)
	if d := b.now().Sub(t); d < time.Hour || d > time.Hour+time.Minute {
		b.Errorf("an hour took %v", d)
	}
}
