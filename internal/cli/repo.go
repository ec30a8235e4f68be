package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

func (s *session) repoCmd() *cobra.Command {
	c := s.clientFlags(&cobra.Command{
		Use: "repo", GroupID: groupPulls,
		Short: "Local repositories and their commit statuses",
		Example: `  mergeflow repo create shop/app
  git clone http://127.0.0.1:8080/git/shop/app.git`,
	})
	c.AddCommand(s.repoCreateCmd(), s.repoListCmd(), s.repoGetCmd(), s.repoStatusCmd())
	return group(c)
}

func (s *session) repoCreateCmd() *cobra.Command {
	var in httpapi.NewRepository
	c := &cobra.Command{
		Use: "create NAME", Args: args("NAME"),
		Short: "Create a repository",
		Example: `  mergeflow repo create shop/app
  mergeflow repo create shop/app --require-check ci/test --merge-style squash`,
	}
	f := c.Flags()
	f.StringVar(&in.DefaultBranch, "default-branch", "", "the branch that a clone starts on (default main)")
	f.StringArrayVar(&in.RequiredChecks, "require-check", nil, "a check that must be green before a merge; may be repeated")
	f.StringVar(&in.MergeStyle, "merge-style", "", "merge (always a merge commit, the default) or squash")
	f.BoolVar(&in.RequireUpToDate, "require-up-to-date", false, "refuse to merge a branch that is behind its target")
	f.StringArrayVar(&in.Reviewers, "reviewer", nil, "who may review; may be repeated")
	c.RunE = func(c *cobra.Command, given []string) error {
		api, err := s.client(c)
		if err != nil {
			return err
		}
		in.Name = given[0]
		r, err := api.CreateRepo(c.Context(), in)
		if err != nil {
			return api.failure(err)
		}
		return s.print(api.body(), func() { s.tellRepo(r) })
	}
	return c
}

func (s *session) tellRepo(r httpapi.Repository) {
	current := ""
	if r.RequireUpToDate {
		current = "up to date with their target before they are merged"
	}
	s.story(r.Name,
		fact{"clone", r.CloneURL},
		fact{"default branch", r.DefaultBranch},
		fact{"merge style", r.MergeStyle},
		fact{"required checks", or(strings.Join(r.RequiredChecks, ", "), "none")},
		fact{"branches", current},
		fact{"reviewers", strings.Join(r.Reviewers, ", ")})
}

func (s *session) repoListCmd() *cobra.Command {
	var page pageFlags
	var query string
	c := &cobra.Command{
		Use: "list", Args: args(),
		Short:   "List repositories by name",
		Example: "  mergeflow repo list --all",
	}
	c.Flags().StringVarP(&query, "query", "q", "", "part of the name")
	page.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		api, err := s.client(c)
		if err != nil {
			return err
		}
		size, err := page.size(c)
		if err != nil {
			return err
		}
		items, err := collect(api, page, api.Repos(c.Context(), httpapi.RepoQuery{Query: query, Limit: size}))
		if err != nil {
			return err
		}
		return s.printList(api, func() {
			var rows [][]string
			for _, r := range items {
				rows = append(rows, []string{r.Name, r.DefaultBranch, r.MergeStyle, strings.Join(r.RequiredChecks, ",")})
			}
			s.table([]string{"NAME", "DEFAULT BRANCH", "MERGE STYLE", "REQUIRED CHECKS"}, rows)
		})
	}
	return c
}

func (s *session) repoGetCmd() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Args: args("NAME"),
		Short:   "Show a repository",
		Example: "  mergeflow repo get shop/app",
		RunE: func(c *cobra.Command, given []string) error {
			api, err := s.client(c)
			if err != nil {
				return err
			}
			r, err := api.Repo(c.Context(), given[0])
			if err != nil {
				return api.failure(err)
			}
			return s.print(api.body(), func() { s.tellRepo(r) })
		},
	}
}

func (s *session) repoStatusCmd() *cobra.Command {
	var in httpapi.NewStatus
	c := &cobra.Command{
		Use: "status NAME SHA", Args: args("NAME", "SHA"),
		Short:   "Report a check's result for a commit, as CI does",
		Example: `  mergeflow repo status shop/app "$(git rev-parse HEAD)" --context ci/test --state success`,
	}
	f := c.Flags()
	f.StringVar(&in.Context, "context", "", "the check's name (required)")
	f.StringVar(&in.State, "state", "", "pending, success, failure or error (required)")
	f.StringVar(&in.Description, "description", "", "one line for people")
	f.StringVar(&in.TargetURL, "target-url", "", "where to read more")
	c.RunE = func(c *cobra.Command, given []string) error {
		api, err := s.client(c)
		if err != nil {
			return err
		}
		if err := required(c, "context", "state"); err != nil {
			return err
		}
		if err := oneOf(c, "state", "pending", "success", "failure", "error"); err != nil {
			return err
		}
		st, err := api.SetStatus(c.Context(), given[0], given[1], in)
		if err != nil {
			return api.failure(err)
		}
		return s.print(api.body(), func() {
			s.println(plain(fmt.Sprintf("%s is %s for %s", st.Context, st.State, short(st.SHA))))
		})
	}
	return c
}
