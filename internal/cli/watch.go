package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// waiting are the flags of commands that can wait for the end.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) add(c *cobra.Command) {
	c.Flags().BoolVar(&w.wait, "wait", false, "wait for the end: status 0 when it went well, 1 when it did not")
	c.Flags().DurationVar(&w.timeout, "timeout", 0, "with --wait: stop waiting then, with status 5 (default: wait as long as it takes)")
}

func (w *waiting) check(c *cobra.Command) error {
	switch {
	case w.timeout < 0:
		return usageOf(c, errors.New("flag --timeout must not be negative"))
	case w.timeout > 0 && !w.wait:
		return usageOf(c, errors.New("flag --timeout needs --wait"))
	}
	return nil
}

// succeeded are the states that a wait calls done.
func succeeded(o httpapi.Operation) bool { return o.State == "MERGED" || o.State == "CALLED_BACK" }

// closed is what a close waits for: an end that is no success.
func closed(o httpapi.Operation) bool { return o.Final() && !succeeded(o) }

// await follows an operation until nothing happens any more by itself, tells
// how it stands then, and ends as good says.
func (s *session) await(ctx context.Context, api *client, id string, timeout time.Duration, good func(httpapi.Operation) bool) error {
	o, err := s.follow(ctx, api, id, timeout, s.progress)
	if err != nil {
		return err
	}
	// Read once more: what is printed is the API's own answer.
	if o, err = api.Operation(ctx, id); err != nil {
		return api.failure(err)
	}
	if err := s.print(api.body(), func() { s.tell(o) }); err != nil {
		return err
	}
	if !good(o) {
		return &failure{exit: exitFailed, silent: true}
	}
	return nil
}

// progress shows people on a terminal what happens meanwhile.
func (s *session) progress(ev httpapi.WatchEvent) {
	if e := ev.Entry; e != nil && isTerminal(s.stderr) {
		s.errorln(line(*e))
	}
}

// follow hands on events until the operation is settled. A time limit that ends
// is a failure with the status "still going".
func (s *session) follow(ctx context.Context, api *client, id string, timeout time.Duration, see func(httpapi.WatchEvent)) (httpapi.Operation, error) {
	within := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var last httpapi.Operation
	for ev, err := range api.Watch(within, id, "") {
		if err != nil {
			if within.Err() != nil && ctx.Err() == nil {
				return last, &failure{exit: exitGoing, code: "still-going",
					detail: fmt.Sprintf("operation %s is %s after %s", id, or(last.State, "under way"), timeout), hint: "mergeflow watch " + id}
			}
			return last, api.failure(err)
		}
		see(ev)
		if o := ev.Operation; o != nil {
			if last = *o; o.Failed() || o.Final() {
				return last, nil
			}
		}
	}
	return last, nil
}

func (s *session) watchCmd() *cobra.Command {
	var timeout time.Duration
	c := s.clientFlags(&cobra.Command{
		Use: "watch OP", GroupID: groupOps, Args: args("OP"),
		Short: "Follow an operation as it moves, until nothing happens by itself any more",
		Long: `Prints an operation's history and goes on as it moves, until it has ended or
failed. The exit status is the one of --wait: 0 when it went well, 1 when it did
not, 5 when --timeout ended. ` + opArgument,
		Example: `  mergeflow watch 'shop/app!1'
  mergeflow watch 'shop/app!1' --timeout 10m -o json   # one JSON object per line`,
	})
	c.Flags().DurationVar(&timeout, "timeout", 0, "stop then, with status 5 (default: watch as long as it takes)")
	c.RunE = func(c *cobra.Command, given []string) error {
		if timeout < 0 {
			return usageOf(c, errors.New("flag --timeout must not be negative"))
		}
		api, id, err := s.operation(c, given[0])
		if err != nil {
			return err
		}
		o, err := s.follow(c.Context(), api, id, timeout, s.showEvent)
		if err != nil {
			return err
		}
		if s.format == formatText {
			s.tell(o)
		}
		if !succeeded(o) {
			return &failure{exit: exitFailed, silent: true}
		}
		return nil
	}
	return c
}

// showEvent prints an event: a line for people, or the event's data.
func (s *session) showEvent(ev httpapi.WatchEvent) {
	var data any = ev.Operation
	if ev.Entry != nil {
		data = ev.Entry
	}
	if s.format == formatText {
		if ev.Entry != nil {
			s.println(line(*ev.Entry))
		}
		return
	}
	b, err := json.Marshal(data)
	if err != nil {
		return // types of our own always marshal
	}
	if s.format == formatYAML {
		s.println("---")
	}
	_ = s.print(b, nil)
}

// line is an entry of the history for people who watch.
func line(e httpapi.HistoryEntry) string {
	return plain(fmt.Sprintf("%s  %s  %s", e.At.Local().Format("15:04:05.000"), movement(e), e.Detail))
}
