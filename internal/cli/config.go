package cli

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/config"
)

func (s *session) configCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "config", GroupID: groupServer,
		Short: "Check, show or print configuration",
		Example: `  mergeflow config default >mergeflow.yaml
  mergeflow config check --config mergeflow.yaml`,
	}
	c.AddCommand(s.configCheckCmd(), s.configShowCmd(), s.configDefaultCmd())
	return group(c)
}

func (s *session) configCheckCmd() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use: "check", Args: args(),
		Short: "Say whether the configuration would load, with every problem and its place",
		Example: `  mergeflow config check --config mergeflow.yaml
  MERGEFLOW_ENGINE__WORKERS=8 mergeflow config check`,
	}
	flags.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := config.Check(flags.options(c, s.env)); err != nil {
			return badConfig(err)
		}
		s.println("ok")
		return nil
	}
	return c
}

func (s *session) configShowCmd() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use: "show", Args: args(),
		Short: "Print every value and where it came from; secrets stay hidden",
		Example: `  mergeflow config show
  mergeflow config show --config mergeflow.yaml -o json`,
	}
	flags.add(c)
	c.Flags().StringVarP(&s.format, "output", "o", formatText, "text, json or yaml")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := oneOf(c, "output", formatText, formatJSON, formatYAML); err != nil {
			return err
		}
		cfg, err := config.Load(flags.options(c, s.env))
		if err != nil {
			return badConfig(err)
		}
		settings := config.Show(cfg)
		body, err := json.Marshal(map[string]any{"items": settings})
		if err != nil {
			return err
		}
		return s.print(body, func() {
			var rows [][]string
			for _, x := range settings {
				live := ""
				if x.Live {
					live = "live"
				}
				rows = append(rows, []string{x.Key, x.Value, live, x.Origin})
			}
			s.table([]string{"KEY", "VALUE", "LIVE", "FROM"}, rows)
		})
	}
	return c
}

func (s *session) configDefaultCmd() *cobra.Command {
	return &cobra.Command{
		Use: "default", Args: args(),
		Short:   "Print a configuration file with every key and its default",
		Example: "  mergeflow config default >mergeflow.yaml",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(s.stdout, strings.TrimRight(config.Default(), "\n"))
			return err
		},
	}
}
