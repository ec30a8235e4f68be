package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

func (s *session) mergeCmd() *cobra.Command {
	var sha string
	var w waiting
	c := s.clientFlags(&cobra.Command{
		Use: "merge PR", GroupID: groupPulls, Args: args("PR"),
		Short: "Merge a pull request: validate, merge, notify, index",
		Long: `Asks for the merge of a pull request and answers the operation that does it. With
--wait it follows the operation to its end. PR is a pull request's id, or
REPO!NUMBER (quote it: shells read the exclamation mark).`,
		Example: `  mergeflow merge 'shop/app!1' --wait --timeout 10m
  mergeflow merge 'shop/app!1' --sha "$(git rev-parse warmer)"`,
	})
	c.Flags().StringVar(&sha, "sha", "", "merge exactly this head or nothing")
	w.add(c)
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := w.check(c); err != nil {
			return err
		}
		api, err := s.client(c)
		if err != nil {
			return err
		}
		id, err := api.pullID(c.Context(), given[0])
		if err != nil {
			return err
		}
		a, err := api.MergePull(c.Context(), id, sha)
		if err != nil {
			return api.failure(err)
		}
		return s.begun(c.Context(), api, a, w, succeeded)
	}
	return c
}

// begun says that something goes on by itself now, and follows it when that was asked.
func (s *session) begun(ctx context.Context, api *client, a httpapi.Accepted, w waiting, good func(httpapi.Operation) bool) error {
	if w.wait {
		return s.await(ctx, api, a.OperationID, w.timeout, good)
	}
	return s.print(api.body(), func() {
		s.story("operation "+a.OperationID+" is "+a.State, fact{"follow it", "mergeflow watch " + a.OperationID})
	})
}

// operate makes one of the commands by which a person moves an operation.
func (s *session) operate(verb, short, long, reason string, good func(httpapi.Operation) bool,
	send func(api *client, ctx context.Context, id, reason string) (httpapi.Accepted, error)) *cobra.Command {
	var why string
	var w waiting
	c := s.clientFlags(&cobra.Command{
		Use: verb + " OP", GroupID: groupOps, Args: args("OP"),
		Short: short, Long: long + "\n" + opArgument,
		Example: fmt.Sprintf("  mergeflow %[1]s 'shop/app!1' --reason %[2]q\n  mergeflow %[1]s 'shop/app!1' --reason %[2]q --wait --timeout 5m", verb, reason),
	})
	c.Flags().StringVar(&why, "reason", "", "why, for the history (required)")
	w.add(c)
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := w.check(c); err != nil {
			return err
		}
		if err := required(c, "reason"); err != nil {
			return err
		}
		api, id, err := s.operation(c, given[0])
		if err != nil {
			return err
		}
		a, err := send(api, c.Context(), id, why)
		if err != nil {
			return api.failure(err)
		}
		return s.begun(c.Context(), api, a, w, good)
	}
	return c
}

func (s *session) retryCmd() *cobra.Command {
	return s.operate("retry", "Run the step that failed again, and those after it",
		"Runs the step that failed again, and those after it, with a fresh budget of\nattempts. What earlier steps did is not redone; git never merges twice.",
		"the index is back", succeeded,
		func(api *client, ctx context.Context, id, reason string) (httpapi.Accepted, error) {
			return api.Retry(ctx, id, reason)
		})
}

func (s *session) resumeCmd() *cobra.Command {
	return s.operate("resume", "Go on waiting for an outcome that is not known",
		"Goes on waiting where an operation stopped to ask a person about an unknown outcome.",
		"the pipeline still runs", succeeded,
		func(api *client, ctx context.Context, id, reason string) (httpapi.Accepted, error) {
			return api.Resume(ctx, id, reason)
		})
}

func (s *session) failCmd() *cobra.Command {
	return s.operate("fail", "Give up a wait",
		"Gives up a wait: the operation goes to the failed state of what it waits for.",
		"the pipeline was deleted", succeeded,
		func(api *client, ctx context.Context, id, reason string) (httpapi.Accepted, error) {
			return api.Fail(ctx, id, reason)
		})
}

func (s *session) closeCmd() *cobra.Command {
	return s.operate("close", "End an operation that git has not merged",
		"Ends an operation, and a local pull request with it. Refused once git has\nmerged: from there the way is forward, with retry.",
		"not needed any more", closed,
		func(api *client, ctx context.Context, id, reason string) (httpapi.Accepted, error) {
			return api.Close(ctx, id, reason)
		})
}
