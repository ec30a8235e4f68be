package cli

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/app"
	"github.com/mergeflow/mergeflow/internal/config"
)

func (s *session) doctorCmd() *cobra.Command {
	var flags configFlags
	var data bool
	c := &cobra.Command{
		Use: "doctor", GroupID: groupServer, Args: args(),
		Short: "Look whether a server has what it needs, and whether its data is whole",
		Long: `Looks at the configuration, git, the data folder, the database and its schema,
and the clocks. With --data it asks the database for every invariant that can be
stated as a query, over all operations, and looks in git whether each merge that
the database knows is on its branch once; what breaks an invariant is named, one
line each. It reads only, also beside a running server. Exit status 1 when
something is not as it should be.`,
		Example: `  mergeflow doctor
  mergeflow doctor --data --config mergeflow.yaml
  mergeflow doctor --data --database postgres://mergeflow@localhost/mergeflow -o json`,
	}
	flags.add(c)
	c.Flags().BoolVar(&data, "data", false, "check the data too; it may take some seconds per 100,000 operations")
	c.Flags().StringVarP(&s.format, "output", "o", formatText, "text, json or yaml")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := oneOf(c, "output", formatText, formatJSON, formatYAML); err != nil {
			return err
		}
		cfg, err := config.Load(flags.options(c, s.env))
		if err != nil {
			return badConfig(err)
		}
		items := app.Diagnose(c.Context(), cfg, data)
		body, err := json.Marshal(map[string]any{"items": items})
		if err != nil {
			return err
		}
		well := true
		for _, x := range items {
			well = well && x.OK
		}
		if err := s.print(body, func() {
			for _, x := range items {
				mark := "ok   "
				if !x.OK {
					mark = "WRONG"
				}
				line := mark + "  " + x.What + ": "
				if x.Saga != "" {
					line += x.Saga + " "
				}
				s.println(plain(line + x.Detail))
			}
		}); err != nil {
			return err
		}
		if !well {
			return &failure{exit: exitFailed, silent: true}
		}
		return nil
	}
	return c
}
