package change

import "testing"

// Who may approve, and who asked for it: nobody approves their own change
// unless the rules say so, and a target without a rule has no approvers.
func TestWhoMayApprove(t *testing.T) {
	t.Parallel()
	approvers := map[string][]string{"prod": {"ann", "sue"}, "any": {"*"}}
	for _, c := range []struct {
		name                   string
		who, requester, target string
		local, allowSelf, may  bool
	}{
		{name: "an approver", who: "ann", requester: "sue", target: "prod", may: true},
		{name: "somebody else", who: "bob", requester: "sue", target: "prod"},
		{name: "one's own", who: "sue", requester: "sue", target: "prod"},
		{name: "one's own, allowed", who: "sue", requester: "sue", target: "prod", allowSelf: true, may: true},
		{name: "one's own, no approver", who: "bob", requester: "bob", target: "prod", allowSelf: true},
		{name: "anybody", who: "bob", requester: "sue", target: "any", may: true},
		{name: "anybody, but oneself", who: "bob", requester: "bob", target: "any"},
		{name: "anybody, oneself allowed", who: "bob", requester: "bob", target: "any", allowSelf: true, may: true},
		{name: "no rule", who: "ann", requester: "sue", target: "other", allowSelf: true},
		{name: "where nobody has a name", who: LocalActor, requester: LocalActor, target: "other", local: true, may: true},
	} {
		r := Rules{AllowSelf: c.allowSelf, For: func(target string) ([]string, int) { return approvers[target], 1 }}
		may, why := r.May(c.who, c.requester, c.target, c.local)
		if may != c.may || may == (why != "") {
			t.Errorf("%s: %v (%s)", c.name, may, why)
		}
	}
}
