package change

import (
	"path"
	"slices"
)

// Rules say who approves what, for the built-in approvals. First match wins.
type Rules struct {
	Rules     []Rule
	AllowSelf bool // the requester's own approval counts
}

// Rule is one line of approval.rules.
type Rule struct {
	Match     string // a glob over the target; * crosses no /, but "*" alone matches all
	Approvers []string
	Quorum    int
}

// For answers who may approve a target and how many must. "*" is anybody. A
// target that no rule matches has no approvers.
func (r *Rules) For(target string) (approvers []string, quorum int) {
	for _, x := range r.Rules {
		if ok, _ := path.Match(x.Match, target); ok || x.Match == "*" {
			return x.Approvers, max(1, x.Quorum)
		}
	}
	return nil, 1
}

// May says whether somebody may approve a change of the target that the
// requester asked for. local is the actor where no tokens are required; the
// rule against approving one's own does not bind it.
func (r *Rules) May(who, requester, target string, local bool) (bool, string) {
	approvers, _ := r.For(target)
	switch {
	case local:
		return true, ""
	case !slices.Contains(approvers, "*") && !slices.Contains(approvers, who):
		return false, who + " is no approver of " + target
	case who == requester && !r.AllowSelf:
		return false, who + " asked for this change and may not approve it (approval.allow_self)"
	}
	return true, ""
}
