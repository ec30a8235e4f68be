package change

import (
	"strings"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// Project is what the configuration says of a project.
type Project struct {
	Forge        string
	Branch       string // template of the branch's name; {operation}
	Title        string // template of the merge request's title; {title}, {subject}, {target}
	Labels       []string
	RemoveSource bool
	InOrder      bool // deploys run in merge order and skip nothing
}

// DefaultBranch is the template of a branch name where none is configured. The
// operation's id in it makes the branch nobody else's.
const DefaultBranch = "mergeflow/{operation}"

func (p Project) branch(operationID string) string {
	t := p.Branch
	if !strings.Contains(t, "{operation}") {
		t = DefaultBranch
	}
	return strings.ReplaceAll(t, "{operation}", operationID)
}

func (p Project) title(row saga.Row) string {
	t := p.Title
	if t == "" {
		t = "{title}"
	}
	return saga.Clean(strings.NewReplacer("{title}", row.About.Title, "{subject}", row.About.Subject, "{target}", row.About.Target, "{operation}", row.ID).Replace(t), maxTitle)
}

// trailer marks a commit and a merge request as an operation's own.
func trailer(operationID string) string { return "Mergeflow-Operation: " + operationID }

// isOwn says that a commit message or a merge request's text carries the
// operation's marker on a line of its own.
func isOwn(text, operationID string) bool {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.TrimSpace(line) == trailer(operationID) {
			return true
		}
	}
	return false
}
