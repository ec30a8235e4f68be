package config

import (
	"reflect"
	"strconv"
	"strings"
	"time"
)

var (
	durationType = reflect.TypeFor[time.Duration]()
	secretType   = reflect.TypeFor[Secret]()
)

// field is one key of a struct of the schema.
type field struct {
	name  string
	index int
	live  bool
	typ   reflect.Type
	// For maps: how keys are written ("lower", "upper"), and what they are.
	keyCase, keyName string
}

// fieldsOf lists the keys of a struct, in the order of the struct.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		tag, ok := f.Tag.Lookup("cfg")
		if !ok {
			continue
		}
		name, opt, _ := strings.Cut(tag, ",")
		out = append(out, field{
			name: name, index: i, live: opt == "live", typ: f.Type,
			keyCase: f.Tag.Get("keys"), keyName: f.Tag.Get("in"),
		})
	}
	return out
}

func fieldNamed(t reflect.Type, name string) (field, bool) {
	for _, f := range fieldsOf(t) {
		if strings.EqualFold(f.name, name) {
			return f, true
		}
	}
	return field{}, false
}

// isLeaf says whether a type is set by one scalar, or by a list of scalars.
func isLeaf(t reflect.Type) bool {
	switch {
	case t == secretType || t == durationType:
		return true
	case t.Kind() == reflect.Slice:
		return isLeaf(t.Elem())
	}
	return t.Kind() != reflect.Struct && t.Kind() != reflect.Map
}

// typeName is a type in the words of the documentation.
func typeName(t reflect.Type) string {
	switch {
	case t == secretType:
		return "secret"
	case t == durationType:
		return "duration"
	case t.Kind() == reflect.Slice:
		return "list of " + typeName(t.Elem())
	case t.Kind() == reflect.Struct:
		return "section"
	case t.Kind() == reflect.Map:
		return "map of " + typeName(t.Elem())
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "number"
	}
	return "text"
}

// Key is one key of the schema. In its path "<name>" stands for a key that the
// user makes up and "[]" for an element of a list.
type Key struct {
	Path string `json:"path"`
	Type string `json:"type"`
	Live bool   `json:"live"`
}

// Keys lists every key that holds a value, in the order of the documentation.
func Keys() []Key {
	var out []Key
	var walk func(t reflect.Type, path, in string, live bool)
	walk = func(t reflect.Type, path, in string, live bool) {
		switch {
		case isLeaf(t):
			out = append(out, Key{Path: path, Type: typeName(t), Live: live})
		case t.Kind() == reflect.Slice:
			walk(t.Elem(), path+"[]", "", live)
		case t.Kind() == reflect.Map:
			walk(t.Elem(), path+".<"+in+">", "", live)
		default:
			for _, f := range fieldsOf(t) {
				walk(f.typ, join(path, f.name), f.keyName, live || f.live)
			}
		}
	}
	walk(reflect.TypeFor[Config](), "", "", false)
	return out
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// nearest suggests what an unknown key may have meant: a key beside it, else the
// full path of a key elsewhere whose name is the same or nearly so. "" when
// nothing is near.
func nearest(t reflect.Type, name string) string {
	best, least := "", max(1, len(name)/3)+1
	name = strings.ToLower(name)
	try := func(key, answer string) {
		if d := distance(name, key); d < least {
			best, least = answer, d
		}
	}
	for _, f := range fieldsOf(t) {
		try(f.name, f.name)
	}
	if best != "" {
		return best
	}
	for _, k := range Keys() {
		try(k.Path[strings.LastIndexByte(k.Path, '.')+1:], k.Path)
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with their
// neighbour to get from a to b.
func distance(a, b string) int {
	prev2, prev, cur := []int(nil), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			same := 1
			if a[i-1] == b[j-1] {
				same = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+same)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, make([]int, len(b)+1)
	}
	return prev[len(b)]
}
