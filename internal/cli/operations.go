package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// operationID finds an operation by its id, or by the pull request REPO!NUMBER
// whose newest it is.
func (c *client) operationID(ctx context.Context, op string) (string, error) {
	if !strings.Contains(op, "!") {
		return op, nil
	}
	id, err := c.pullID(ctx, op)
	if err != nil {
		return "", err
	}
	p, err := c.Pull(ctx, id)
	if err != nil {
		return "", c.failure(err)
	}
	if p.OperationID == "" {
		return "", &failure{exit: exitNotFound, code: "not-found", detail: "nobody has asked to merge " + op, hint: "mergeflow merge '" + op + "'"}
	}
	return p.OperationID, nil
}

// operation makes the client and finds the operation that an argument names.
func (s *session) operation(c *cobra.Command, op string) (*client, string, error) {
	api, err := s.client(c)
	if err != nil {
		return nil, "", err
	}
	id, err := api.operationID(c.Context(), op)
	return api, id, err
}

const opArgument = `OP is an operation's id, or REPO!NUMBER for the newest of a pull request.`

func (s *session) getCmd() *cobra.Command {
	return s.clientFlags(&cobra.Command{
		Use: "get OP", GroupID: groupOps, Args: args("OP"),
		Short: "Show an operation: where it stands, what it waits for, what you can do",
		Long:  "Shows an operation: where it stands, what it waits for, what you can do.\n" + opArgument,
		Example: `  mergeflow get 'shop/app!1'
  mergeflow get 01922d3c-7e1a-7cc3-98c4-dc0c0c07398f -o json`,
		RunE: func(c *cobra.Command, given []string) error {
			api, id, err := s.operation(c, given[0])
			if err != nil {
				return err
			}
			o, err := api.Operation(c.Context(), id)
			if err != nil {
				return api.failure(err)
			}
			return s.print(api.body(), func() { s.tell(o) })
		},
	})
}

// tell says in words how an operation stands.
func (s *session) tell(o httpapi.Operation) {
	x := o.Explain
	facts := []fact{{"how it stands", x.Summary}, {"title", o.Title}}
	if m := o.MergeRequest; m != nil {
		facts = append(facts, fact{"head", m.HeadSHA}, fact{"merge commit", m.MergeCommit})
	}
	if x.WaitingFor != "" {
		waits := x.WaitingFor
		if x.Who != "" {
			waits += ", from " + x.Who
		}
		facts = append(facts, fact{"waits for", waits}, fact{"since", clock(x.Since)}, fact{"attempt", x.Attempt},
			fact{"last seen", x.LastEvidence}, fact{"next look", clock(x.NextCheck)})
		if !x.Deadline.IsZero() {
			facts = append(facts, fact{"deadline", clock(x.Deadline) + ", then " + x.OnDeadline})
		}
	}
	if f := o.Failure; f != nil {
		facts = append(facts, fact{"failed step", f.Step}, fact{"cause", fmt.Sprintf("%s (%s)", f.Error, f.Kind)}, fact{"hint", f.Hint})
	}
	facts = append(facts, fact{"you can", strings.Join(o.Actions, ", ")}, fact{"operation", o.ID})
	s.story(fmt.Sprintf("%s is %s (%s)", about(o), o.State, o.Status), facts...)
}

// about names what an operation is about.
func about(o httpapi.Operation) string {
	switch {
	case o.Subject != "":
		return o.Subject + " " + o.Target
	case o.MergeRequest != nil && o.MergeRequest.IID > 0:
		return fmt.Sprintf("%s!%d", o.Project, o.MergeRequest.IID)
	}
	return o.Project
}

