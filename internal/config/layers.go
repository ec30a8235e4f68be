package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

const envPrefix = "MERGEFLOW_"

// reserved variables are no keys: the client's, and the file's name.
var reserved = []string{"MERGEFLOW_CONFIG", "MERGEFLOW_SERVER", "MERGEFLOW_TOKEN"}

// foreign variables are no keys either: switches of tests and fault injection,
// and what Kubernetes sets in each pod of a namespace with a service of our name.
var foreign = regexp.MustCompile(`^MERGEFLOW_(TEST_.*|FAULT.*|SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// unknownVar is a variable that names no key. It is a problem unless a secret refers to it.
type unknownVar struct {
	name    string
	problem Problem
}

// overlayEnv lays the MERGEFLOW_ variables over the tree. An empty variable
// counts as unset.
func overlayEnv(root *node, env []string, p *problems) (*node, []unknownVar) {
	var unknown []unknownVar
	env = slices.Clone(env)
	slices.Sort(env) // FLOW before FLOW__ORDER: the narrower one wins
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix) || value == "" || slices.Contains(reserved, name) || foreign.MatchString(name) {
			continue
		}
		path := strings.Split(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "__")
		next, bad := overlay(root, path, value, Origin{Env: name}, p)
		if bad != nil {
			unknown = append(unknown, unknownVar{name, *bad})
			continue
		}
		root = next
	}
	return root, unknown
}

// overlayFlags lays flags over the tree. Their names are paths with dots.
func overlayFlags(root *node, flags map[string]any, p *problems) *node {
	names := make([]string, 0, len(flags))
	for name := range flags {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		o := Origin{Flag: "--" + strings.NewReplacer("_", "-", ".", "-").Replace(name)}
		if flags[name] == nil {
			continue
		}
		next, bad := overlay(root, strings.Split(name, "."), fmt.Sprint(flags[name]), o, p)
		if bad != nil {
			p.add(o, bad.Path, "%s", bad.Message)
			continue
		}
		root = next
	}
	return root
}

// overlay sets one path to a text. The schema says how the text is read: a
// section, and a list in brackets, as YAML; a single value as it stands. A path
// that isn't in the schema is the problem that it answers.
func overlay(root *node, path []string, text string, o Origin, p *problems) (*node, *Problem) {
	t := reflect.TypeFor[Config]()
	for i, key := range path {
		switch {
		case isLeaf(t) || t.Kind() == reflect.Slice:
			return nil, &Problem{Path: strings.Join(path, "."), Message: "has no parts of its own; a list is set as a whole, as [a, b]"}
		case t.Kind() == reflect.Map:
			if key == "" {
				return nil, &Problem{Path: strings.Join(path, "."), Message: "a name is missing"}
			}
			t = t.Elem()
		default:
			f, ok := fieldNamed(t, key)
			if !ok {
				return nil, &Problem{Path: strings.Join(path[:i+1], "."), Message: unknownKey(t, key)}
			}
			t = f.typ
		}
	}
	value := &node{kind: scalar, text: text, origin: o}
	if !isLeaf(t) || t.Kind() == reflect.Slice && strings.HasPrefix(strings.TrimSpace(text), "[") {
		value = parseYAML([]byte(text), o, p)
	}
	return nest(root, path, value), nil
}

func nest(n *node, path []string, value *node) *node {
	if len(path) == 1 {
		return n.set(path[0], value)
	}
	child := &node{kind: mapping}
	if i, ok := n.find(path[0]); ok && n.entries[i].value.kind == mapping {
		child = n.entries[i].value
	}
	return n.set(path[0], nest(child, path[1:], value))
}

func unknownKey(t reflect.Type, key string) string {
	if s := nearest(t, key); s != "" {
		return "unknown key; did you mean " + s + "?"
	}
	return "unknown key"
}
