package config

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPageHoldsEveryKey compares docs/configuration.md with the schema: each
// key has a row with its type, default and whether it is live, and each row has
// a key.
func TestPageHoldsEveryKey(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)

	// The defaults of a configuration with one new element in each list and map.
	c := mustLoad(t, Options{})
	f := Forge{Reviewers: make([]Reviewer, 1)}
	f.setDefaults()
	c.Forges = map[string]Forge{"<name>": f}
	c.Projects = make([]Project, 1)
	c.Projects[0].setDefaults()
	c.Approval.Rules = make([]Rule, 1)
	c.Approval.Rules[0].setDefaults()
	defaults := map[string]string{}
	for _, s := range Show(c) {
		defaults[strings.ReplaceAll(s.Key, "[0]", "[]")] = s.Value
	}

	rows := map[string]bool{}
	for _, k := range Keys() {
		def, live := "–", "no"
		if v := defaults[k.Path]; v != "" && v != "[]" {
			def = "`" + v + "`"
		}
		if k.Live {
			live = "yes"
		}
		row := fmt.Sprintf("| `%s` | %s | %s | %s | ", k.Path, k.Type, def, live)
		rows[k.Path] = true
		if !strings.Contains(page, "\n"+row) {
			t.Errorf("docs/configuration.md has no row\n%s", row)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(page, -1) {
		if !rows[m[1]] {
			t.Errorf("docs/configuration.md has a row for %s, which is no key", m[1])
		}
	}
}
