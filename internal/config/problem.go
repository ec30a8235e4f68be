package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Origin says where a value came from. The zero value is "default".
type Origin struct {
	File string // set for a value of the file, with its place
	Line int    // from 1
	Col  int    // from 1
	Env  string // the variable's name
	Flag string // the flag with its dashes
}

// String is "default", "FILE:LINE:COL", "env NAME" or "flag --NAME".
func (o Origin) String() string {
	switch {
	case o.Flag != "":
		return "flag " + o.Flag
	case o.Env != "":
		return "env " + o.Env
	case o.File != "" && o.Line > 0:
		return fmt.Sprintf("%s:%d:%d", o.File, o.Line, o.Col)
	case o.File != "":
		return o.File
	}
	return "default"
}

// Problem is one thing that is wrong, with the path of the field it is about.
type Problem struct {
	Path    string // "engine.workers", "projects[0].match"; empty when it is about the whole file
	Message string // holds no secret
	Origin  Origin
}

// String is "ORIGIN: PATH: MESSAGE", without the parts that aren't known.
func (p Problem) String() string {
	var b strings.Builder
	if p.Origin != (Origin{}) {
		b.WriteString(p.Origin.String() + ": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	return b.String() + p.Message
}

// Error is all that is wrong with a configuration, in the order of the file.
type Error struct {
	Problems []Problem
}

// Error says one problem per line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// problems collects; the second complaint about one path is dropped, because it
// follows from the first.
type problems struct {
	list []Problem
	at   map[string]Origin
}

func (p *problems) add(o Origin, path, format string, args ...any) {
	if path != "" && slices.ContainsFunc(p.list, func(q Problem) bool { return q.Path == path }) {
		return
	}
	p.list = append(p.list, Problem{Path: path, Message: fmt.Sprintf(format, args...), Origin: o})
}

// field adds a problem at the place that the value, or what holds it, came from.
func (p *problems) field(path, format string, args ...any) {
	p.add(originOf(p.at, path), path, format, args...)
}

func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	slices.SortStableFunc(p.list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Origin.Flag, b.Origin.Flag), cmp.Compare(a.Origin.Env, b.Origin.Env),
			cmp.Compare(a.Origin.Line, b.Origin.Line), cmp.Compare(a.Origin.Col, b.Origin.Col))
	})
	return &Error{Problems: p.list}
}

// originOf finds where a path came from: its own origin or that of the nearest
// part that holds it.
func originOf(at map[string]Origin, path string) Origin {
	for path != "" {
		if o, ok := at[path]; ok {
			return o
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return Origin{}
}
