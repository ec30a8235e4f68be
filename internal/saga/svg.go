package saga

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// Sizes of the drawing, in SVG user units.
const (
	boxW, boxH   = 210, 46
	gapX, gapY   = 110, 34
	marginX      = 24
	marginY      = 24
	labelMax     = 34
	fontFamilies = "ui-sans-serif, system-ui, sans-serif"
)

type point struct{ x, y int }

// SVG draws a flow: states in columns by their distance from the entry, boxes
// coloured by kind, one curved arrow for each pair of states.
func SVG(f *Flow) string {
	columns := layers(f)
	at := map[State]point{}
	width, height := 0, 0
	for x, col := range columns {
		for y, s := range col {
			at[s] = point{marginX + x*(boxW+gapX), marginY + y*(boxH+gapY)}
			width, height = max(width, at[s].x+boxW+marginX), max(height, at[s].y+boxH+marginY)
		}
	}
	height += gapY // room for the arrows that lead back
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="flow %s" font-family="%s">`+"\n",
		width, height, width, height, html.EscapeString(f.Name), fontFamilies)
	b.WriteString(`<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#64748b"/></marker></defs>` + "\n")
	for _, a := range Arrows(f) {
		drawArrow(&b, at[a.From], at[a.To], a)
	}
	for i := range f.States {
		s := &f.States[i]
		p := at[s.State]
		fmt.Fprintf(&b, `<g><title>%s</title><rect x="%d" y="%d" width="%d" height="%d" rx="8" style="%s"/>`,
			html.EscapeString(fmt.Sprintf("%s (%d, %s): %s", s.State, s.Code, s.Kind, s.Status)), p.x, p.y, boxW, boxH, strings.ReplaceAll(mermaidStyle[s.Kind], ",", ";"))
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" font-size="13" font-weight="600" fill="#0f172a">%s</text>`, p.x+boxW/2, p.y+20, html.EscapeString(string(s.State)))
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" font-size="11" fill="#334155">%d · %s</text></g>`+"\n", p.x+boxW/2, p.y+36, s.Code, html.EscapeString(string(s.Status)))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func drawArrow(b *strings.Builder, from, to point, a Arrow) {
	x1, y1, x2, y2 := from.x+boxW, from.y+boxH/2, to.x, to.y+boxH/2
	var path string
	var lx, ly int
	switch {
	case from == to:
		path = fmt.Sprintf("M%d %dc30 -30 30 30 0 12", x1, y1-6)
		lx, ly = x1+12, y1-14
	case to.x > from.x:
		mid := (x1 + x2) / 2
		path = fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x1, y1, mid, y1, mid, y2, x2, y2)
		lx, ly = mid, (y1+y2)/2-4
	case to.x == from.x:
		bow := x1 + gapX/2
		path = fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x1, y1, bow, y1, bow, y2, to.x+boxW, y2)
		lx, ly = x1+gapX/3, (y1+y2)/2
	default: // back, below the boxes
		y1, y2 = from.y+boxH, to.y+boxH
		x1, x2 = from.x+boxW/2, to.x+boxW/2
		low := max(y1, y2) + gapY
		path = fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x1, y1, x1, low, x2, low, x2, y2)
		lx, ly = (x1+x2)/2, low-8
	}
	label := a.Label
	if len([]rune(label)) > labelMax {
		label = string([]rune(label)[:labelMax-1]) + "…"
	}
	fmt.Fprintf(b, `<g><title>%s</title><path d="%s" fill="none" stroke="#64748b" stroke-width="1.3" marker-end="url(#arrow)"/>`,
		html.EscapeString(fmt.Sprintf("%s → %s: %s", a.From, a.To, a.Label)), path)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle" font-size="10" fill="#475569" stroke="#ffffff" stroke-width="3" paint-order="stroke">%s</text></g>`+"\n", lx, ly, html.EscapeString(label))
}

// layers puts each state into a column: one right of the nearest state that
// leads to it; failed states one column right of all that, final ones last.
func layers(f *Flow) [][]State {
	depth := map[State]int{}
	queue := entries(f)
	for _, s := range queue {
		depth[s] = 0
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		spec, ok := f.Spec(s)
		if !ok {
			continue
		}
		for _, n := range successors(f, spec, false) {
			if _, seen := depth[n]; !seen {
				depth[n] = depth[s] + 1
				queue = append(queue, n)
			}
		}
	}
	var out [][]State
	deepest := 0
	for i := range f.States {
		if s := &f.States[i]; s.Kind != Failed && s.Kind != Final {
			deepest = max(deepest, depth[s.State])
		}
	}
	for i := range f.States {
		s := &f.States[i]
		d := depth[s.State]
		switch s.Kind {
		case Failed:
			d = deepest + 1
		case Final:
			d = deepest + 2
		}
		for len(out) <= d {
			out = append(out, nil)
		}
		out[d] = append(out[d], s.State)
	}
	return slices.DeleteFunc(out, func(c []State) bool { return len(c) == 0 })
}
