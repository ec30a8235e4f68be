package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
)

const oneChange = `{"subject":"team","target":"t","project":"app","title":"x","files":[{"path":"a.yaml","action":"upsert","content":"1"}]}`

// Over the backlog a change is stored and refused, further over it nothing is stored.
func TestTheDoorIsBounded(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.repo("app")
	f.due.Store(101)
	a := f.do("POST", "/v1/changes", oneChange)
	if a.status != http.StatusAccepted || !strings.Contains(a.body, `"state":"CREATE_REFUSED"`) || a.header.Get("Location") == "" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	op := strings.TrimPrefix(a.header.Get("Location"), "/v1/operations/")
	a = f.do("GET", "/v1/operations/"+op, "")
	for _, want := range []string{`"actions":["retry","close"]`, `"kind":"transient"`, `overloaded: 101 commands are due`, `"step":"APPROVAL_SENDING"`} {
		if !strings.Contains(a.body, want) {
			t.Errorf("%s lacks %s", a.body, want)
		}
	}
	f.due.Store(111)
	a = f.do("POST", "/v1/changes", strings.Replace(oneChange, `"t"`, `"other"`, 1))
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, `"code":"overloaded"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a = f.do("GET", "/v1/bindings/team/other", ""); a.status != http.StatusNotFound {
		t.Errorf("something was stored: %d %s", a.status, a.body)
	}
	// The load has passed: a new submit ends the refused one and starts anew.
	f.due.Store(0)
	a = f.do("POST", "/v1/changes", oneChange)
	if a.status != http.StatusAccepted || !strings.Contains(a.body, `"state":"APPROVAL_SENDING"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a = f.do("GET", "/v1/operations/"+op, ""); !strings.Contains(a.body, `"state":"CLOSE_SUCCEEDED"`) {
		t.Errorf("%s", a.body)
	}
}

// A change may be as large as its limit says, and no larger.
func TestLargeChanges(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.repo("app")
	file := func(n int) string {
		return `{"path":"f` + strings.Repeat("x", n%7+1) + `","action":"upsert","content":"` + strings.Repeat("x", 1<<20) + `"}`
	}
	body := func(files int) string {
		var all []string
		for i := range files {
			all = append(all, file(i))
		}
		return `{"subject":"s","target":"t","project":"app","title":"x","files":[` + strings.Join(all, ",") + `]}`
	}
	if a := f.do("POST", "/v1/changes", body(4)); a.status != http.StatusAccepted {
		t.Errorf("4 MiB: %d %.300s", a.status, a.body)
	}
	if a := f.do("POST", "/v1/changes", strings.Replace(body(5), `"t"`, `"u"`, 1)); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `"location":"files"`) {
		t.Errorf("5 MiB: %d %.300s", a.status, a.body)
	}
	if a := f.do("POST", "/v1/changes", body(10)); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("10 MiB: %d %.300s", a.status, a.body)
	}
}

// What a file of a change doesn't know is refused like what the change doesn't.
func TestUnknownFieldsOfFiles(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.repo("app")
	a := f.do("POST", "/v1/changes", strings.Replace(oneChange, `"content":"1"`, `"content":"1","mode":"0755"`, 1))
	if a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `"location":"files[0].mode","message":"is not known"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}
