// Package webui is what people see in a browser: the operations, newest first,
// and one operation with its explanation and links into the API. Plain HTML
// without scripts; the content security policy allows the one embedded style
// sheet and nothing else.
package webui

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

//go:embed page.html
var page string

//go:embed style.css
var style string

// Operations is where the pages read; *httpapi.Operations is one.
type Operations interface {
	List(ctx context.Context, f httpapi.OperationFilter) (httpapi.List[httpapi.Operation], error)
	Get(ctx context.Context, id string) (httpapi.Operation, error)
	Flows() []string
	Statuses(flow string) []string
}

// pageSize is how many operations one page shows.
const pageSize = 50

type pages struct {
	ops      Operations
	log      *slog.Logger
	template *template.Template
	policy   string
}

// New serves "/" and "/operations/{id}". log gets what a page doesn't say; nil
// drops it.
func New(ops Operations, log *slog.Logger) http.Handler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &pages{
		ops: ops, log: log,
		template: template.Must(template.New("page").Funcs(template.FuncMap{
			"style": func() template.CSS { return template.CSS(style) }, // ours, not a user's
			"time":  func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
			"stamp": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
			"short": short,
		}).Parse(page)),
	}
	sum := sha256.Sum256([]byte(style))
	p.policy = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.list)
	mux.HandleFunc("GET /operations/{id}", p.one)
	return mux
}

// view is what the template is given.
type view struct {
	Items    []httpapi.Operation
	One      bool // a single operation's page
	Flows    []string
	Statuses []string
	Flow     string
	Status   string
	Query    string
	Next     string // address of the next page
	First    bool   // nothing stands before this page
	Problem  string
}

func (p *pages) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	v := view{
		Flow: q.Get("flow"), Status: q.Get("status"), Query: q.Get("q"), First: q.Get("cursor") == "",
		Flows: p.ops.Flows(), Statuses: p.ops.Statuses(""),
	}
	found, err := p.ops.List(r.Context(), httpapi.OperationFilter{Flow: v.Flow, Status: v.Status, Query: v.Query, Cursor: q.Get("cursor"), Limit: pageSize})
	v.Items = found.Items
	if found.Next != "" {
		next := url.Values{"cursor": {found.Next}}
		for name, value := range map[string]string{"flow": v.Flow, "status": v.Status, "q": v.Query} {
			if value != "" {
				next.Set(name, value)
			}
		}
		v.Next = "/?" + next.Encode()
	}
	p.show(r.Context(), w, v, err)
}

func (p *pages) one(w http.ResponseWriter, r *http.Request) {
	op, err := p.ops.Get(r.Context(), r.PathValue("id"))
	v := view{One: true, Flows: p.ops.Flows(), Statuses: p.ops.Statuses("")}
	if err == nil {
		v.Items = []httpapi.Operation{op}
	}
	p.show(r.Context(), w, v, err)
}

// show writes the page; an error becomes a sentence on it, without the inside.
func (p *pages) show(ctx context.Context, w http.ResponseWriter, v view, err error) {
	status := http.StatusOK
	if err != nil {
		refusal := httpapi.RefusalOf(err)
		status, v.Problem = refusal.Status, sentence(refusal)
		if status >= 500 {
			p.log.ErrorContext(ctx, "page failed", "error", err)
		}
	}
	var b bytes.Buffer
	if err := p.template.Execute(&b, v); err != nil {
		http.Error(w, "the page can't be made", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // a reader that has gone away is no fault
}

func sentence(e *httpapi.Error) string {
	if e.Status >= 500 {
		return "The operations can't be read now; try again."
	}
	var parts []string
	for _, f := range e.Errors {
		parts = append(parts, strings.TrimSpace(f.Location+" "+f.Message))
	}
	if len(parts) > 0 {
		return strings.Join(parts, "; ")
	}
	return e.Detail
}

func short(sha string) string {
	if len(sha) > 10 {
		return sha[:10]
	}
	return sha
}

var _ Operations = (*httpapi.Operations)(nil)
