package outbound

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// base64Prefix marks a secret whose rest is the key in base64.
const base64Prefix = "whsec_"

// ErrNotAuthentic is what Verify answers when a request is not from who knows
// the secret.
var ErrNotAuthentic = errors.New("no valid signature or bearer secret")

// Sign puts the Standard Webhooks headers for this body on h. The id is the
// same for every try of one message.
//
// A secret "whsec_…" is base64 of the key. Any other secret is the key as it
// stands; where it happens to be base64 as well, a second signature with the
// decoded key is added, because the usual libraries decode whatever they are
// given. The standard allows several signatures in one header.
func Sign(h http.Header, secret, id string, at time.Time, body []byte) error {
	keys, err := keysOf(secret)
	if err != nil {
		return err
	}
	signatures := make([]string, 0, len(keys))
	for _, key := range keys {
		wh, err := webhooks.NewWebhookRaw(key)
		if err != nil {
			return fmt.Errorf("sign: %w", err)
		}
		signature, err := wh.Sign(id, at, body)
		if err != nil {
			return fmt.Errorf("sign: %w", err)
		}
		signatures = append(signatures, signature)
	}
	h.Set(webhooks.HeaderWebhookID, id)
	h.Set(webhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set(webhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return nil
}

// VerifySignature checks a Standard Webhooks signature, which may be five
// minutes old. The compare takes constant time. Its error is ErrNotAuthentic
// whatever was wrong.
func VerifySignature(h http.Header, secret string, body []byte) error {
	keys, err := keysOf(secret)
	if err != nil {
		return ErrNotAuthentic
	}
	for _, key := range keys {
		wh, err := webhooks.NewWebhookRaw(key)
		if err == nil && wh.Verify(body, h) == nil {
			return nil
		}
	}
	return ErrNotAuthentic
}

// VerifyBearer checks "Authorization: Bearer SECRET" in constant time. Its
// error is ErrNotAuthentic.
func VerifyBearer(h http.Header, secret string) error {
	got, ok := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	if !ok || secret == "" || subtle.ConstantTimeCompare([]byte(got), []byte(secret)) != 1 {
		return ErrNotAuthentic
	}
	return nil
}

// keysOf are the keys that a secret stands for; never none, never an empty one.
func keysOf(secret string) ([][]byte, error) {
	if secret == "" {
		return nil, errors.New("the secret is empty")
	}
	if rest, ok := strings.CutPrefix(secret, base64Prefix); ok {
		key, err := base64.StdEncoding.DecodeString(rest)
		if err != nil || len(key) == 0 {
			// The decoder's own words would point into the secret.
			return nil, errors.New(`the secret begins with "whsec_" but does not go on in base64`)
		}
		return [][]byte{key}, nil
	}
	keys := [][]byte{[]byte(secret)}
	if key, err := base64.StdEncoding.DecodeString(secret); err == nil && len(key) > 0 {
		keys = append(keys, key)
	}
	return keys, nil
}
