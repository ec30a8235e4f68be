package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"github.com/goccy/go-yaml"
	"golang.org/x/term"
)

// The values of -o.
const (
	formatText = "text"
	formatJSON = "json"
	formatYAML = "yaml"
)

// println writes one line to stdout.
func (s *session) println(line string) { fmt.Fprintln(s.stdout, line) }

func (s *session) errorln(line string) { fmt.Fprintln(s.stderr, line) }

// print writes an API answer in the format that was asked for; text makes the
// one for people.
func (s *session) print(body []byte, text func()) error {
	switch s.format {
	case formatJSON:
		_, err := s.stdout.Write(append(bytes.TrimRight(body, "\n"), '\n'))
		return err
	case formatYAML:
		b, err := yaml.JSONToYAML(body)
		if err != nil {
			return failed("bad-answer", err)
		}
		_, err = s.stdout.Write(b)
		return err
	}
	text()
	return nil
}

// table writes rows below a heading: drawn on a terminal, aligned by spaces
// otherwise, so that awk and cut find columns.
func (s *session) table(header []string, rows [][]string) {
	for _, r := range rows {
		for i := range r {
			r[i] = plain(r[i])
		}
	}
	if s.coloured() {
		t := table.New().Headers(header...).Rows(rows...).
			Border(lipgloss.RoundedBorder()).BorderStyle(lipgloss.NewStyle().Faint(true)).BorderRow(false).
			StyleFunc(func(row, _ int) lipgloss.Style {
				st := lipgloss.NewStyle().Padding(0, 1)
				if row == table.HeaderRow {
					return st.Bold(true)
				}
				return st
			})
		s.println(t.String())
		return
	}
	w := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for _, r := range rows {
		for i := range r {
			r[i] = or(r[i], "-")
		}
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	_ = w.Flush()
}

// fact is a named value of a story.
type fact struct{ name, value string }

// story writes named facts, one a line, the names aligned; empty facts are left out.
func (s *session) story(title string, facts ...fact) {
	if s.coloured() {
		title = lipgloss.NewStyle().Bold(true).Render(plain(title))
	} else {
		title = plain(title)
	}
	s.println(title)
	w := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', 0)
	for _, f := range facts {
		if f.value != "" {
			fmt.Fprintf(w, "  %s\t%s\n", f.name, plain(f.value))
		}
	}
	_ = w.Flush()
}

// coloured says whether stdout is a terminal that wants to be treated as one.
func (s *session) coloured() bool {
	return isTerminal(s.stdout) && s.variable("NO_COLOR", "") == "" && s.variable("TERM", "") != "dumb"
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// plain takes control characters out of a text from elsewhere: a title must not
// be able to drive a terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, text)
}

// clock is a time for people: local, to the second.
func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func short(sha string) string {
	if len(sha) > 10 {
		return sha[:10]
	}
	return sha
}
