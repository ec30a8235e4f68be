// Package flowdoc writes docs/states.md from the flows' tables. A test fails
// when the page and the tables differ; `make generate` writes it anew.
package flowdoc

import (
	"fmt"
	"sort"
	"strings"

	"github.com/mergeflow/mergeflow/internal/saga"
)

//go:generate go test . -run ^TestStatesPage$ -update

// Page is the whole page for these flows.
func Page(flows ...*saga.Flow) string {
	var b strings.Builder
	b.WriteString("# States\n\nGenerated from the tables in `internal/*/table.go` by `make generate`; don't edit.\n\n" +
		"Kinds: *running* (a command is due or leased), *waiting* (for an event or a deadline), *passing* (entered and left in one transaction), " +
		"*failed* (a retry is possible), *final* (never left). A code's first three digits are its phase.\n")
	for _, f := range flows {
		fmt.Fprintf(&b, "\n## Flow `%s`, version %d\n\n", f.Name, f.Version)
		var orders []string
		for o, s := range f.Entry {
			if o == saga.OrderDefault {
				orders = append(orders, "Begins in `"+string(s)+"`.")
				continue
			}
			orders = append(orders, fmt.Sprintf("Order `%s` begins in `%s`.", o, s))
		}
		sort.Strings(orders)
		b.WriteString(strings.Join(orders, " ") + "\n\n" + saga.Table(f))
		b.WriteString("\n### What each state says\n\n| state | sentence | waits for | from | hint when failed |\n|---|---|---|---|---|\n")
		for _, s := range f.States {
			hint := s.Hint
			if s.Kind != saga.Failed {
				hint = s.Deadline.Hint
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", s.State, s.Explain.Summary, s.Explain.WaitingFor, s.Explain.Who, hint)
		}
		b.WriteString("\n### Diagram\n\n```mermaid\n" + saga.Mermaid(f) + "```\n")
	}
	return b.String()
}
