package proof

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/testkit/cluster"
)

// A process dies while it takes a callback: before anything is written, or
// after all is and before the answer. The sender, who got none, sends it again.
// It is applied once, and never "received" and forgotten.
func TestKilledWhileItTakesACallback(t *testing.T) {
	t.Parallel()
	for _, db := range cluster.Databases {
		for _, c := range []struct{ kind, where, again string }{
			{"approval", "received", change.Applied}, {"approval", "applied", change.Duplicate},
			{"deploy", "received", change.Applied}, {"deploy", "applied", change.Duplicate},
		} {
			point := "callback." + c.where + "." + c.kind
			t.Run(db+"/"+point, func(t *testing.T) {
				t.Parallel()
				approver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				defer approver.Close()
				w := &walk{t: t, point: point, c: cluster.New(t, cluster.Options{Database: db,
					Extra: changeConfig + "\ndeploy: {kind: callback}\napproval: {kind: webhook, url: \"" + approver.URL + "\"}"})}
				w.p = w.c.Start(point + ":kill")
				w.p.Repository("app", 0)
				a, err := w.p.Client.Submit(context.Background(), httpapi.NewChange{Subject: "team", Target: "quota", Project: "app", Title: "t",
					Files: []httpapi.ChangeFile{{Path: "q.yaml", Action: "create", Content: "1"}}}, "")
				if err != nil {
					t.Fatal(err)
				}
				w.op = a.OperationID
				for _, step := range []struct{ kind, state string }{{"approval", "APPROVAL_SENT"}, {"deploy", "HANDLE_MERGED"}} {
					w.p.AwaitState(w.op, step.state)
					v, err := w.callback(step.kind)
					if step.kind != c.kind {
						if err != nil || v.Verdict != change.Applied {
							t.Errorf("%s: %+v %v", step.kind, v, err)
						}
						continue
					}
					if err == nil {
						t.Fatalf("%s was answered by a process that should be dead: %+v", step.kind, v)
					}
					w.restart()
					if v, err = w.callback(step.kind); err != nil || v.Verdict != c.again {
						t.Errorf("sent again: %+v %v, expected %s", v, err, c.again)
					}
				}
				w.p.AwaitState(w.op, "CALLED_BACK")
				if got := w.c.Faults(); !slices.Equal(got, []string{point}) {
					t.Errorf("the process died elsewhere: %v", got)
				}
				if n := count(transitions(t, w.p, w.op), "CALLED_BACK"); n != 1 {
					t.Errorf("live %d times", n)
				}
				w.p.Stop()
			})
		}
	}
}

// walk is one change on its way, over processes that die.
type walk struct {
	t     *testing.T
	c     *cluster.Cluster
	p     *cluster.Process
	point string
	op    string
}

// restart starts a process without faults after the first one has died.
func (w *walk) restart() {
	w.t.Helper()
	w.p.AwaitEnd()
	w.p = w.c.Start("")
}

func (w *walk) callback(kind string) (httpapi.Verdict, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if kind == "approval" {
		return w.p.Client.ApprovalCallback(ctx, httpapi.ApprovalCallback{RequestID: "a1", OperationID: w.op, Decision: "approved", By: "ann"})
	}
	return w.p.Client.DeployCallback(ctx, httpapi.DeployCallback{RequestID: "d1", OperationID: w.op, Result: "live"})
}
