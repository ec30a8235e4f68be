package httpapi_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// routes is everything that the API promises, but for git and the pages.
var routes = []string{
	"GET /livez", "GET /metrics", "GET /openapi.json", "GET /readyz",
	"GET /v1/bindings/{subject}/{target}",
	"GET /v1/operations", "GET /v1/operations/{id}", "GET /v1/operations/{id}/callbacks", "GET /v1/operations/{id}/history", "GET /v1/operations/{id}/watch",
	"GET /v1/pulls", "GET /v1/pulls/{id}", "GET /v1/repos", "GET /v1/repos/{name}", "GET /v1/search", "GET /v1/stats",
	"POST /v1/callbacks/approval", "POST /v1/callbacks/deploy", "POST /v1/changes", "POST /v1/changes:plan",
	"POST /v1/operations/{id}/approval", "POST /v1/operations/{id}/close", "POST /v1/operations/{id}/fail", "POST /v1/operations/{id}/resume", "POST /v1/operations/{id}/retry",
	"POST /v1/pulls", "POST /v1/pulls/{id}/close", "POST /v1/pulls/{id}/merge", "POST /v1/pulls/{id}/watchers",
	"POST /v1/repos", "POST /v1/repos/{name}/statuses/{sha}",
}

func TestDocumentListsEveryRoute(t *testing.T) {
	t.Parallel()
	f := start(t)
	a := f.do("GET", "/openapi.json", "")
	var doc struct {
		OpenAPI string
		Info    struct{ Title, Version string }
		Paths   map[string]map[string]struct {
			OperationID string
			Summary     string
			Parameters  []struct {
				Name, In string
				Required bool
			}
			Responses map[string]any
		}
		Components struct{ Schemas map[string]json.RawMessage }
	}
	decode(t, a.body, &doc)
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") || doc.Info.Title == "" || doc.Info.Version != "test" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("document %s %+v, a %s", doc.OpenAPI, doc.Info, a.header.Get("Content-Type"))
	}
	var got []string
	ids := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			route := strings.ToUpper(method) + " " + path
			got = append(got, route)
			if op.OperationID == "" || ids[op.OperationID] || op.Summary == "" || len(op.Responses) == 0 {
				t.Errorf("%s: id %q, summary %q, %d answers", route, op.OperationID, op.Summary, len(op.Responses))
			}
			ids[op.OperationID] = true
			for rest := path; strings.Contains(rest, "{"); {
				_, rest, _ = strings.Cut(rest, "{")
				name, after, _ := strings.Cut(rest, "}")
				rest = after
				found := false
				for _, p := range op.Parameters {
					found = found || p.Name == name && p.In == "path" && p.Required
				}
				if !found {
					t.Errorf("%s does not describe {%s}", route, name)
				}
			}
		}
	}
	slices.Sort(got)
	if g, w := strings.Join(got, "\n"), strings.Join(routes, "\n"); g != w {
		t.Errorf("document has\n%s\nwant\n%s", g, w)
	}
	// Every reference leads somewhere; bodies refuse what they don't know, answers may grow.
	for _, part := range strings.Split(a.body, `"$ref":"`)[1:] {
		ref, _, _ := strings.Cut(part, `"`)
		name, ok := strings.CutPrefix(ref, "#/components/schemas/")
		if _, known := doc.Components.Schemas[name]; !ok || !known {
			t.Errorf("reference to %s", ref)
		}
	}
	var pull struct {
		AdditionalProperties any
		Required             []string
	}
	decode(t, string(doc.Components.Schemas["NewPull"]), &pull)
	slices.Sort(pull.Required)
	if pull.AdditionalProperties != false || strings.Join(pull.Required, " ") != "repo source target title" {
		t.Errorf("NewPull %+v", pull)
	}
	for name, schema := range doc.Components.Schemas {
		closed := strings.Contains(string(schema), `"additionalProperties":false`)
		if want := strings.HasPrefix(name, "New") || strings.HasSuffix(name, "Input") || name == "Reason" || name == "ChangeFile"; closed != want {
			t.Errorf("%s refuses further fields: %v", name, closed)
		}
	}
	for _, r := range routes {
		method, path, _ := strings.Cut(r, " ")
		path = strings.NewReplacer("{id}", noID, "{name}", "a", "{sha}", noSHA, "{subject}", "nobody", "{target}", noID).Replace(path)
		if a := f.do(method, path, ""); a.status == http.StatusMethodNotAllowed || a.status == 404 && !strings.Contains(path, noID) && path != "/v1/repos/a" && !strings.Contains(path, noSHA) {
			t.Errorf("%s is documented and not served: %d", r, a.status)
		}
	}
}

func TestNewRefusesWhatCantWork(t *testing.T) {
	t.Parallel()
	if _, err := httpapi.New(httpapi.Options{}); err == nil {
		t.Error("an API of nothing")
	}
	for _, bad := range []string{"localhost:8080", "ftp://host", "http://", "http://%"} {
		start(t, func(o *httpapi.Options) {
			with := *o
			with.PublicURL = bad
			if _, err := httpapi.New(with); err == nil {
				t.Errorf("public URL %s", bad)
			}
		})
	}
}
