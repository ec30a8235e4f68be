package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/search/embedded"
)

func TestSearch(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{
		"b.go":     "package b\n\nfunc Straße() {}\r\nx := \"say \"\"hi\"\" * OR (NEAR) NOT ^a:b\"\n",
		"a.go":     "package a\nvar limit = 200 // 200 is the LIMIT\n",
		"dir/z.go": "Привет, мир\n273 \u212A is cold\n",
	})
	r.commit("d1", "", map[string]string{"a.go": "another limit\n"})
	x := open(t, embedded.Options{Source: r})
	index(t, x, "platform/config", "c1")
	index(t, x, "app", "d1")

	a1 := "app@d1 a.go:1 another limit"
	p := "platform/config@c1 "
	quoted := p + `b.go:4 x := "say ""hi"" * OR (NEAR) NOT ^a:b"`
	for _, tc := range []struct {
		name string
		q    search.Query
		want []string
	}{
		{"any case", search.Query{Text: "LiMit"}, []string{a1, p + "a.go:2 var limit = 200 // 200 is the LIMIT"}},
		{"one repository", search.Query{Text: "limit", Repo: "app"}, []string{a1}},
		{"no such repository", search.Query{Text: "limit", Repo: "nope"}, nil},
		{"limit", search.Query{Text: "limit", Limit: 1}, []string{a1}},
		{"ordered by path and line", search.Query{Text: "package"}, []string{p + "a.go:1 package a", p + "b.go:1 package b"}},
		{"across words", search.Query{Text: "limit = 200"}, []string{p + "a.go:2 var limit = 200 // 200 is the LIMIT"}},
		{"carriage return is no text", search.Query{Text: "STRASSE"}, nil},
		{"sharp s", search.Query{Text: "straẞe()"}, []string{p + "b.go:3 func Straße() {}"}},
		{"cyrillic", search.Query{Text: "ПРИВЕТ"}, []string{p + "dir/z.go:1 Привет, мир"}},
		{"kelvin", search.Query{Text: "273 k"}, []string{p + "dir/z.go:2 273 \u212A is cold"}},
		{"two characters", search.Query{Text: "{}"}, []string{p + "b.go:3 func Straße() {}"}},
		{"one character", search.Query{Text: "ы"}, nil},
		{"quotes", search.Query{Text: `"say ""`}, []string{quoted}},
		{"operators", search.Query{Text: `* or (near) not ^a:b"`}, []string{quoted}},
		{"an operator alone", search.Query{Text: "NOT"}, []string{a1, quoted}},
		{"unbalanced", search.Query{Text: `"""(((`}, nil},
		{"blank", search.Query{Text: "   "}, nil},
		{"line break", search.Query{Text: "package a\nvar"}, nil},
		{"nul", search.Query{Text: "limit\x00"}, nil},
		{"broken utf-8", search.Query{Text: "limit\xff"}, nil},
		{"trigrams apart", search.Query{Text: "limit limit"}, nil},
		{"long", search.Query{Text: strings.Repeat("package ", 100)}, nil},
	} {
		if diff := cmp.Diff(tc.want, find(t, x, tc.q)); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
	if _, err := x.Search(t.Context(), search.Query{Text: strings.Repeat("x", 1001)}); err == nil {
		t.Error("took an endless query")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Search(ctx, search.Query{Text: "limit"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAShortQueryScansNoMoreThanItsBound(t *testing.T) {
	t.Parallel()
	r := newRepos()
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("f%02d", i)] = fmt.Sprintf("%02d%s", i, strings.Repeat(".", 98)) // 100 bytes
	}
	r.commit("c1", "", files)
	x := open(t, embedded.Options{Source: r, ScanLimit: 500})
	index(t, x, "app", "c1")
	if got := find(t, x, search.Query{Text: ".."}); len(got) != 5 {
		t.Errorf("found %d lines in 500 bytes", len(got))
	}
	if got := find(t, x, search.Query{Text: "..."}); len(got) != 20 {
		t.Errorf("three characters found %d lines", len(got))
	}
}

func TestLongLinesAreCutAroundTheMatch(t *testing.T) {
	t.Parallel()
	r := newRepos()
	r.commit("c1", "", map[string]string{"min.js": strings.Repeat("é", 5000) + "NEEDLE" + strings.Repeat("ü", 5000) + "\nneedle"})
	x := open(t, embedded.Options{Source: r})
	index(t, x, "app", "c1")
	hits, err := x.Search(t.Context(), search.Query{Text: "needle"})
	if err != nil || len(hits) != 2 {
		t.Fatalf("%v %v", hits, err)
	}
	got := hits[0].Text
	if n := utf8.RuneCountInString(got); n != 502 || !strings.Contains(got, "éNEEDLEü") || !strings.HasPrefix(got, "…é") || !strings.HasSuffix(got, "ü…") {
		t.Errorf("%d characters: %q", n, got)
	}
	if hits[1].Line != 2 {
		t.Errorf("line %d", hits[1].Line)
	}
}

// Whatever the text: a part of a line that was indexed is found at its line.
func TestEveryPartOfALineIsFound(t *testing.T) {
	t.Parallel()
	r := newRepos()
	x := open(t, embedded.Options{Source: r})
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		line := rapid.StringMatching(`[ -~äÄßſKσςΣİı]{4,40}`).Draw(rt, "line")
		runes := []rune(line)
		from := rapid.IntRange(0, len(runes)-3).Draw(rt, "from")
		to := rapid.IntRange(from+1, len(runes)).Draw(rt, "to")
		part := string(runes[from:to])
		if strings.TrimSpace(part) == "" {
			rt.Skip("blank")
		}
		n++
		repo, commit := fmt.Sprintf("r%d", n), fmt.Sprintf("c%d", n)
		r.commit(commit, "", map[string]string{"f": "\n" + line + "\n"})
		if err := x.Index(context.Background(), target(repo, commit)); err != nil {
			rt.Fatal(err)
		}
		for _, text := range []string{part, strings.ToLower(part), strings.ToUpper(part)} {
			if text != part && !strings.EqualFold(text, part) {
				continue // ß has no upper case of one character
			}
			hits, err := x.Search(context.Background(), search.Query{Repo: repo, Text: text})
			if err != nil || len(hits) != 1 || hits[0].Line != 2 {
				rt.Fatalf("%q in %q: %v, %v", text, line, hits, err)
			}
		}
	})
}
