package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/mergeflow/mergeflow/internal/app"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// voice tells the story: to people, or to programs as one JSON object per line.
type voice struct {
	out   io.Writer
	json  bool
	wrong int // checks that failed
}

// say tells people something; programs get none of it.
func (v *voice) say(format string, args ...any) {
	if !v.json {
		fmt.Fprintf(v.out, format+"\n", args...)
	}
}

// must tells the outcome of a check and counts the bad ones.
func (v *voice) must(ok bool, format string, args ...any) {
	mark := "ok   "
	if !ok {
		mark = "WRONG"
		v.wrong++
	}
	v.say("   %s  %s", mark, fmt.Sprintf(format, args...))
}

// transition is what programs get of each transition.
type transition struct {
	Type        string    `json:"type"`
	Flow        string    `json:"flow"`
	OperationID string    `json:"operationId"`
	From        string    `json:"from"`
	To          string    `json:"to"`
	Status      string    `json:"status"`
	At          time.Time `json:"at"`
}

// moved tells an entry of an operation's history.
func (v *voice) moved(op *operation, e httpapi.HistoryEntry) {
	if e.Kind != "transition" {
		v.say("   %s    %s", e.At.Local().Format("15:04:05.000"), e.Detail)
		return
	}
	v.say("   %s  %s", e.At.Local().Format("15:04:05.000"), e.To)
	v.object(transition{"transition", op.flow, op.id, e.From, e.To, statusOf(op.flow, e.To), e.At})
}

// statusOf is a state's outward status, by the tables.
func statusOf(flow, state string) string {
	for _, f := range app.Flows() {
		if spec, ok := f.Spec(saga.State(state)); ok && f.Name == flow {
			return string(spec.Status)
		}
	}
	return ""
}

type result struct {
	Type       string            `json:"type"`
	OK         bool              `json:"ok"`
	Dir        string            `json:"dir"`
	Error      string            `json:"error,omitempty"`
	Operations []resultOperation `json:"operations"`
}

type resultOperation struct {
	OperationID string `json:"operationId"`
	Flow        string `json:"flow"`
	State       string `json:"state"`
	Status      string `json:"status"`
	MergeCommit string `json:"mergeCommit"`
	MergesInGit int    `json:"mergesInGit"`
}

// result tells the end, and says whether all is well.
func (v *voice) result(dir string, told []*operation, err error) bool {
	r := result{Type: "result", OK: err == nil && v.wrong == 0, Dir: dir, Operations: []resultOperation{}}
	if err != nil {
		r.Error = err.Error()
	}
	for _, op := range told {
		r.Operations = append(r.Operations, resultOperation{op.id, op.flow, op.state, op.status, op.mergeCommit, op.merges})
	}
	v.object(r)
	switch {
	case err != nil:
		v.say("\nIt broke off. What there is lies in %s; server.log says more.", dir)
	case v.wrong > 0:
		v.say("\n%d of these are not as they should be. Everything lies in %s; server.log says more.", v.wrong, dir)
	default:
		v.say("\nEverything ended as it should. In %s: data/ (database, repositories, live/ with what is deployed), clone/ and config/ (users' work trees), index/, server.log.", dir)
	}
	return r.OK
}

func (v *voice) object(o any) {
	if !v.json {
		return
	}
	b, err := json.Marshal(o)
	if err != nil {
		return // types of our own always marshal
	}
	fmt.Fprintf(v.out, "%s\n", b)
}
