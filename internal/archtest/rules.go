package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// Rule is one sentence of the architecture. Check answers what breaks it, one
// line for each place, and nothing when it holds.
type Rule struct {
	Name  string
	Why   string
	Check func(*Tree) []string
}

// Check asks every rule and answers all that is broken, with the rule's name
// and reason.
func Check(t *Tree, rules []Rule) []string {
	var out []string
	for _, r := range rules {
		for _, broken := range r.Check(t) {
			out = append(out, fmt.Sprintf("%s: %s (%s)", r.Name, broken, r.Why))
		}
	}
	return out
}

// Set is a set of packages: a list of patterns, where "p" is that package,
// "p/..." it and all below it, and "p/*" only what is below it.
type Set []string

// Outside stands for every package that belongs neither to the module nor to Go.
const Outside = "(other modules)"

// Has says whether a package belongs to the set.
func (s Set) Has(p string) bool {
	return slices.ContainsFunc(s, func(pattern string) bool {
		if pattern == Outside {
			return !isLocal(p) && !isStandard(p)
		}
		if pattern == "./..." {
			return isLocal(p)
		}
		if root, ok := strings.CutSuffix(pattern, "/..."); ok {
			return p == root || strings.HasPrefix(p, root+"/")
		}
		if root, ok := strings.CutSuffix(pattern, "/*"); ok {
			return strings.HasPrefix(p, root+"/")
		}
		return p == pattern
	})
}

// Only lets the packages of from import Go's own packages, what is in may, and
// nothing else.
func Only(from, may Set) func(*Tree) []string {
	return func(t *Tree) []string {
		return imports(t, func(p Package, to string) bool {
			return from.Has(p.Path) && !isStandard(to) && !may.Has(to)
		})
	}
}

// Never forbids the packages of from, those of except left out, to import
// anything of to.
func Never(from, except, to Set) func(*Tree) []string {
	return func(t *Tree) []string {
		return imports(t, func(p Package, imported string) bool {
			return from.Has(p.Path) && !except.Has(p.Path) && to.Has(imported)
		})
	}
}

// NeverReach is Never, through any number of the module's packages. It names
// the way.
func NeverReach(from Set, to func(string) bool) func(*Tree) []string {
	return func(t *Tree) []string {
		next := map[string][]string{}
		for _, p := range t.Packages {
			next[p.Path] = p.Imports
		}
		var out []string
		for _, p := range t.Packages {
			if !from.Has(p.Path) {
				continue
			}
			seen := map[string]bool{p.Path: true}
			ways := [][]string{{p.Path}}
			for len(ways) > 0 {
				way := ways[0]
				ways = ways[1:]
				for _, step := range next[way[len(way)-1]] {
					if seen[step] {
						continue
					}
					seen[step] = true
					longer := append(slices.Clone(way), step)
					if to(step) {
						out = append(out, strings.Join(longer, " → "))
						continue
					}
					ways = append(ways, longer)
				}
			}
		}
		return out
	}
}

// Apart forbids packages of one group to import packages of another. group
// answers the empty text for a package that belongs to none.
func Apart(group func(string) string) func(*Tree) []string {
	return func(t *Tree) []string {
		return imports(t, func(p Package, to string) bool {
			a, b := group(p.Path), group(to)
			return a != "" && b != "" && a != b
		})
	}
}

// NotNamed forbids package names, as the package clause or the directory says them.
func NotNamed(names ...string) func(*Tree) []string {
	return func(t *Tree) []string {
		var out []string
		for _, p := range t.Packages {
			for _, n := range slices.Compact([]string{p.Name, last(p.Path)}) {
				if slices.Contains(names, n) {
					out = append(out, p.Path+" is named "+n)
				}
			}
		}
		return out
	}
}

// Shorter limits the lines of every file that a person wrote.
func Shorter(lines int) func(*Tree) []string {
	return func(t *Tree) []string {
		var out []string
		for _, p := range t.Packages {
			for _, f := range p.Files {
				if !f.Generated && f.Lines > lines {
					out = append(out, fmt.Sprintf("%s/%s has %d lines, more than %d", p.Path, f.Name, f.Lines, lines))
				}
			}
		}
		return out
	}
}

// Documented asks every package that has more than tests for a package comment.
func Documented() func(*Tree) []string {
	return func(t *Tree) []string {
		var out []string
		for _, p := range t.Packages {
			if p.HasProduct && !p.Documented {
				out = append(out, p.Path+" has no package comment")
			}
		}
		return out
	}
}

// imports lists the product imports that are broken.
func imports(t *Tree, broken func(p Package, to string) bool) []string {
	var out []string
	for _, p := range t.Packages {
		for _, to := range p.Imports {
			if broken(p, to) {
				out = append(out, p.Path+" → "+to)
			}
		}
	}
	return out
}
