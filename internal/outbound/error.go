package outbound

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/mergeflow/mergeflow/internal/saga"
)

// Error is an answer that was no success. It holds no secret.
type Error struct {
	Call   string // "POST https://host:port", without path, query and user
	Status int
	Detail string // an excerpt of the body, cleaned
}

// Error says the call, the status and the detail.
func (e *Error) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("%s: answered %d %s", e.Call, e.Status, http.StatusText(e.Status))
	}
	return fmt.Sprintf("%s: answered %d: %s", e.Call, e.Status, e.Detail)
}

// Transient says whether the same call is worth another try: everything but the
// 4xx, and of those the ones that speak of time (408, 425, 429).
func (e *Error) Transient() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return e.Status < 400 || e.Status >= 500
}

// excerptBytes is how much of a refusing body is kept.
const excerptBytes = 300

// excerpt makes a body fit for an error: cleaned first, because cleaning could
// join what a control character kept apart, then without the secret, then cut.
func excerpt(body []byte, secret string) string {
	s := saga.Clean(string(body), len(body)+1)
	return saga.Clean(redact(s, secret), excerptBytes)
}

// redact takes a secret out of a text, in the spellings in which a server might
// play it back.
func redact(s, secret string) string {
	if secret == "" {
		return s
	}
	quoted, _ := json.Marshal(secret)
	for _, spelling := range []string{
		secret,
		strings.Trim(string(quoted), `"`),
		url.QueryEscape(secret),
		url.PathEscape(secret),
		base64.StdEncoding.EncodeToString([]byte(secret)),
		strings.TrimPrefix(secret, base64Prefix),
	} {
		if spelling != "" {
			s = strings.ReplaceAll(s, spelling, "[secret]")
		}
	}
	return s
}

// place is what an error may say of a URL: a path or a query can be a secret.
func place(u *url.URL) string { return u.Scheme + "://" + u.Host }

// withoutURL takes the URL out of a transport's error.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
