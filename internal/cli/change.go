package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// changeFile is change.yaml. Its names are the API's.
type changeFile struct {
	Subject     string         `yaml:"subject"`
	Target      string         `yaml:"target"`
	Project     string         `yaml:"project"`
	Base        string         `yaml:"base"`
	Title       string         `yaml:"title"`
	Description string         `yaml:"description"`
	Files       []changeInput  `yaml:"files"`
	Labels      []string       `yaml:"labels"`
	Ext         map[string]any `yaml:"ext"`
	Order       string         `yaml:"order"`
}

type changeInput struct {
	Path    string `yaml:"path"`
	Action  string `yaml:"action"`
	Content string `yaml:"content"`
}

// changeLimit bounds a change file in bytes, a little above what the API takes.
const changeLimit = 16 << 20

func (s *session) submitCmd() *cobra.Command {
	var file, order, key string
	var plan bool
	var w waiting
	c := s.clientFlags(&cobra.Command{
		Use: "submit -f FILE", GroupID: groupChanges, Args: args(),
		Short: "Ask for a change: approval, merge request, checks, merge, deploy",
		Long: `Asks for the change that a YAML file describes and answers the operation that
carries it from approval to live. With --plan nothing is written anywhere: it
says what would happen. With --wait it follows the operation to its end.

  # change.yaml
  subject: team-payments            # who the change is for
  target: prod/eu/quota             # what it is about: one live request per (subject, target)
  project: platform/config          # the repository
  base: main
  title: Raise the quota
  files:
    - {path: quotas/payments.yaml, action: upsert, content: "limit: 200\n"}`,
		Example: `  mergeflow submit -f change.yaml --plan
  mergeflow submit -f change.yaml --order mr_first --wait --timeout 1h
  generate-change | mergeflow submit -f - --idempotency-key OPS-1`,
	})
	f := c.Flags()
	f.StringVarP(&file, "file", "f", "", "the change, as YAML; - reads standard input (required)")
	f.StringVar(&order, "order", "", "approval_first or mr_first (default: as the server is configured)")
	f.StringVar(&key, "idempotency-key", "", "the same key and change again answer the same operation")
	f.BoolVar(&plan, "plan", false, "say what would happen; write nothing")
	w.add(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := w.check(c); err != nil {
			return err
		}
		if err := required(c, "file"); err != nil {
			return err
		}
		api, err := s.client(c)
		if err != nil {
			return err
		}
		in, err := s.readChange(file)
		if err != nil {
			return err
		}
		if order != "" {
			in.Order = order
		}
		if plan {
			if key != "" || w.wait {
				return usageOf(c, errors.New("flag --plan goes without --wait and --idempotency-key: nothing is begun"))
			}
			p, err := api.Plan(c.Context(), in)
			if err != nil {
				return api.failure(err)
			}
			return s.print(api.body(), func() { s.tellPlan(p) })
		}
		a, err := api.Submit(c.Context(), in, key)
		if err != nil {
			return api.failure(err)
		}
		return s.begun(c.Context(), api, a, w, succeeded)
	}
	return c
}

// readChange reads a change file strictly: an unknown field is an error with
// its place.
func (s *session) readChange(file string) (httpapi.NewChange, error) {
	bad := func(err error) (httpapi.NewChange, error) {
		return httpapi.NewChange{}, &failure{exit: exitUsage, code: "bad-file", detail: file + ": " + err.Error(), hint: "mergeflow submit --help shows a change"}
	}
	in := s.stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return bad(err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, changeLimit+1))
	if err != nil {
		return bad(err)
	}
	if len(text) > changeLimit {
		return bad(fmt.Errorf("has more than %d bytes", changeLimit))
	}
	var x changeFile
	d := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := d.Decode(&x); err != nil {
		if errors.Is(err, io.EOF) {
			return bad(errors.New("is empty"))
		}
		return bad(errors.New(strings.TrimSpace(yaml.FormatError(err, false, false))))
	}
	if err := d.Decode(&changeFile{}); !errors.Is(err, io.EOF) {
		return bad(errors.New("holds more than one document"))
	}
	out := httpapi.NewChange{Subject: x.Subject, Target: x.Target, Project: x.Project, Base: x.Base, Title: x.Title,
		Description: x.Description, Labels: x.Labels, Ext: x.Ext, Order: x.Order, Files: []httpapi.ChangeFile{}}
	for _, f := range x.Files {
		out.Files = append(out.Files, httpapi.ChangeFile(f))
	}
	return out, nil
}

