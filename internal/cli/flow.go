package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/app"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// flows are the tables that this version ships.
var flows = app.Flows()

func (s *session) flowCmd() *cobra.Command {
	var names []string
	for _, f := range flows {
		names = append(names, f.Name)
	}
	var format string
	c := &cobra.Command{
		Use: "flow " + strings.Join(names, "|"), GroupID: groupMore, Args: args("FLOW"), ValidArgs: names,
		Short: "Print a flow's states and transitions, as this version runs them",
		Example: `  mergeflow flow pull --format table
  mergeflow flow pull --format svg >pull.svg`,
	}
	c.Flags().StringVar(&format, "format", "table", "mermaid, svg or table")
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := oneOf(c, "format", "mermaid", "svg", "table"); err != nil {
			return err
		}
		for _, f := range flows {
			if f.Name == given[0] {
				draw := map[string]func(*saga.Flow) string{"mermaid": saga.Mermaid, "svg": saga.SVG, "table": saga.Table}[format]
				s.println(strings.TrimRight(draw(f), "\n"))
				return nil
			}
		}
		return usageOf(c, fmt.Errorf("argument FLOW must be one of %s, not %q", strings.Join(names, ", "), given[0]))
	}
	return c
}
