// Package cli is the command line: one file per group of subcommands. Client
// commands talk to a server through its HTTP API and nothing else; `serve` and
// `demo` start an app in this process.
//
// Whatever ends a command is an error of one of the kinds in exit.go, which
// also say the exit status. Text is for people and may change; JSON is the
// API's own body, byte for byte.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Version is what `mergeflow version` prints; main sets it before Main.
var Version = buildVersion()

func buildVersion() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "unknown"
}

// Main runs one command line and answers the process's exit status. SIGINT and
// SIGTERM end a running command in good order; a second one ends the process.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // from now on the signals do what they always do
	return Run(ctx, args, os.Environ(), stdin, stdout, stderr)
}

// Run is Main without signals: the command ends when ctx does. env is the
// environment as os.Environ gives it. It is safe for concurrent use.
func Run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s := &session{env: env, stdin: stdin, stdout: stdout, stderr: stderr}
	root := s.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetContext(ctx)
	err := unreadable(args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return exitDone
	}
	// What no command returned, cobra said: a flag, an argument or a name is wrong.
	if _, ours := errors.AsType[*failure](err); !ours {
		err = usage(err)
	}
	return s.report(err)
}

// unreadable refuses what JSON would silently turn into another text.
func unreadable(args []string) error {
	for i, a := range args {
		if !utf8.ValidString(a) {
			return fmt.Errorf("argument %d is not valid UTF-8: %q", i+1, a)
		}
	}
	return nil
}

// session is one run of a command line.
type session struct {
	env            []string
	stdin          io.Reader
	stdout, stderr io.Writer

	server, token string
	format        string
}

func (s *session) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "mergeflow",
		Short: "Carry a change from request to live",
		Long: `mergeflow carries a change from "please merge this" to "it is merged, people know,
it can be found", across systems that share no transaction.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused (conflict,
not allowed), 5 still going when --timeout ended.`,
		Example: `  mergeflow demo                       # see it work, with nothing to set up
  mergeflow serve                      # on http://127.0.0.1:8080
  mergeflow repo create shop/app
  mergeflow pr create --repo shop/app --source warmer --target main --title "A warmer greeting"
  mergeflow merge 'shop/app!1' --wait`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageOf(c, err) })
	root.AddGroup(&cobra.Group{ID: groupServer, Title: "Run it:"},
		&cobra.Group{ID: groupPulls, Title: "Repositories and pull requests:"},
		&cobra.Group{ID: groupChanges, Title: "Changes:"},
		&cobra.Group{ID: groupOps, Title: "Operations:"},
		&cobra.Group{ID: groupMore, Title: "More:"})
	root.SetHelpCommandGroupID(groupMore)
	root.SetCompletionCommandGroupID(groupMore)
	root.AddCommand(
		s.serveCmd(), s.demoCmd(), s.migrateCmd(), s.configCmd(), s.doctorCmd(),
		s.repoCmd(), s.prCmd(), s.mergeCmd(), s.searchCmd(),
		s.submitCmd(), s.approveCmd(), s.rejectCmd(), s.withdrawCmd(),
		s.getCmd(), s.listCmd(), s.watchCmd(), s.historyCmd(),
		s.retryCmd(), s.resumeCmd(), s.failCmd(), s.closeCmd(),
		s.flowCmd(), s.versionCmd(),
	)
	group(root)
	return root
}

// The headings that help lists commands under.
const (
	groupServer  = "server"
	groupPulls   = "pulls"
	groupChanges = "changes"
	groupOps     = "operations"
	groupMore    = "more"
)
