package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/httpapi"
)

func (s *session) prCmd() *cobra.Command {
	c := s.clientFlags(&cobra.Command{
		Use: "pr", GroupID: groupPulls,
		Short: "Pull requests",
		Long: `Pull requests. PR is a pull request's id, or REPO!NUMBER (quote it: shells read
the exclamation mark).`,
		Example: `  mergeflow pr create --repo shop/app --source warmer --target main --title "A warmer greeting"
  mergeflow pr get 'shop/app!1'`,
	})
	c.AddCommand(s.prCreateCmd(), s.prListCmd(), s.prGetCmd(), s.prCloseCmd(), s.prWatchAddCmd())
	return group(c)
}

// pullID finds a pull request's id by REPO!NUMBER; anything else is an id.
func (c *client) pullID(ctx context.Context, pr string) (string, error) {
	at := strings.LastIndex(pr, "!")
	if at < 0 {
		return pr, nil
	}
	repo := pr[:at]
	iid, err := strconv.ParseInt(pr[at+1:], 10, 64)
	if err != nil || iid < 1 || repo == "" {
		return "", usage(fmt.Errorf("argument PR must be an id or REPO!NUMBER, not %q", pr))
	}
	for p, err := range c.Pulls(ctx, httpapi.PullQuery{Repo: repo, Limit: maxPage}) {
		switch {
		case err != nil:
			return "", c.failure(err)
		case p.IID == iid:
			return p.ID, nil
		}
		if p.IID < iid { // newest first
			break
		}
	}
	return "", &failure{exit: exitNotFound, code: "not-found", detail: "there is no pull request " + pr, hint: "mergeflow pr list --repo " + repo}
}

// pull runs a call on the pull request that a command's first argument names,
// and prints the pull request that it answers.
func (s *session) pull(c *cobra.Command, pr string, call func(ctx context.Context, api *client, id string) (httpapi.Pull, error)) error {
	api, err := s.client(c)
	if err != nil {
		return err
	}
	id, err := api.pullID(c.Context(), pr)
	if err != nil {
		return err
	}
	p, err := call(c.Context(), api, id)
	if err != nil {
		return api.failure(err)
	}
	return s.print(api.body(), func() { s.tellPull(p) })
}

func (s *session) tellPull(p httpapi.Pull) {
	facts := []fact{
		{"id", p.ID},
		{"branches", p.Source + " into " + p.Target},
		{"head", p.HeadSHA},
		{"merge commit", p.MergeCommit},
		{"operation", p.OperationID},
		{"watchers", strings.Join(p.Watchers, ", ")},
	}
	for _, x := range p.Checks {
		text := x.State
		if x.Required {
			text += " (required)"
		}
		if x.Description != "" {
			text += ": " + x.Description
		}
		facts = append(facts, fact{"check " + x.Context, text})
	}
	s.story(fmt.Sprintf("%s!%d %q is %s", p.Repo, p.IID, p.Title, p.Status), facts...)
}

func (s *session) prCreateCmd() *cobra.Command {
	var in httpapi.NewPull
	c := &cobra.Command{
		Use: "create", Args: args(),
		Short: "Open a pull request",
		Example: `  mergeflow pr create --repo shop/app --source warmer --target main \
    --title "A warmer greeting" --watch alice --watch bob`,
	}
	f := c.Flags()
	f.StringVar(&in.Repo, "repo", "", "the repository (required)")
	f.StringVar(&in.Source, "source", "", "the branch to merge (required)")
	f.StringVar(&in.Target, "target", "", "the branch to merge into (required)")
	f.StringVar(&in.Title, "title", "", "one line (required)")
	f.StringVar(&in.Description, "description", "", fmt.Sprintf("any text of at most %d bytes", forge.MaxDescription))
	f.StringArrayVar(&in.Watchers, "watch", nil, "who is told when it is merged; may be repeated")
	c.RunE = func(c *cobra.Command, _ []string) error {
		api, err := s.client(c)
		if err != nil {
			return err
		}
		if err := required(c, "repo", "source", "target", "title"); err != nil {
			return err
		}
		p, err := api.CreatePull(c.Context(), in)
		if err != nil {
			return api.failure(err)
		}
		return s.print(api.body(), func() { s.tellPull(p) })
	}
	return c
}

func (s *session) prListCmd() *cobra.Command {
	var page pageFlags
	var q httpapi.PullQuery
	c := &cobra.Command{
		Use: "list", Args: args(),
		Short: "List pull requests, newest first",
		Example: `  mergeflow pr list --repo shop/app --status open
  mergeflow pr list --query greeting --all`,
	}
	c.Flags().StringVar(&q.Repo, "repo", "", "only this repository's")
	c.Flags().StringVar(&q.Status, "status", "", "open, merging, merged, merge-failed or closed")
	c.Flags().StringVarP(&q.Query, "query", "q", "", "part of the title")
	page.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		api, err := s.client(c)
		if err != nil {
			return err
		}
		if q.Limit, err = page.size(c); err != nil {
			return err
		}
		items, err := collect(api, page, api.Pulls(c.Context(), q))
		if err != nil {
			return err
		}
		return s.printList(api, func() {
			var rows [][]string
			for _, p := range items {
				rows = append(rows, []string{fmt.Sprintf("%s!%d", p.Repo, p.IID), p.Status, p.Source + " → " + p.Target, short(p.MergeCommit), p.Title, p.ID})
			}
			s.table([]string{"PR", "STATUS", "BRANCHES", "MERGE COMMIT", "TITLE", "ID"}, rows)
		})
	}
	return c
}

func (s *session) prGetCmd() *cobra.Command {
	return &cobra.Command{
		Use: "get PR", Args: args("PR"),
		Short:   "Show a pull request with its checks",
		Example: "  mergeflow pr get 'shop/app!1'",
		RunE: func(c *cobra.Command, given []string) error {
			return s.pull(c, given[0], func(ctx context.Context, api *client, id string) (httpapi.Pull, error) {
				return api.Pull(ctx, id)
			})
		},
	}
}

func (s *session) prCloseCmd() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "close PR", Args: args("PR"),
		Short:   "End a pull request without a merge; refused once git has merged",
		Example: "  mergeflow pr close 'shop/app!1' --reason \"not needed any more\"",
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the history (required)")
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := required(c, "reason"); err != nil {
			return err
		}
		return s.pull(c, given[0], func(ctx context.Context, api *client, id string) (httpapi.Pull, error) {
			return api.ClosePull(ctx, id, reason)
		})
	}
	return c
}

func (s *session) prWatchAddCmd() *cobra.Command {
	return &cobra.Command{
		Use: "watch-add PR NAME...",
		Args: func(c *cobra.Command, given []string) error {
			if len(given) < 2 {
				return args("PR", "NAME")(c, given)
			}
			return nil
		},
		Short:   "Let people be told when it is merged",
		Example: "  mergeflow pr watch-add 'shop/app!1' alice bob",
		RunE: func(c *cobra.Command, given []string) error {
			return s.pull(c, given[0], func(ctx context.Context, api *client, id string) (httpapi.Pull, error) {
				return api.AddWatchers(ctx, id, given[1:]...)
			})
		},
	}
}
