package config

import (
	"errors"
	"testing"
)

// FuzzLoad holds Load to its promise for any file: a valid configuration or an
// *Error, and never a panic, because a running server reads it again.
func FuzzLoad(f *testing.F) {
	f.Add(Default())
	f.Add("a: &a [*a]\n<<: {listen: x}")
	f.Add("forges: {main: {reviewers: [{name: x}], approve: {mode: !!str client}}}\n? [a]\n: b")
	f.Add("listen: |\n  127.0.0.1:1\n---\n...\n%YAML 1.2\n")
	f.Add("- {")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := load(Options{File: "f.yaml", States: []string{"INDEXING"}}, []byte(text), nil)
		var e *Error
		switch {
		case err == nil:
			_ = Show(c)
		case !errors.As(err, &e) || len(e.Problems) == 0:
			t.Errorf("answered %v", err)
		}
	})
}
