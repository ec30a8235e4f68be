package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"
)

// huma makes its own refusals through these package variables; this package is
// its only user in the program.
func init() {
	huma.NewError = problem
	// encoding/json folds case, huma with it; the contract's names are exact.
	huma.ValidateStrictCasing = true
}

func humaConfig(version string) huma.Config {
	format := huma.Format{Marshal: marshal, Unmarshal: json.Unmarshal}
	c := huma.DefaultConfig("mergeflow", version)
	c.Info.Description = "Carries pull requests through validate, merge, notify and index. Errors are RFC 9457 problems with a stable code."
	// The document is served by hand, and without the hooks there is no $schema in bodies.
	c.OpenAPIPath, c.DocsPath, c.SchemasPath, c.CreateHooks = "", "", "", nil
	c.Formats = map[string]huma.Format{"application/json": format, "json": format}
	c.RejectUnknownQueryParameters = true // a filter that is misspelt must not select everything
	return c
}

// openAnswers lets answers grow: huma closes every object, which is right for
// bodies that come in, but a client made from the document must not break when
// an answer gets another field.
func openAnswers(doc *huma.OpenAPI) {
	schemas := doc.Components.Schemas.Map()
	in := map[string]bool{}
	var mark func(s *huma.Schema)
	mark = func(s *huma.Schema) {
		if s == nil {
			return
		}
		if name, ok := strings.CutPrefix(s.Ref, schemaPrefix); ok && !in[name] {
			in[name] = true
			mark(schemas[name])
		}
		mark(s.Items)
		for _, p := range s.Properties {
			mark(p)
		}
	}
	for _, path := range doc.Paths {
		if path.Post == nil || path.Post.RequestBody == nil {
			continue
		}
		for _, content := range path.Post.RequestBody.Content {
			mark(content.Schema)
		}
	}
	for name, schema := range schemas {
		if !in[name] {
			schema.AdditionalProperties = nil
		}
	}
}

const schemaPrefix = "#/components/schemas/"

// marshal encodes before it writes: a value that can't be encoded is a fault,
// a reader that has gone away is not.
func marshal(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, _ = w.Write(b.Bytes())
	return nil
}

// register adds a typed endpoint. Its handler's errors pass through refuse.
func register[I, O any](a *api, op huma.Operation, handler func(context.Context, *I) (*O, error)) {
	// huma would leave its read deadline on the connection, where it ends the
	// request of whoever takes longer; checkBody has read the body by then.
	op.BodyReadTimeout = -1
	op.MaxBodyBytes = -1 // likewise: it has bounded the body
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		out, err := handler(ctx, in)
		if err == nil {
			return out, nil
		}
		e := a.refuse(ctx, err)
		if e.retryAfter == 0 {
			return nil, e
		}
		return nil, huma.ErrorWithHeaders(e, http.Header{"Retry-After": {seconds(e)}})
	})
}

func seconds(e *Error) string { return strconv.Itoa(int(e.retryAfter.Seconds())) }

// get and post describe endpoints in one line each.
func get(id, path, summary string, refusals ...int) huma.Operation {
	return huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary, Tags: tag(path), Errors: refusals}
}

func post(id, path, summary string, status int, refusals ...int) huma.Operation {
	return huma.Operation{OperationID: id, Method: http.MethodPost, Path: path, Summary: summary, Tags: tag(path), DefaultStatus: status,
		Errors: append(refusals, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)}
}

func tag(path string) []string {
	if rest, ok := strings.CutPrefix(path, "/v1/"); ok {
		first, _, _ := strings.Cut(rest, "/")
		return []string{first}
	}
	return []string{"health"}
}

// problem is how huma's validation refuses.
func problem(status int, detail string, errs ...error) huma.StatusError {
	e := &Error{Status: status, Title: http.StatusText(status), Code: codeOf(status), Detail: detail}
	if status == http.StatusInternalServerError {
		e.Detail = ""
		return e
	}
	for _, err := range errs {
		if d, ok := err.(huma.ErrorDetailer); ok {
			e.Errors = append(e.Errors, fieldError(d.ErrorDetail()))
		}
	}
	return e
}

var requiredBefore, requiredAfter, _ = strings.Cut(validation.MsgExpectedRequiredProperty, "%s")

// fieldError names the field itself where huma names the object around it.
func fieldError(d *huma.ErrorDetail) FieldError {
	place, path, _ := strings.Cut(d.Location, ".")
	switch place {
	case "body", "query", "path", "header":
	default:
		path = d.Location
	}
	message := d.Message
	if rest, ok := strings.CutPrefix(message, requiredBefore); ok {
		if name, ok := strings.CutSuffix(rest, requiredAfter); ok {
			if path != "" {
				path += "."
			}
			path, message = path+name, "is required"
		}
	}
	switch message {
	case "required query parameter is missing":
		message = "is required"
	case validation.MsgUnexpectedProperty, "unknown query parameter":
		message = "is not known"
	}
	return FieldError{Location: path, Message: message}
}
