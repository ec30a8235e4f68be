package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/demo"
)

func (s *session) demoCmd() *cobra.Command {
	o := demo.Options{Version: Version, Out: s.stdout}
	c := &cobra.Command{
		Use: "demo", GroupID: groupServer, Args: args(),
		Short: "Show the main job, with nothing to set up but git",
		Long: `Starts a server, an index and a receiver of notifications of its own on free
ports, merges a pull request, and another one while the index is down: it fails
visibly after the merge, one step is retried, and git has one merge. What it says
at the end it has looked up. Status 0 only if all ended as it should. Its folder stays.`,
		Example: `  mergeflow demo
  mergeflow demo --json               # one JSON object per line
  mergeflow demo --keep ./playground  # use that folder, and go on serving`,
	}
	c.Flags().BoolVar(&o.JSON, "json", false, "one JSON object per line, and nothing else, on stdout")
	c.Flags().StringVar(&o.Dir, "keep", "", "use this (empty) folder, and go on serving until Ctrl-C or SIGTERM")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.Serve = c.Flags().Changed("keep"); o.Serve && o.Dir == "" {
			return usageOf(c, errors.New("flag --keep needs a folder"))
		}
		err := demo.Run(c.Context(), o)
		if errors.Is(err, demo.ErrNotAsItShould) && !o.JSON {
			return &failure{exit: exitFailed, silent: true}
		}
		if err != nil {
			return failed("demo", err)
		}
		return nil
	}
	return c
}
