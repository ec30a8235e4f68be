package change_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/change"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/store"
)

// refusedFor answers the field and the reason that a submit was refused for.
func refusedFor(err error) (field, why string) {
	if bad, ok := errors.AsType[*change.Invalid](err); ok && len(bad.Fields) == 1 {
		return bad.Fields[0].Field, bad.Fields[0].Detail
	}
	return "", ""
}

// What passes the door, the forge takes: the longest description still does
// with what mergeflow writes below it, and a byte more is refused at once.
func TestTheLongestDescriptionReachesTheForge(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{RequiredChecks: []string{"ci"}})
	in := r.submission("a.yaml")
	in.Order = change.MRFirst
	in.Title = strings.Repeat("𝒯", 255)
	in.Description = strings.Repeat("ä", change.MaxDescription/2)
	s, err := r.svc.Submit(t.Context(), in, nil, "sue")
	if err != nil {
		t.Fatal(err)
	}
	r.until(s.OperationID, change.CreateChecking)
	for _, over := range []string{in.Description + "x", strings.Repeat("x", change.MaxDescription+1)} {
		in.Target, in.Description = "b.yaml", over
		for name, ask := range map[string]func() error{
			"submit": func() error { _, err := r.svc.Submit(t.Context(), in, nil, "sue"); return err },
			"plan":   func() error { _, err := r.svc.Plan(t.Context(), in, "sue"); return err },
		} {
			err := ask()
			if field, why := refusedFor(err); field != "description" || !strings.Contains(why, "bytes") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Git keeps no branch below the name of another one.
func TestABranchInTheWayIsToldAtTheDoor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		there, template, base, field string
	}{
		"the default name":     {"mergeflow", "", "", "project"},
		"the project's name":   {"bot/app", "bot/{project}/{subject}/{operation}", "", "project"},
		"the first part of it": {"bot", "bot/{project}/{subject}/{operation}", "", "project"},
		"the base itself":      {"mergeflow", "", "mergeflow", "base"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, forge.Repository{})
			r.project.Branch = c.template
			if _, err := r.svc.Plan(t.Context(), r.submission("a.yaml"), "sue"); err != nil {
				t.Fatal(err)
			}
			r.git("push", "-q", "origin", "main:"+c.there)
			in := r.submission("a.yaml")
			in.Base = c.base
			_, err := r.svc.Submit(t.Context(), in, nil, "sue")
			if field, why := refusedFor(err); field != c.field || !strings.Contains(why, "branch "+c.there+" ") || !strings.Contains(why, "projects[].mr.branch") {
				t.Errorf("submit: %v", err)
			}
			if _, err := r.svc.Plan(t.Context(), in, "sue"); err == nil {
				t.Error("planned")
			}
		})
	}
}

// A template can make a name that git refuses, out of what a change is about.
func TestABranchThatIsNoneIsToldAtTheDoor(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	for template, target := range map[string]string{
		"bot/{target}/{operation}":                       "…",                     // nothing is left of it
		"bot/{operation}.{target}":                       "lock",                  // git's own ending
		"{operation}-x/{target}{target}{target}{target}": strings.Repeat("x", 60), // too long a part
	} {
		r.project.Branch = template
		in := r.submission("a.yaml")
		in.Target = target
		_, err := r.svc.Submit(t.Context(), in, nil, "sue")
		if field, why := refusedFor(err); field != "project" || !strings.Contains(why, "projects[].mr.branch") {
			t.Errorf("%s: %v", template, err)
		}
	}
}

func TestAFileIsNoFolder(t *testing.T) {
	t.Parallel()
	r := newRig(t, forge.Repository{})
	for _, first := range []store.Input{{Path: "other.yaml", Action: "upsert", Content: "1"}, {Path: "base.yaml", Action: "delete"}} {
		in := r.submission("a.yaml")
		in.Files = []store.Input{first, {Path: "base.yaml/deep/er", Action: "upsert", Content: "1"}}
		_, err := r.svc.Submit(t.Context(), in, nil, "sue")
		if field, why := refusedFor(err); field != "files[1].path" || !strings.Contains(why, "lies below a file in main") {
			t.Errorf("%v", err)
		}
	}
}
