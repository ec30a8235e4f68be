package saga_test

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/saga"
)

func TestDiagramsShowEveryStateAndMove(t *testing.T) {
	t.Parallel()
	for _, f := range flows {
		table, mermaid, svg := saga.Table(f), saga.Mermaid(f), saga.SVG(f)
		for _, s := range f.States {
			for name, text := range map[string]string{"table": table, "mermaid": mermaid, "svg": svg} {
				if !strings.Contains(text, string(s.State)) {
					t.Errorf("%s: %s does not show %s", f.Name, name, s.State)
				}
			}
		}
		for _, a := range saga.Arrows(f) {
			if !strings.Contains(mermaid, string(a.From)+" --> "+string(a.To)+": "+a.Label) {
				t.Errorf("%s: mermaid lacks %+v", f.Name, a)
			}
		}
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: the SVG is no XML: %v", f.Name, err)
			}
		}
	}
}

func TestTypeOfRoundTrip(t *testing.T) {
	t.Parallel()
	for _, f := range flows {
		for _, s := range f.States {
			if s.Command == "" {
				continue
			}
			flow, v, state, cmd, ok := saga.ParseType(saga.TypeOf(f.Name, f.Version, s.State, s.Command))
			if !ok || flow != f.Name || v != f.Version || state != s.State || cmd != s.Command {
				t.Errorf("%s: %s %d %s %s %v", s.State, flow, v, state, cmd, ok)
			}
		}
	}
	for _, bad := range []string{"", "a/b/c", "a/x/b/c", "a/1/b/c/d"} {
		if _, _, _, _, ok := saga.ParseType(bad); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}