func (s *session) listCmd() *cobra.Command {
	var page pageFlags
	var q httpapi.OperationQuery
	c := s.clientFlags(&cobra.Command{
		Use: "list", GroupID: groupOps, Args: args(),
		Short: "List operations, newest first",
		Example: `  mergeflow list --status merge-failed
  mergeflow list --project shop/app --all -o json`,
	})
	f := c.Flags()
	f.StringVar(&q.Flow, "flow", "", "pull or change")
	f.StringVar(&q.Status, "status", "", "an outward status, such as merge-failed")
	f.StringVar(&q.State, "state", "", "a state, such as MERGE_FAILED")
	f.StringVar(&q.Subject, "subject", "", "who the change is for")
	f.StringVar(&q.Target, "target", "", "what the change is about")
	f.StringVar(&q.Project, "project", "", "a repository")
	f.StringVarP(&q.Query, "query", "q", "", "part of the title, subject, target or project")
	page.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		api, err := s.client(c)
		if err != nil {
			return err
		}
		if q.Limit, err = page.size(c); err != nil {
			return err
		}
		items, err := collect(api, page, api.Operations(c.Context(), q))
		if err != nil {
			return err
		}
		return s.printList(api, func() {
			var rows [][]string
			for _, o := range items {
				rows = append(rows, []string{about(o), o.State, clock(o.UpdatedAt), o.Explain.Summary, o.ID})
			}
			s.table([]string{"ABOUT", "STATE", "UPDATED", "HOW IT STANDS", "OPERATION"}, rows)
		})
	}
	return c
}

func (s *session) historyCmd() *cobra.Command {
	var callbacks bool
	c := s.clientFlags(&cobra.Command{
		Use: "history OP", GroupID: groupOps, Args: args("OP"),
		Short:   "Print every transition and note of an operation, oldest first",
		Long:    "Prints every transition and note of an operation, oldest first.\n" + opArgument,
		Example: "  mergeflow history 'shop/app!1'\n  mergeflow history 01922d3c-7e1a-7cc3-98c4-dc0c0c07398f --callbacks",
		RunE: func(c *cobra.Command, given []string) error {
			api, id, err := s.operation(c, given[0])
			if err != nil {
				return err
			}
			if callbacks {
				return s.callbacksOf(c.Context(), api, id)
			}
			api.tape.answers = nil // what it took to find the operation
			items, err := collect(api, pageFlags{all: true}, api.History(c.Context(), id))
			if err != nil {
				return err
			}
			return s.printList(api, func() {
				var rows [][]string
				for _, e := range items {
					rows = append(rows, []string{e.At.Local().Format("2006-01-02 15:04:05.000"), movement(e), e.Event, e.Actor, e.Detail})
				}
				s.table([]string{"AT", "MOVE", "EVENT", "ACTOR", "DETAIL"}, rows)
			})
		},
	})
	c.Flags().BoolVar(&callbacks, "callbacks", false, "the callbacks instead, each with its verdict and the rule behind it")
	return c
}

// movement is what an entry of the history did.
func movement(e httpapi.HistoryEntry) string {
	switch {
	case e.Kind == "note":
		return "(note)"
	case e.From == "":
		return e.To
	}
	return e.From + " → " + e.To
}

func (s *session) searchCmd() *cobra.Command {
	var repo string
	c := s.clientFlags(&cobra.Command{
		Use: "search QUERY", GroupID: groupPulls, Args: args("QUERY"),
		Short: "Find lines in what was merged",
		Example: `  mergeflow search "limit: 200"
  mergeflow search timeout --repo shop/app`,
	})
	c.Flags().StringVar(&repo, "repo", "", "only in this repository")
	c.RunE = func(c *cobra.Command, given []string) error {
		api, err := s.client(c)
		if err != nil {
			return err
		}
		hits, err := api.Search(c.Context(), repo, given[0])
		if err != nil {
			return api.failure(err)
		}
		return s.print(api.body(), func() {
			for _, h := range hits {
				s.println(plain(fmt.Sprintf("%s@%s:%s:%d: %s", h.Repo, short(h.Commit), h.Path, h.Line, strings.TrimSpace(h.Text))))
			}
			if len(hits) == 0 {
				s.errorln("nothing found")
			}
		})
	}
	return c
}
