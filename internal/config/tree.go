package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// kind is what a node of the input is.
type kind uint8

const (
	null kind = iota
	scalar
	list
	mapping
)

func (k kind) String() string {
	return [...]string{"nothing", "a single value", "a list", "a section"}[k]
}

// node is one value of the input with the place it came from. Nodes are shared
// (a YAML alias is its anchor's node) and never changed once they are made.
type node struct {
	kind    kind
	text    string // scalar
	items   []*node
	entries []entry
	origin  Origin
}

// entry is one key of a mapping.
type entry struct {
	key    string // as written
	origin Origin // of the key
	value  *node
}

func (n *node) find(key string) (int, bool) {
	for i, e := range n.entries {
		if strings.EqualFold(e.key, key) {
			return i, true
		}
	}
	return -1, false
}

// set answers n with key laid over: mappings merge, all else is replaced.
func (n *node) set(key string, value *node) *node {
	out := &node{kind: mapping, origin: n.origin, entries: append([]entry(nil), n.entries...)}
	if out.origin == (Origin{}) {
		out.origin = value.origin
	}
	i, ok := out.find(key)
	if !ok {
		out.entries = append(out.entries, entry{key: key, origin: value.origin, value: value})
		return out
	}
	if old := out.entries[i].value; old.kind == mapping && value.kind == mapping {
		for _, e := range value.entries {
			old = old.set(e.key, e.value)
		}
		value = old
	}
	out.entries[i].value = value
	return out
}

// parseYAML reads one YAML document. place says where the text begins: a file,
// or a variable or flag, whose values have no lines.
func parseYAML(text []byte, place Origin, p *problems) *node {
	empty := &node{kind: null, origin: place}
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		// The error's own text quotes the source, which may hold secrets.
		var ye yaml.Error
		if errors.As(err, &ye) {
			p.add(at(place, ye.GetToken()), "", "%s", ye.GetMessage())
		} else {
			p.add(place, "", "is no YAML")
		}
		return empty
	}
	r := &yamlReader{place: place, p: p, anchors: map[string]*node{}}
	out := empty
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType || doc.Body.Type() == ast.DirectiveType {
			continue
		}
		if out != empty {
			p.add(at(place, doc.Body.GetToken()), "", "is a second document; there must be one")
			break
		}
		out = r.read(doc.Body)
	}
	return out
}

// at is a token's place; within a variable or flag it stays the whole.
func at(place Origin, t *token.Token) Origin {
	if place.File != "" && t != nil && t.Position != nil {
		place.Line, place.Col = t.Position.Line, t.Position.Column
	}
	return place
}

type yamlReader struct {
	place   Origin
	p       *problems
	anchors map[string]*node
}

func (r *yamlReader) read(n ast.Node) *node {
	if n == nil {
		return &node{kind: null, origin: r.place}
	}
	out := &node{origin: at(r.place, n.GetToken())}
	switch n := n.(type) {
	case *ast.NullNode:
		out.kind = null
	case *ast.MappingNode:
		out.kind = mapping
		if !n.IsFlowStyle && len(n.Values) > 0 {
			out.origin = at(r.place, n.Values[0].Key.GetToken())
		}
		r.mapping(out, n.Values)
	case *ast.MappingValueNode:
		out.kind = mapping
		r.mapping(out, []*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		out.kind = list
		for _, v := range n.Values {
			out.items = append(out.items, r.read(v))
		}
	case *ast.AnchorNode:
		v := r.read(n.Value)
		r.anchors[n.Name.GetToken().Value] = v
		return v
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		v, ok := r.anchors[name]
		if !ok {
			r.p.add(out.origin, "", "the alias *%s has no anchor before it", name)
			return out
		}
		return v
	case *ast.StringNode:
		out.kind, out.text = scalar, n.Value
	case *ast.LiteralNode:
		out.kind, out.text = scalar, n.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		out.kind, out.text = scalar, n.GetToken().Value
	default:
		r.p.add(out.origin, "", "a YAML %s is not allowed here", strings.ToLower(n.Type().String()))
	}
	return out
}

func (r *yamlReader) mapping(out *node, values []*ast.MappingValueNode) {
	var merged []*node
	for _, v := range values {
		if v.Key.IsMergeKey() {
			m := r.read(v.Value)
			if m.kind == list {
				merged = append(merged, m.items...)
			} else {
				merged = append(merged, m)
			}
			continue
		}
		e := entry{key: v.Key.GetToken().Value, origin: at(r.place, v.Key.GetToken()), value: r.read(v.Value)}
		if e.value.kind == null {
			e.value.origin = e.origin
		}
		if i, twice := out.find(e.key); twice {
			r.p.add(e.origin, "", "%s is given twice, first %s", e.key, placed(out.entries[i].origin))
			continue
		}
		out.entries = append(out.entries, e)
	}
	// What is written wins over what is merged in, an earlier merge over a later one.
	for _, m := range merged {
		for _, e := range m.entries {
			if _, has := out.find(e.key); !has {
				out.entries = append(out.entries, e)
			}
		}
	}
}

func placed(o Origin) string {
	if o.Line > 0 {
		return fmt.Sprintf("in line %d", o.Line)
	}
	return "in " + o.String()
}
