package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The limits that protect the check itself.
const (
	depthLimit = 64       // of nesting
	keyLimit   = 1 << 10  // bytes of a field's name
	drainLimit = 32 << 20 // bytes read and dropped so that a client hears the refusal
)

// checkBody reads the body of a write to the API, bounded in size and time, and
// refuses what the handlers must never see: another content type, no JSON
// object, a key twice, NUL, broken UTF-8. An empty body is an empty object, so
// that what is missing is named field by field.
func checkBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead || !strings.HasPrefix(r.URL.Path, "/v1/") {
			next.ServeHTTP(w, r)
			return
		}
		body, e := readBody(w, r)
		if e == nil && len(body) > 0 {
			if e = contentType(r.Header.Get("Content-Type")); e == nil {
				e = checkJSON(body)
			}
		}
		if e != nil {
			e.write(w)
			return
		}
		if len(body) == 0 {
			body = []byte("{}")
			r.Header.Set("Content-Type", "application/json")
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		next.ServeHTTP(w, r)
	})
}

// limitOf is how large a body may be: a change carries files.
func limitOf(path string) int {
	if strings.HasPrefix(path, "/v1/changes") {
		return changeBodyLimit
	}
	return bodyLimit
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *Error) {
	bodyLimit := limitOf(r.URL.Path)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // where the connection has none, the server's limits hold
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	tooLarge := newError(http.StatusRequestEntityTooLarge, codeOf(http.StatusRequestEntityTooLarge), fmt.Sprintf("the body has more than %d bytes", bodyLimit))
	if r.ContentLength > int64(bodyLimit) && r.Header.Get("Expect") != "" {
		return nil, tooLarge // the client waits for our word before it sends
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(bodyLimit)+1))
	if err != nil {
		if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
			return nil, newError(http.StatusRequestTimeout, codeOf(http.StatusRequestTimeout), "the body did not arrive in time")
		}
		return nil, newError(http.StatusBadRequest, codeOf(http.StatusBadRequest), "the body ended early")
	}
	if len(body) > bodyLimit {
		// Most clients read no answer before they have written all; one whose
		// connection is reset while it writes never sees the reason.
		_, _ = io.CopyN(io.Discard, r.Body, drainLimit)
		return nil, tooLarge
	}
	return body, nil
}

func contentType(header string) *Error {
	if header == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(header)
	charset := strings.ToLower(params["charset"])
	if err != nil || media != "application/json" && !strings.HasSuffix(media, "+json") || charset != "" && charset != "utf-8" {
		return newError(http.StatusUnsupportedMediaType, codeOf(http.StatusUnsupportedMediaType), "the body must be application/json in UTF-8")
	}
	return nil
}

// checkJSON walks through a body token by token. It looks at the bytes as they
// came, because encoding/json replaces broken UTF-8 silently. It works before
// anybody is known, so its work must be linear in the body: the place of a value
// is put together for a refusal alone.
func checkJSON(body []byte) *Error {
	var whole json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil {
		return newError(http.StatusBadRequest, codeOf(http.StatusBadRequest), "the body is no JSON: "+err.Error())
	}
	tokens := json.NewDecoder(bytes.NewReader(body))
	tokens.UseNumber()
	var at levels
	for from := int64(0); ; from = tokens.InputOffset() {
		token, err := tokens.Token()
		if err != nil {
			return nil // the end: the syntax is known to be right
		}
		if from == 0 && token != json.Delim('{') {
			return invalid("", "must be a JSON object")
		}
		text, isText := token.(string)
		bad := ""
		if isText {
			bad = badString(text, body[from:tokens.InputOffset()])
		}
		switch {
		case token == json.Delim('}') || token == json.Delim(']'):
			at = at[:len(at)-1]
			at.valueDone()
		case at.wantsKey():
			if bad != "" {
				return invalid(at[:len(at)-1].path(), "the name of a field "+bad)
			}
			again := !at.last().name(text)
			if len(text) > keyLimit {
				return invalid(at.path(), fmt.Sprintf("has a name of more than %d bytes", keyLimit))
			}
			if again {
				return invalid(at.path(), "stands twice")
			}
		case bad != "":
			return invalid(at.path(), bad)
		case token == json.Delim('{') || token == json.Delim('['):
			if len(at) == depthLimit {
				return invalid(at.path(), "is nested too deeply")
			}
			at = append(at, level{object: token == json.Delim('{')})
		default:
			at.valueDone()
		}
	}
}

// badString looks at a string as it was decoded and as it was written.
func badString(decoded string, raw []byte) string {
	if !utf8.Valid(raw) {
		return badText(string(raw))
	}
	return badText(decoded)
}

// level is an object or an array that a walk stands in.
type level struct {
	object bool
	seen   map[string]bool
	key    string // an object's: whose value comes next
	keyed  bool   // the key has been read, its value has not
	index  int    // an array's
}

// name takes the next key; it is false for one that was there before.
func (l *level) name(key string) bool {
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	again := l.seen[key]
	l.seen[key], l.key, l.keyed = true, key, true
	return !again
}

// levels are those around the next value, the outermost first.
type levels []level

func (at levels) last() *level { return &at[len(at)-1] }

func (at levels) wantsKey() bool { return len(at) > 0 && at.last().object && !at.last().keyed }

// path names the value that comes next, as files[0].path.
func (at levels) path() string {
	var out strings.Builder
	for _, l := range at {
		switch {
		case !l.object:
			out.WriteString("[" + strconv.Itoa(l.index) + "]")
		case out.Len() == 0:
			out.WriteString(shownKey(l.key))
		default:
			out.WriteString("." + shownKey(l.key))
		}
	}
	return out.String()
}

// shownKey cuts a name that is too long to show.
func shownKey(key string) string {
	const limit = 100
	if len(key) <= limit {
		return key
	}
	return strings.ToValidUTF8(key[:limit], "") + "…"
}

func (at levels) valueDone() {
	if len(at) == 0 {
		return
	}
	l := at.last()
	l.keyed = false
	l.index++
}
