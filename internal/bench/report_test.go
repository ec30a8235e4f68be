package bench

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// line is one figure of the results.
type line struct {
	driver, what, figure string
	target               string
	verdict              string // met, missed, or empty where nothing was promised
}

// section is one table of the results.
type section struct {
	title string
	lines []line
	text  string // below the table
}

// results gathers what the benchmarks measured.
type results struct {
	mu       sync.Mutex
	sections []*section
}

var measurements results

// bound is what a figure must keep to; the zero value is no promise.
type bound struct {
	limit  float64
	least  bool // the figure may not be lower; otherwise not higher
	stands bool
}

func atLeast(v float64) bound { return bound{v, true, true} }
func atMost(v float64) bound  { return bound{v, false, true} }

func (b bound) met(v float64) bool {
	if b.least {
		return v >= b.limit
	}
	return v <= b.limit
}

// unit says how a figure is written.
type unit func(float64) string

func times(v float64) string     { return fmt.Sprintf("%.2f ×", v) }
func percent(v float64) string   { return fmt.Sprintf("%.2f %%", 100*v) }
func count(v float64) string     { return fmt.Sprintf("%.2f", v) }
func whole(v float64) string     { return fmt.Sprintf("%.0f", v) }
func bytesLong(v float64) string { return fmt.Sprintf("%.0f B", v) }
func perSecond(v float64) string { return fmt.Sprintf("%.1f/s", v) }

// at finds or makes a table; they come out in the order of their first use.
func (r *results) at(title string) *section {
	for _, s := range r.sections {
		if s.title == title {
			return s
		}
	}
	s := &section{title: title}
	r.sections = append(r.sections, s)
	return s
}

func (r *results) add(title, driver, what string, v float64, u unit, b bound) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := line{driver: driver, what: what, figure: u(v)}
	if b.stands {
		l.target, l.verdict = "at most "+u(b.limit), "missed"
		if b.least {
			l.target = "at least " + u(b.limit)
		}
		if b.met(v) {
			l.verdict = "met"
		}
	}
	s := r.at(title)
	s.lines = append(s.lines, l)
}

func (r *results) explain(title, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at(title).text = text
}

// missed names the promises that were not kept.
func (r *results) missed() (out []string) {
	for _, s := range r.sections {
		for _, l := range s.lines {
			if l.verdict == "missed" {
				out = append(out, fmt.Sprintf("%s, %s, %s: %s, promised is %s", s.title, l.driver, l.what, l.figure, l.target))
			}
		}
	}
	return out
}

// markdown is the generated part of docs/performance.md.
func (r *results) markdown() string {
	var b strings.Builder
	missed := r.missed()
	switch len(missed) {
	case 0:
		b.WriteString("All targets were met in this run.\n")
	default:
		b.WriteString("Targets that this run **missed**:\n\n")
		for _, m := range missed {
			b.WriteString("- " + m + "\n")
		}
	}
	for _, s := range r.sections {
		fmt.Fprintf(&b, "\n### %s\n\n| database | figure | measured | target | |\n|---|---|---|---|---|\n", s.title)
		for _, l := range s.lines {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", l.driver, l.what, l.figure, l.target, l.verdict)
		}
		if s.text != "" {
			b.WriteString("\n" + s.text + "\n")
		}
	}
	return b.String()
}

// print writes the same for a terminal.
func (r *results) print(w io.Writer) {
	for _, s := range r.sections {
		fmt.Fprintf(w, "\n%s\n", s.title)
		for _, l := range s.lines {
			fmt.Fprintf(w, "  %-10s %-66s %12s   %-20s %s\n", l.driver, l.what, l.figure, l.target, l.verdict)
		}
	}
}

const (
	pageBegin = "<!-- bench: begin, written by `make bench` -->"
	pageEnd   = "<!-- bench: end -->"
)

// fill replaces what stands between a page's markers.
func fill(page, text string) (string, error) {
	before, rest, ok := strings.Cut(page, pageBegin)
	_, after, ok2 := strings.Cut(rest, pageEnd)
	if !ok || !ok2 {
		return "", fmt.Errorf("the page lacks the line %q or %q", pageBegin, pageEnd)
	}
	return before + pageBegin + "\n\n" + text + "\n" + pageEnd + after, nil
}

func writePage(name, text string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	page, err := fill(string(b), text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, []byte(page), 0o644)
}

// median of some values; 0 of none.
func median[T float64 | time.Duration](v []T) T { return quantile(v, 0.5) }

// quantile is the smallest value that at least that share of all keeps to.
func quantile[T float64 | time.Duration](v []T, q float64) T {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[min(len(v)-1, max(0, int(float64(len(v))*q+0.999999)-1))]
}

// thousands writes 1000000 as 1,000,000.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
