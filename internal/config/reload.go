package config

import (
	"reflect"
	"slices"
	"strings"
)

// RestartError names keys whose change in the file waits for a restart.
type RestartError struct {
	Keys []string
}

// Error is "needs a restart: KEY, KEY".
func (e *RestartError) Error() string { return "needs a restart: " + strings.Join(e.Keys, ", ") }

// reload answers running with the live values of next. changed says whether any
// differs; restart names the other keys that do.
func reload(running, next *Config) (merged *Config, changed bool, restart []string) {
	merged = mergeLive(reflect.ValueOf(*running), reflect.ValueOf(*next), false).Addr().Interface().(*Config)
	merged.origins = map[string]Origin{}

	was, now := map[string]leaf{}, leaves(next)
	for _, l := range leaves(running) {
		was[l.path] = l
	}
	for _, l := range now {
		old, had := was[l.path]
		delete(was, l.path)
		if had && same(old.value, l.value) {
			continue
		}
		if l.live && has(merged, l.path) {
			changed = true
		} else {
			restart = append(restart, restartKey(l.path, running, next))
		}
	}
	for _, l := range leaves(running) {
		if _, gone := was[l.path]; !gone {
			continue
		}
		if l.live && !has(merged, l.path) {
			changed = true
		} else {
			restart = append(restart, restartKey(l.path, running, next))
		}
	}
	for _, l := range leaves(merged) {
		from := running
		if l.live {
			from = next
		}
		if o, ok := from.origins[l.path]; ok {
			merged.origins[l.path] = o
		}
	}
	slices.Sort(restart)
	return merged, changed, slices.Compact(restart)
}

// restartKey names a change as a person would: a list as a whole, and a forge
// that came or went as a whole.
func restartKey(path string, running, next *Config) string {
	path, _, _ = strings.Cut(path, "[")
	if rest, ok := strings.CutPrefix(path, "forges."); ok {
		name, _, _ := strings.Cut(rest, ".")
		_, was := running.Forges[name]
		if _, is := next.Forges[name]; was != is {
			return "forges." + name
		}
	}
	return path
}

func has(c *Config, path string) bool {
	for _, l := range leaves(c) {
		if l.path == path {
			return true
		}
	}
	return false
}

// mergeLive copies a running value with the live parts of next. The answer is
// addressable.
func mergeLive(running, next reflect.Value, live bool) reflect.Value {
	out := reflect.New(running.Type()).Elem()
	out.Set(running)
	switch {
	case live:
		out.Set(next)
	case running.Kind() == reflect.Struct && running.Type() != secretType:
		for _, f := range fieldsOf(running.Type()) {
			out.Field(f.index).Set(mergeLive(running.Field(f.index), next.Field(f.index), f.live))
		}
	case running.Kind() == reflect.Map:
		out.Set(reflect.MakeMap(running.Type()))
		for _, k := range running.MapKeys() {
			v := running.MapIndex(k)
			if n := next.MapIndex(k); n.IsValid() {
				v = mergeLive(v, n, false)
			}
			out.SetMapIndex(k, v)
		}
	}
	return out
}

// same compares two leaves; secrets by how they were configured.
func same(a, b reflect.Value) bool {
	if a.Type() != b.Type() {
		return false
	}
	if a.Kind() == reflect.Slice {
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
	if s, ok := a.Interface().(Secret); ok {
		return s.equal(b.Interface().(Secret))
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}
