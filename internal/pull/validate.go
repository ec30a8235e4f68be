package pull

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/mergeflow/mergeflow/internal/forge"
)

// The limits of a pull request's texts.
const (
	maxTitle    = 255 // characters, GitLab's limit
	maxWatchers = 100
	maxName     = 100
)

func validate(in forge.NewMergeRequest) error {
	for _, f := range []struct {
		name, value string
		required    bool
		limit       int
	}{
		{"repo", in.Project, true, 200},
		{"source", in.Source, true, 250},
		{"target", in.Target, true, 250},
		{"title", in.Title, true, maxTitle},
		{"description", in.Description, false, len(in.Description)}, // in bytes, below
	} {
		switch {
		case f.required && strings.TrimSpace(f.value) == "":
			return &Invalid{Field: f.name, Detail: "is required"}
		case utf8.RuneCountInString(f.value) > f.limit:
			return &Invalid{Field: f.name, Detail: fmt.Sprintf("has more than %d characters", f.limit)}
		}
		if err := Text(f.name, f.value); err != nil {
			return err
		}
	}
	if len(in.Description) > forge.MaxDescription {
		return &Invalid{Field: "description", Detail: fmt.Sprintf("has more than %d bytes", forge.MaxDescription)}
	}
	if strings.ContainsAny(in.Title, "\r\n") {
		return &Invalid{Field: "title", Detail: "must be one line"}
	}
	return Watchers(in.Watchers)
}

// Watchers checks a list of watchers' names.
func Watchers(names []string) error {
	if len(names) > maxWatchers {
		return &Invalid{Field: "watchers", Detail: fmt.Sprintf("more than %d", maxWatchers)}
	}
	for i, w := range names {
		field := fmt.Sprintf("watchers[%d]", i)
		if strings.TrimSpace(w) == "" || utf8.RuneCountInString(w) > maxName {
			return &Invalid{Field: field, Detail: fmt.Sprintf("must have 1 to %d characters", maxName)}
		}
		if err := Text(field, w); err != nil {
			return err
		}
	}
	return nil
}

// Text refuses what a database can't hold in a text: NUL and broken UTF-8.
func Text(field, s string) error {
	switch {
	case strings.ContainsRune(s, 0):
		return &Invalid{Field: field, Detail: "must not hold a NUL character"}
	case !utf8.ValidString(s):
		return &Invalid{Field: field, Detail: "is not valid UTF-8"}
	}
	return nil
}
