package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Setting is one value as `config show` prints it.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // "[secret]" for a secret that is set
	Origin string `json:"origin"`
	Live   bool   `json:"live"`
}

// Show lists every value with where it came from, in the order of the
// documentation. It holds no secret; the database's address is shown without
// its password.
func Show(c *Config) []Setting {
	var out []Setting
	for _, l := range leaves(c) {
		s := Setting{Key: l.path, Value: shown(l.value), Origin: c.origins[l.path].String(), Live: l.live}
		if l.path == "database" {
			s.Value = c.DatabaseShown()
		}
		out = append(out, s)
	}
	return out
}

// leaf is one value of a configuration: a scalar, a list of scalars, or an
// empty list.
type leaf struct {
	path  string
	value reflect.Value
	live  bool
}

func leaves(c *Config) []leaf {
	var out []leaf
	var walk func(v reflect.Value, path string, live bool)
	walk = func(v reflect.Value, path string, live bool) {
		t := v.Type()
		switch {
		case isLeaf(t), t.Kind() == reflect.Slice && v.Len() == 0:
			out = append(out, leaf{path, v, live})
		case t.Kind() == reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i), index(path, i), live)
			}
		case t.Kind() == reflect.Map:
			for _, k := range sortedKeys(mapOf(v)) {
				walk(v.MapIndex(reflect.ValueOf(k)), join(path, strings.ToLower(k)), live)
			}
		default:
			for _, f := range fieldsOf(t) {
				walk(v.Field(f.index), join(path, f.name), live || f.live)
			}
		}
	}
	walk(reflect.ValueOf(c).Elem(), "", false)
	return out
}

func mapOf(v reflect.Value) map[string]struct{} {
	out := make(map[string]struct{}, v.Len())
	for _, k := range v.MapKeys() {
		out[k.String()] = struct{}{}
	}
	return out
}

func shown(v reflect.Value) string {
	if v.Kind() == reflect.Slice {
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = shown(v.Index(i))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	if d, ok := v.Interface().(time.Duration); ok {
		return short(d)
	}
	return fmt.Sprint(v.Interface())
}
