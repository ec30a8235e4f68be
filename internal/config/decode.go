package config

import (
	"reflect"
	"strconv"
	"strings"
	"time"
)

// decoder lays a tree over a Config, key by key, and notes where each value
// came from.
type decoder struct {
	p       *problems
	env     func(string) (string, bool)
	envUsed map[string]bool // variables that secrets refer to
}

func (d *decoder) value(n *node, v reflect.Value, path string, f field) {
	if n.kind == null {
		return // a key with nothing behind it keeps its default
	}
	t := v.Type()
	want := scalar
	switch {
	case isLeaf(t) && t.Kind() != reflect.Slice:
	case t.Kind() == reflect.Slice:
		want = list
	default:
		want = mapping
	}
	if want == list && n.kind == scalar && isLeaf(t) { // one value where a list may stand
		n = &node{kind: list, items: []*node{n}, origin: n.origin}
	}
	if n.kind != want {
		d.p.add(n.origin, path, "must be %s, not %s", want, n.kind)
		return
	}
	if path != "" {
		d.p.at[path] = n.origin
	}
	switch {
	case want == scalar:
		d.scalar(n, v, path)
	case want == list:
		d.list(n, v, path)
	case t.Kind() == reflect.Map:
		d.mapping(n, v, path, f)
	default:
		for _, e := range n.entries {
			if f, ok := fieldNamed(t, e.key); ok {
				d.value(e.value, v.Field(f.index), join(path, f.name), f)
				if e.value.kind == mapping {
					d.p.at[join(path, f.name)] = e.origin // a section is where its key is
				}
			} else {
				d.p.add(e.origin, join(path, strings.ToLower(e.key)), "%s", unknownKey(t, e.key))
			}
		}
	}
}

func (d *decoder) list(n *node, v reflect.Value, path string) {
	out := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, item := range n.items {
		if item.kind == null {
			d.p.add(item.origin, index(path, i), "is empty")
			continue
		}
		if x, ok := out.Index(i).Addr().Interface().(defaulter); ok {
			x.setDefaults()
		}
		d.value(item, out.Index(i), index(path, i), field{})
	}
	v.Set(out)
}

func (d *decoder) mapping(n *node, v reflect.Value, path string, f field) {
	for _, e := range n.entries {
		key := strings.ToLower(e.key)
		if f.keyCase == "upper" {
			key = strings.ToUpper(e.key)
		}
		elem := reflect.New(v.Type().Elem()).Elem()
		if old := v.MapIndex(reflect.ValueOf(key)); old.IsValid() {
			elem.Set(old)
		} else if x, ok := elem.Addr().Interface().(defaulter); ok {
			x.setDefaults()
		}
		at := join(path, strings.ToLower(key))
		d.value(e.value, elem, at, field{})
		if e.value.kind != scalar {
			d.p.at[at] = e.origin
		}
		v.SetMapIndex(reflect.ValueOf(key), elem)
	}
}

func (d *decoder) scalar(n *node, v reflect.Value, path string) {
	bad := func(format string, args ...any) { d.p.add(n.origin, path, format, args...) }
	switch {
	case v.Type() == secretType:
		if n.text == "" {
			return
		}
		if name, ok := strings.CutPrefix(n.text, "env:"); ok {
			d.envUsed[name] = true
		}
		s, err := newSecret(n.text, d.env)
		if err != nil {
			bad("%s", err)
			return
		}
		v.Set(reflect.ValueOf(s))
	case v.Type() == durationType:
		x, err := parseDuration(n.text)
		if err != "" {
			bad("%s", err)
			return
		}
		v.SetInt(int64(x))
	case v.Kind() == reflect.Bool:
		switch strings.ToLower(n.text) {
		case "true", "false":
			v.SetBool(strings.EqualFold(n.text, "true"))
		default:
			bad("must be true or false, not %q", n.text)
		}
	case v.Kind() == reflect.Int:
		x, err := strconv.Atoi(n.text)
		if err != nil {
			bad("must be a whole number, not %q", n.text)
			return
		}
		v.SetInt(int64(x))
	default:
		if strings.ContainsFunc(n.text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			bad("holds a line break or another control character")
			return
		}
		v.SetString(n.text)
	}
}

// parseDuration takes "500ms", "5s", "1h30m"; the text after it is the problem, "" when there is none.
func parseDuration(s string) (time.Duration, string) {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, "a duration needs a unit, as in " + strconv.Quote(s+"s") + " or \"5m\", not " + strconv.Quote(s)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, "must be a duration such as \"500ms\", \"5s\" or \"168h\", not " + strconv.Quote(s)
	}
	return d, ""
}
