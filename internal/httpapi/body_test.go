package httpapi_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// The check is made before anybody is known, so its work must be linear in the
// body, whatever its form. What a walk allocates stands for its work: here a
// place that is named per value would cost far more than the bound.
//
// Not parallel: the counters are the whole process's.
func TestTheWalkIsLinear(t *testing.T) {
	const size = 1 << 20
	fill := func(head, one, last, tail string) string {
		n := (size - len(head) - len(last) - len(tail)) / len(one)
		return head + strings.Repeat(one, n) + last + tail
	}
	key := func(c string) string { return strings.Repeat(c, 1000) }
	// As many names above the values as the bounds let in.
	deep := strings.Repeat(`{"`+key("k")+`":`, 62)
	var names strings.Builder
	for i := 0; names.Len() < size/2; i++ {
		fmt.Fprintf(&names, `"%d":[],`, i)
	}
	for name, body := range map[string]string{
		"empty arrays":              fill(`{"a":[`, `[],`, `[]`, `]}`),
		"empty arrays, a long name": fill(`{"`+key("k")+`":[`, `[],`, `[]`, `]}`),
		"empty arrays, deep":        fill(deep+`[`, `[],`, `[]`, `]`+strings.Repeat("}", 62)),
		"objects":                   fill(`{"a":[`, `{},`, `{}`, `]}`),
		"objects with a field":      fill(deep+`[`, `{"":0},`, `0`, `]`+strings.Repeat("}", 62)),
		"objects with long names":   fill(`{"a":[`, `{"`+key("k")+`":{"`+key("l")+`":[]}},`, `0`, `]}`),
		"many names":                `{` + names.String() + `"a":0}`,
		"many names, deep":          deep + `{` + names.String() + `"a":0}` + strings.Repeat("}", 62),
		"nesting, again and again":  fill(`{"a":[`, strings.Repeat("[", 60)+strings.Repeat("]", 60)+",", `0`, `]}`),
		"one long text":             fill(`{"a":"`, `x`, ``, `"}`),
		"many texts":                fill(`{"a":[`, `"x",`, `"x"`, `]}`),
		"numbers":                   fill(deep+`[`, `0,`, `0`, `]`+strings.Repeat("}", 62)),
	} {
		b := []byte(body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		e := httpapi.CheckJSON(b)
		runtime.ReadMemStats(&after)
		if e != nil {
			t.Errorf("%s: %v", name, e.Errors)
		}
		times := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(b))
		t.Logf("%-28s allocates %.1f times the body's %d bytes", name, times, len(b))
		if times > 100 {
			t.Errorf("%s: the walk allocates %.0f times the body", name, times)
		}
	}
}

// A name that is too long is refused where it stands, and not repeated.
func TestALongNameIsRefused(t *testing.T) {
	t.Parallel()
	name := func(n int) string { return strings.Repeat("é", n/2) }
	if e := httpapi.CheckJSON([]byte(`{"` + name(1024) + `":{"` + name(1024) + `":[]}}`)); e != nil {
		t.Errorf("1024 bytes: %v", e.Errors)
	}
	for _, body := range []string{`{"a":[0,{"` + name(1026) + `":1}]}`, `{"a":[0,{"` + name(520<<10) + `":[` + strings.Repeat("[],", 1000) + `0]}]}`} {
		e := httpapi.CheckJSON([]byte(body))
		if e == nil || len(e.Errors) != 1 {
			t.Fatalf("%d bytes: %v", len(body), e)
		}
		if got, want := e.Errors[0].Location, "a[1]."+name(100)+"…"; got != want {
			t.Errorf("the place is %q, want %q", got, want)
		}
		if got := e.Errors[0].Message; got != "has a name of more than 1024 bytes" {
			t.Errorf("refused with %q", got)
		}
	}
	// A long name above a fault is cut too, and no letter in half.
	e := httpapi.CheckJSON([]byte(`{"x` + name(1000) + `":{"b":"\u0000"}}`))
	if e == nil || e.Errors[0].Location != "x"+name(98)+"….b" {
		t.Errorf("%v", e)
	}
}

// The time per byte stays the same, however large the body is.
func BenchmarkCheckJSON(b *testing.B) {
	for _, n := range []int{1 << 16, 1 << 20} {
		body := []byte(`{"` + strings.Repeat("k", 1000) + `":[` + strings.Repeat("[],", n/3) + `[]]}`)
		b.Run(fmt.Sprint(len(body)), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if e := httpapi.CheckJSON(body); e != nil {
					b.Fatal(e)
				}
			}
		})
	}
}