func (s *session) tellPlan(p httpapi.Plan) {
	approvers := strings.Join(p.Approvers, ", ")
	if p.Quorum > 1 {
		approvers += fmt.Sprintf(" (%d of them)", p.Quorum)
	}
	facts := []fact{
		{"way", strings.Join(p.States, " → ")},
		{"branch", p.Branch + " on " + p.Base + " at " + short(p.BaseSHA)},
		{"merge request", p.MergeRequest.Title},
		{"approvers", or(approvers, "outside")},
		{"checks", or(strings.Join(p.Checks, ", "), "none required")},
		{"reviewers", or(strings.Join(p.Reviewers, ", "), "none")},
	}
	for _, d := range p.Deadlines {
		facts = append(facts, fact{"patience", d.State + " " + d.After})
	}
	if p.InTheWay != "" {
		facts = append(facts, fact{"in the way", "operation " + p.InTheWay + ": a submit would be refused"})
	}
	s.story("this would happen; nothing was written", facts...)
	s.println("")
	for line := range strings.Lines(p.Diff) {
		s.println(plain(strings.TrimRight(line, "\n")))
	}
}

// vote makes one of the commands by which people decide about a change.
func (s *session) vote(verb, decision, short, long, reason string) *cobra.Command {
	var why, as string
	c := s.clientFlags(&cobra.Command{
		Use: verb + " OP", GroupID: groupChanges, Args: args("OP"),
		Short: short, Long: long + "\nOP is an operation's id.",
		Example: fmt.Sprintf("  mergeflow %[1]s 01922d3c-7e1a-7cc3-98c4-dc0c0c07398f --reason %[2]q\n  mergeflow %[1]s 01922d3c-7e1a-7cc3-98c4-dc0c0c07398f --reason %[2]q --as ann", verb, reason),
	})
	c.Flags().StringVar(&why, "reason", "", "why, for the history (required)")
	c.Flags().StringVar(&as, "as", "", "who decides, where the server requires no tokens")
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := required(c, "reason"); err != nil {
			return err
		}
		api, id, err := s.operation(c, given[0])
		if err != nil {
			return err
		}
		a, err := api.Approval(c.Context(), id, httpapi.ApprovalInput{Decision: decision, Reason: why, As: as})
		if err != nil {
			return api.failure(err)
		}
		return s.begun(c.Context(), api, a, waiting{}, succeeded)
	}
	return c
}

func (s *session) approveCmd() *cobra.Command {
	return s.vote("approve", "approved", "Approve a change", "Approves a change. Where a quorum is asked for, it moves when enough have approved.", "looks right")
}

func (s *session) rejectCmd() *cobra.Command {
	return s.vote("reject", "rejected", "Reject a change", "Rejects a change and ends it; its merge request is closed where there is one.", "not in this quarter")
}

func (s *session) withdrawCmd() *cobra.Command {
	return s.vote("withdraw", "withdrawn", "Withdraw a change of one's own", "Takes a change back that one asked for oneself, while it waits for approval.", "not needed any more")
}

func (s *session) callbacksOf(ctx context.Context, api *client, id string) error {
	api.tape.answers = nil // what it took to find the operation
	items, err := collect(api, pageFlags{all: true}, api.Callbacks(ctx, id))
	if err != nil {
		return err
	}
	return s.printList(api, func() {
		var rows [][]string
		for _, e := range items {
			rows = append(rows, []string{e.At.Local().Format("2006-01-02 15:04:05.000"), e.Kind, e.Verdict, e.Rule, e.Actor, e.RequestID})
		}
		s.table([]string{"AT", "KIND", "VERDICT", "RULE", "ACTOR", "REQUEST"}, rows)
	})
}
