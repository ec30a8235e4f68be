package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/app"
	"github.com/mergeflow/mergeflow/internal/config"
)

// stopLimit is how long a stop waits for requests and steps that run.
const stopLimit = 20 * time.Second

// configFlags are the flags that say or override configuration.
type configFlags struct{ file, listen, dataDir, database string }

func (f *configFlags) add(c *cobra.Command) {
	c.Flags().StringVarP(&f.file, "config", "c", "", "the configuration file (MERGEFLOW_CONFIG)")
	c.Flags().StringVar(&f.listen, "listen", "", "HOST:PORT to listen on; port 0 takes a free one (default 127.0.0.1:8080)")
	c.Flags().StringVar(&f.dataDir, "data-dir", "", "the folder for repositories and the embedded index (default mergeflow-data)")
	c.Flags().StringVar(&f.database, "database", "", "sqlite:PATH or postgres://… (default sqlite:DATA_DIR/mergeflow.db)")
}

// options are what config.Load is asked, the flags that were given laid over all.
func (f *configFlags) options(c *cobra.Command, env []string) config.Options {
	given := map[string]any{}
	for flag, kv := range map[string][2]string{
		"listen": {"listen", f.listen}, "data-dir": {"data_dir", f.dataDir}, "database": {"database", f.database},
	} {
		if c.Flags().Changed(flag) {
			given[kv[0]] = kv[1]
		}
	}
	return app.ConfigOptions(f.file, env, given)
}

// badConfig is a configuration that can't be used, one problem a line. It is
// wrong usage where a flag is to blame.
func badConfig(err error) *failure {
	e, ok := errors.AsType[*config.Error](err)
	if !ok {
		return failed("config", err)
	}
	f := &failure{exit: exitFailed, code: "config", detail: "the configuration can't be used",
		hint: "mergeflow config default prints every key"}
	for _, p := range e.Problems {
		f.more = append(f.more, p.String())
		if p.Origin.Flag != "" {
			f.exit = exitUsage
		}
	}
	return f
}

func (s *session) serveCmd() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use: "serve", GroupID: groupServer, Args: args(),
		Short: "Run the server",
		Long: `Runs the API, the page, the Git server and the workers in one process. Without
any configuration: SQLite and repositories below ./mergeflow-data, on
127.0.0.1:8080. The first line on stdout says where it serves; logs go to
stderr. SIGTERM or Ctrl-C stops it in good order, SIGHUP reads the
configuration file again.

It listens on loopback only: there are no tokens yet that could keep others out.`,
		Example: `  mergeflow serve
  mergeflow serve --listen 127.0.0.1:0 --data-dir /srv/mergeflow
  mergeflow serve --database postgres://mergeflow@localhost/mergeflow
  mergeflow serve --config mergeflow.yaml`,
	}
	flags.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		live, err := config.NewLive(flags.options(c, s.env))
		if err != nil {
			return badConfig(err)
		}
		a, err := app.New(app.Options{Config: live, Version: Version, Log: s.stderr})
		if err != nil {
			return failed("start", err)
		}
		ctx := c.Context()
		if err := a.Start(ctx); err != nil {
			return failed("start", err)
		}
		s.println("serving on http://" + a.Addr())
		var ended error
		select {
		case <-ctx.Done():
		case ended = <-a.Failed():
		}
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		if err := errors.Join(ended, a.Stop(stop)); err != nil {
			return failed("serve", err)
		}
		return nil
	}
	return c
}

func (s *session) migrateCmd() *cobra.Command {
	var flags configFlags
	c := &cobra.Command{
		Use: "migrate", GroupID: groupServer, Args: args(),
		Short: "Bring the database's schema up to date",
		Long: `Brings the database's schema up to date and says which number it has. serve does
the same at its start; this is for those who want it as a step of its own.
Several may run at once.`,
		Example: `  mergeflow migrate
  mergeflow migrate --database postgres://mergeflow@localhost/mergeflow`,
	}
	flags.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.options(c, s.env))
		if err != nil {
			return badConfig(err)
		}
		schema, err := app.Migrate(c.Context(), cfg)
		if err != nil {
			return failed("migrate", err)
		}
		s.println(fmt.Sprintf("schema %d at %s", schema, plain(cfg.DatabaseShown())))
		return nil
	}
	return c
}

func (s *session) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use: "version", GroupID: groupMore, Args: args(),
		Short:   "Print the version",
		Example: "  mergeflow version",
		RunE: func(*cobra.Command, []string) error {
			s.println(fmt.Sprintf("mergeflow %s, %s, %s/%s", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH))
			return nil
		},
	}
}
