package change

import (
	"context"
	"strings"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// anyOperation stands for an operation's id before there is one.
const anyOperation = "00000000-0000-0000-0000-000000000000"

// branchRoom refuses a change whose branch could not be made later: because the
// project's template makes no name of what it is about, or because git keeps no
// branch below the name of another one, mergeflow/… beside mergeflow.
func branchRoom(ctx context.Context, f forge.Changer, conf Project, in *Submission) error {
	name := conf.branch(saga.Row{ID: anyOperation, About: saga.About{Subject: in.Subject, Target: in.Target, Project: in.Project, Title: in.Title}})
	shown := strings.ReplaceAll(name, anyOperation, "{operation}")
	const advice = "name mergeflow's branches otherwise (projects[].mr.branch)"
	for i, c := range name + "/" {
		part := name[:i]
		whole := i == len(name)
		switch {
		case c != '/',
			!whole && strings.Contains(part, anyOperation), // nobody else's
			whole && shown == DefaultBranch:                // always a name, and new
			continue
		}
		_, err := f.Branch(ctx, in.Project, part)
		switch kind := forge.KindOf(err); {
		case err == nil && part == in.Base:
			return invalid("base", "branch %s is in the way: git keeps no %s beside it; %s", part, shown, advice)
		case err == nil:
			return invalid("project", "branch %s is in the way: git keeps no %s beside it; rename or delete it on the forge, or %s", part, shown, advice)
		case kind == forge.KindInvalid:
			return invalid("project", "%q is no branch name for git: %s", shown, advice)
		case kind != forge.KindNotFound:
			return err
		}
	}
	return nil
}
