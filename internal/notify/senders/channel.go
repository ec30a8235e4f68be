package senders

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"

	"github.com/mergeflow/mergeflow/internal/notify"
	"github.com/mergeflow/mergeflow/internal/saga"
)

// maxUnderWay bounds the sends of one URL that have not come back. The library
// takes no context and some of its services have no time limit, so a send that
// hangs stays behind when its caller leaves; a dead service collects this many
// and no more.
const maxUnderWay = 4

// channel sends to one chat or mail URL by shoutrrr.
type channel struct {
	key     string
	url     string // a secret
	parts   []string
	timeout time.Duration
	slots   chan struct{}
}

func newChannel(raw string, timeout time.Duration) (*channel, error) {
	scheme, err := checkChannel(raw)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(raw))
	return &channel{
		// Short on purpose: it tells two URLs apart and is too little to
		// confirm a guess.
		key:     scheme + ":" + hex.EncodeToString(sum[:4]),
		url:     raw,
		parts:   secretParts(raw),
		timeout: timeout,
		slots:   make(chan struct{}, maxUnderWay),
	}, nil
}

// checkChannel says whether shoutrrr can send to a URL, without sending.
func checkChannel(raw string) (scheme string, err error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" || !strings.Contains(raw, "://") {
		// "token:rest" would parse too, with a part of the token as its scheme.
		return "", errors.New("not a URL")
	}
	scheme, _, _ = strings.Cut(u.Scheme, "+")
	switch scheme {
	case "logger":
		return "", errors.New(`"logger" would reach nobody`)
	case "matrix":
		// Initializing it logs in already, which is not for now.
		if _, set := u.User.Password(); u.Host == "" || u.User == nil || !set {
			return "", errors.New(`the "matrix" service needs a host and a password or token`)
		}
		return scheme, nil
	}
	// The library's errors hold the URL; what they say is said again here.
	switch _, err = new(router.ServiceRouter).Locate(raw); {
	case err == nil:
		return scheme, nil
	case errors.Is(err, router.ErrUnknownService):
		return "", fmt.Errorf("no service is called %q", saga.Clean(scheme, 20))
	case errors.Is(err, router.ErrCustomURLsNotSupported):
		return "", fmt.Errorf("the %q service takes no URL but its own kind", scheme)
	}
	return "", fmt.Errorf("not what the %q service needs; see its page at https://shoutrrr.nickfedor.com", scheme)
}

// send delivers one message. The message may arrive although it answers an
// error: a send that came too late can't be called back.
func (c *channel) send(ctx context.Context, m notify.Message) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	select {
	case c.slots <- struct{}{}:
	default:
		return &notify.Error{Recipient: c.key, Detail: fmt.Sprintf("%d earlier sends have not come back", maxUnderWay), Transient: true}
	}
	sent := make(chan error, 1)
	go func() {
		defer func() {
			<-c.slots
			if p := recover(); p != nil { // a fault of one service is not the program's end
				sent <- fmt.Errorf("the service broke: %v", p)
			}
		}()
		// A service of its own for each send: they keep state.
		service, err := new(router.ServiceRouter).Locate(c.url)
		if err == nil {
			err = service.Send(m.Text, &types.Params{})
		}
		sent <- err
	}()
	select {
	case err := <-sent:
		if err != nil {
			// What is worth another try the library doesn't tell; the budget
			// of the step ends it.
			return &notify.Error{Recipient: c.key, Detail: c.clean(err), Transient: true}
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("notify %s: no answer: %w", c.key, ctx.Err())
	}
}

var anyURL = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"]+`)

// clean makes the library's error fit to be stored: without URLs, and without
// anything that is part of ours.
func (c *channel) clean(err error) string {
	text := anyURL.ReplaceAllString(saga.Clean(err.Error(), 4096), "[url]")
	for _, p := range c.parts {
		text = strings.ReplaceAll(text, p, "[…]")
	}
	return saga.Clean(text, 300)
}

// minSecret is how long a part of a URL must be to be taken out of an error;
// shorter ones are words that say nothing.
const minSecret = 4

// secretParts are the parts of a URL that can be secret, in the spellings in
// which they can come back, the longest first. The scheme is none, and a host
// is: in several services it is a token.
func secretParts(raw string) []string {
	u, err := url.Parse(raw)
	if err != nil {
		return nil
	}
	found := []string{raw, u.Host, u.Hostname(), u.Opaque, u.Fragment}
	if u.User != nil {
		password, _ := u.User.Password()
		found = append(found, u.User.String(), u.User.Username(), password)
	}
	found = append(found, strings.Split(u.EscapedPath(), "/")...)
	found = append(found, strings.Split(u.Path, "/")...)
	for _, values := range u.Query() {
		for _, v := range values {
			found = append(found, strings.Split(v, ",")...)
			found = append(found, v)
		}
	}
	// A token may be put together of smaller ones ("A-B-C", "a:b@c").
	for _, f := range slices.Clone(found) {
		found = append(found, strings.FieldsFunc(f, func(r rune) bool { return strings.ContainsRune("-:@", r) })...)
		found = append(found, url.QueryEscape(f), url.PathEscape(f))
	}
	slices.SortFunc(found, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	found = slices.Compact(found)
	return slices.DeleteFunc(found, func(s string) bool { return len(s) < minSecret })
}
