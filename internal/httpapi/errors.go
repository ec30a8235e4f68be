package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/pull"
	"github.com/mergeflow/mergeflow/internal/saga"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/store"
)

// The stable codes. Those of pull.Refusal join them as they are.
const (
	codeInvalid       = "invalid"         // 422: bad input, the fields are named
	codeNotFound      = "not-found"       // 404
	codeNotAllowedNow = "not-allowed-now" // 409: the table has no such move; allowed says which it has
	codeExists        = "exists"          // 409
	codeConflict      = "conflict"        // 409: git can't merge it
	codeBehind        = "behind"          // 409: must be brought up to date first
	codeUnavailable   = "unavailable"     // 503: nothing was done, try again
	codeUnclear       = "outcome-unknown" // 503: it may have been done, look first
	codeInternal      = "internal"        // 500
)

// retryPause is what a 503 asks for.
const retryPause = 2 * time.Second

// refuse is the one mapping from an error to an answer. What it can't name is
// logged with its request id, and answered without a word about the inside.
func (a *api) refuse(ctx context.Context, err error) *Error {
	e := RefusalOf(err)
	if e.Status >= 500 {
		e.RequestID = requestIDOf(ctx)
		a.Log.ErrorContext(ctx, "request failed", "request", e.RequestID, "status", e.Status, "error", err)
	}
	return e
}

// refusalOf is nil for an error that nobody foresaw.
func refusalOf(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if r, ok := errors.AsType[*saga.Refusal](err); ok {
		return notAllowed(fmt.Sprintf("%s is not possible in state %s", r.Event, r.State), r.Allowed)
	}
	if r, ok := errors.AsType[*pull.Refusal](err); ok {
		e := newError(http.StatusConflict, r.Code, r.Detail)
		e.OperationID = r.OperationID
		return e
	}
	if e := changeRefusal(err); e != nil {
		return e
	}
	if i, ok := errors.AsType[*pull.Invalid](err); ok {
		return invalid(i.Field, i.Detail)
	}
	if f, ok := errors.AsType[*forge.Error](err); ok {
		return forgeRefusal(f)
	}
	if s, ok := errors.AsType[*search.Error](err); ok {
		if s.Transient {
			return unavailable("the search index: " + s.Detail)
		}
		return newError(http.StatusBadGateway, "search-failed", s.Detail)
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return notFound("no such thing")
	case errors.Is(err, store.ErrExists):
		return newError(http.StatusConflict, codeExists, "exists already")
	case errors.Is(err, store.ErrBusy):
		return unavailable("somebody else is writing this operation; nothing was done")
	case errors.Is(err, store.ErrUnknown):
		return newError(http.StatusServiceUnavailable, codeUnclear, "the database was lost while it committed; look before you repeat")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return newError(http.StatusServiceUnavailable, codeUnclear, "it took too long; look before you repeat")
	}
	return nil
}

func forgeRefusal(f *forge.Error) *Error {
	conflict := func(code string) *Error { return newError(http.StatusConflict, code, f.Detail) }
	switch f.Kind {
	case forge.KindInvalid:
		return invalid(f.Field, f.Detail)
	case forge.KindNotFound:
		return notFound(f.Detail)
	case forge.KindExists:
		return conflict(codeExists)
	case forge.KindHeadMoved:
		return conflict(pull.CodeHeadMoved)
	case forge.KindConflict:
		return conflict(codeConflict)
	case forge.KindBehind:
		return conflict(codeBehind)
	case forge.KindClosed:
		return conflict(pull.CodeClosed)
	case forge.KindNothingToMerge:
		return conflict(pull.CodeNothingToMerge)
	case forge.KindTransient:
		return unavailable("the forge: " + f.Detail)
	case forge.KindUnclear:
		return newError(http.StatusServiceUnavailable, codeUnclear, "the forge's answer was lost; look before you repeat")
	}
	return nil
}

// inBody turns "there is no such …" into bad input: the body named it, the path did not.
func inBody(err error, otherwise string) error {
	f, ok := errors.AsType[*forge.Error](err)
	switch {
	case ok && f.Kind == forge.KindNotFound:
		return invalid(cmp.Or(f.Field, otherwise), f.Detail)
	case !ok && errors.Is(err, store.ErrNotFound):
		return invalid(otherwise, "there is none of that name")
	}
	return err
}

func newError(status int, code, detail string) *Error {
	return &Error{Status: status, Title: http.StatusText(status), Code: code, Detail: detail}
}

func invalid(field, message string) *Error {
	e := newError(http.StatusUnprocessableEntity, codeInvalid, "the input is not valid")
	e.Errors = []FieldError{{Location: field, Message: message}}
	return e
}

func notFound(detail string) *Error { return newError(http.StatusNotFound, codeNotFound, detail) }

// missing names what the store doesn't have. A forge names it itself.
func missing(err error, what string) error {
	if _, named := errors.AsType[*forge.Error](err); !named && errors.Is(err, store.ErrNotFound) {
		return notFound("there is no " + what)
	}
	return err
}

func notAllowed(detail string, allowed []saga.Name) *Error {
	e := newError(http.StatusConflict, codeNotAllowedNow, detail)
	e.Allowed = texts(allowed)
	return e
}

func unavailable(detail string) *Error {
	e := newError(http.StatusServiceUnavailable, codeUnavailable, detail)
	e.retryAfter = retryPause
	return e
}

// codeOf is the code of a refusal that has none but its status.
func codeOf(status int) string {
	switch status {
	case http.StatusUnprocessableEntity:
		return codeInvalid
	case http.StatusBadRequest:
		return "bad-request"
	case http.StatusUnauthorized:
		return "unauthorized"
	case http.StatusForbidden:
		return "forbidden"
	case http.StatusNotFound:
		return codeNotFound
	case http.StatusMethodNotAllowed:
		return "method-not-allowed"
	case http.StatusRequestTimeout:
		return "body-timeout"
	case http.StatusRequestEntityTooLarge:
		return "body-too-large"
	case http.StatusUnsupportedMediaType:
		return "unsupported-media-type"
	case http.StatusServiceUnavailable:
		return codeUnavailable
	case http.StatusInternalServerError:
		return codeInternal
	}
	return fmt.Sprintf("http-%d", status)
}

// write answers a refusal outside a typed handler.
func (e *Error) write(w http.ResponseWriter) {
	b, _ := json.Marshal(e) // texts and numbers alone
	h := w.Header()
	h.Set("Content-Type", problemType)
	if e.retryAfter > 0 {
		h.Set("Retry-After", seconds(e))
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(append(b, '\n'))
}

func texts[T ~string](in []T) []string {
	out := make([]string, len(in))
	for i, v := range in {
		out[i] = string(v)
	}
	return out
}

// RefusalOf is the answer that the API gives to an error, for pages: one that
// nobody foresaw is a 500 without a word about the inside.
func RefusalOf(err error) *Error {
	if e := refusalOf(err); e != nil {
		return e
	}
	return newError(http.StatusInternalServerError, codeInternal, "")
}
