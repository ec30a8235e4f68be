package change

import (
	"strings"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// Project is what the configuration says of a project.
type Project struct {
	Forge        string
	Branch       string // template of the branch's name: {operation}, {subject}, {target}, {project}
	Title        string // template of the merge request's title: the same, and {title}
	RemoveSource bool   // the branch goes away after the merge
	InOrder      bool   // deploys run in merge order and skip nothing
}

// DefaultBranch is the template of a branch name where none is configured. The
// operation's id in it makes the branch nobody else's.
const DefaultBranch = "mergeflow/{operation}"

func (p Project) branch(row saga.Row) string {
	t := p.Branch
	if !strings.Contains(t, "{operation}") {
		t = DefaultBranch
	}
	a := row.About
	return strings.NewReplacer("{operation}", row.ID, "{subject}", slug(a.Subject), "{target}", slug(a.Target), "{project}", slug(a.Project)).Replace(t)
}

// slug makes any text a part of a branch's name.
func slug(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}, s)
	return strings.Trim(s[:min(len(s), 60)], "-")
}

func (p Project) title(row saga.Row) string {
	t := p.Title
	if t == "" {
		t = "{title}"
	}
	a := row.About
	return saga.Clean(strings.NewReplacer("{title}", a.Title, "{subject}", a.Subject, "{target}", a.Target, "{project}", a.Project, "{operation}", row.ID).Replace(t), maxTitle)
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
