package config

import "strings"

// Match says whether a pattern of `projects` or `approval.rules` names a thing.
// "*" stands for any run of characters, "/" included, "?" for exactly one; all
// else stands for itself.
func Match(pattern, name string) bool {
	p, n := []rune(pattern), []rune(name)
	i, star, mark := 0, -1, 0
	for k := 0; k < len(n); {
		switch {
		case i < len(p) && p[i] == '*':
			star, mark = i, k
			i++
		case i < len(p) && (p[i] == '?' || p[i] == n[k]):
			i++
			k++
		case star >= 0: // let the last star swallow one more
			mark++
			i, k = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(string(p[i:]), "*") == ""
}
