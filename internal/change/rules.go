package change

import "slices"

// Rules say who approves what, for the built-in approvals.
type Rules struct {
	// For answers who may approve a target and how many must; "*" is anybody.
	// A target that no rule is for has no approvers.
	For       func(target string) (approvers []string, quorum int)
	AllowSelf bool // the requester's own approval counts
}

// May says whether somebody may approve a change of the target that the
// requester asked for, and if not, why. local is the actor where no tokens are
// required; who that is can't be told, so no rule about persons binds it.
func (r *Rules) May(who, requester, target string, local bool) (ok bool, why string) {
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
