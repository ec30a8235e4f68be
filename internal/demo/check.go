package demo

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// checkPulls looks up what must be true of the pull requests: in git with the
// git program, at the receiver, at the index and in the API.
func (s *story) checkPulls(ctx context.Context) error {
	var pulls []*operation
	for _, op := range s.told {
		if op.flow == "pull" {
			pulls = append(pulls, op)
		}
	}
	total, err := s.count(ctx, "rev-list", "--count", "--first-parent", "--merges", "main")
	if err != nil {
		return err
	}
	s.must(total == len(pulls), "git log of main has %d merges for %d pull requests", total, len(pulls))
	for i, op := range pulls {
		name := fmt.Sprintf("%s!%d", repo, op.pull.IID)
		o, err := s.api.Operation(ctx, op.id)
		if err != nil {
			return err
		}
		op.state, op.status = o.State, o.Status
		s.must(o.State == "MERGED" && o.Failure == nil, "%s is %s", name, o.State)

		found, err := s.git(ctx, s.bare(), "log", "--first-parent", "--fixed-strings", "--grep", op.id, "--format=%H", "main")
		if err != nil {
			return err
		}
		commits := strings.Fields(found)
		op.merges = len(commits)
		s.must(op.merges == 1 && commits[0] == op.mergeCommit, "commits in git that merge %s: %d (%s)", name, op.merges, strings.Join(shorten(commits), ", "))

		s.reached(op, name)

		text := []string{firstLine, secondLine}[i]
		hits, err := s.find(ctx, text)
		if err != nil {
			return err
		}
		s.must(len(hits) == 1 && hits[0].Text == text, "lines that search finds of %s: %d", name, len(hits))
	}
	return nil
}

// reached looks at the receiver: each watcher was told of this merge, once.
func (s *story) reached(op *operation, name string) {
	times := map[string]int{}
	for _, d := range s.receiver.Deliveries() {
		if d.OperationID == op.id && d.MergeCommit == op.mergeCommit {
			times[d.Watcher] += d.Times
		}
	}
	once := len(times) == len(watchers)
	var each []string
	for _, w := range watchers {
		once = once && times[w] == 1
		each = append(each, fmt.Sprintf("%s %d", w, times[w]))
	}
	s.must(once, "times told of %s: %s", name, strings.Join(each, ", "))
}

// count runs git on the server's repository and reads a number.
func (s *story) count(ctx context.Context, args ...string) (int, error) {
	out, err := s.git(ctx, s.bare(), args...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

func shorten(commits []string) []string {
	out := make([]string, len(commits))
	for i, c := range commits {
		out[i] = short(c)
	}
	return out
}
