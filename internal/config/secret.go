package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	hidden         = "[secret]"
	maxSecretBytes = 64 << 10
)

// Secret is a value that is never printed: a literal, `env:NAME`, or
// `file:PATH`, which is read again when the file changes. The zero value is
// "not set". Copies share what they know; all methods are safe for concurrent use.
type Secret struct{ src *secretSource }

type secretSource struct {
	spec string // as it was written
	path string // file: only

	mu    sync.Mutex
	value string
	info  os.FileInfo
	read  time.Time
}

// Literal is a secret with this value; an empty one is not set.
func Literal(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{&secretSource{spec: value, value: value}}
}

// newSecret resolves a secret as it is written. Its errors hold names, never values.
func newSecret(spec string, lookup func(string) (string, bool)) (Secret, error) {
	src := &secretSource{spec: spec, value: spec}
	if name, ok := strings.CutPrefix(spec, "env:"); ok {
		v, _ := lookup(name)
		if v == "" {
			return Secret{}, fmt.Errorf("the environment variable %s is not set", name)
		}
		src.value = v
	}
	if path, ok := strings.CutPrefix(spec, "file:"); ok {
		src.path, src.value = path, ""
		if err := src.reload(); err != nil {
			return Secret{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return Secret{src}, nil
}

// IsSet says whether there is a value.
func (s Secret) IsSet() bool { return s.src != nil }

// Value is the secret itself, "" when it is not set. For `file:PATH` it is what
// the file holds now, without a trailing line break; while the file can't be
// read or is empty, it is what it held last.
func (s Secret) Value() string {
	if s.src == nil {
		return ""
	}
	s.src.mu.Lock()
	defer s.src.mu.Unlock()
	if s.src.path != "" {
		// The file was readable at start; a rotation that is half done must
		// not turn authentication off.
		_ = s.src.reload()
	}
	return s.src.value
}

// Func is Value, for those who ask at every use.
func (s Secret) Func() func() string { return s.Value }

// Values are the values of a list of secrets, the unset ones left out.
func Values(list []Secret) []string {
	var out []string
	for _, s := range list {
		if v := s.Value(); v != "" {
			out = append(out, v)
		}
	}
	return out
}

// equal says whether two secrets were configured alike.
func (s Secret) equal(t Secret) bool {
	if s.src == nil || t.src == nil {
		return s.src == t.src
	}
	return s.src.spec == t.src.spec && (s.src.path != "" || s.src.value == t.src.value)
}

// reload reads the file unless it is surely the one that was read last. A file
// written within two seconds before it was read is not: its time stamp may not
// tell it from the next write. Call with mu held.
func (s *secretSource) reload() error {
	info, err := os.Stat(s.path)
	if err != nil {
		return cause(err)
	}
	if s.info != nil && os.SameFile(info, s.info) && info.Size() == s.info.Size() &&
		info.ModTime().Equal(s.info.ModTime()) && s.read.Sub(info.ModTime()) > 2*time.Second {
		return nil
	}
	if !info.Mode().IsRegular() {
		return errors.New("is not a file")
	}
	now := time.Now()
	f, err := os.Open(s.path)
	if err != nil {
		return cause(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return cause(err)
	}
	v := strings.TrimRight(string(b), "\r\n")
	switch {
	case v == "":
		return errors.New("the file is empty")
	case len(b) > maxSecretBytes:
		return fmt.Errorf("the file is larger than %d bytes", maxSecretBytes)
	}
	s.value, s.info, s.read = v, info, now
	return nil
}

// cause is an error of a file operation without the operation and the path.
func cause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// String is "[secret]", or "" when it is not set; so are the other ways to print it.
func (s Secret) String() string {
	if s.src == nil {
		return ""
	}
	return hidden
}

// Format prints String whatever the verb is.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue is String for log/slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String for encoders that take text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON is String as JSON.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// MarshalYAML is String as YAML.
func (s Secret) MarshalYAML() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// shownDatabase cuts the password out of a database address. When in doubt it
// cuts too much.
func shownDatabase(addr string) string {
	scheme, rest, ok := strings.Cut(addr, "://")
	if !ok {
		return addr // sqlite:PATH
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		if user, _, has := strings.Cut(rest[:at], ":"); has {
			rest = user + ":xxxxx" + rest[at:]
		}
	}
	if path, query, has := strings.Cut(rest, "?"); has {
		params := strings.Split(query, "&")
		for i, p := range params {
			if k, _, _ := strings.Cut(p, "="); strings.Contains(strings.ToLower(k), "pass") || strings.Contains(k, "%") {
				params[i] = k + "=xxxxx"
			}
		}
		rest = path + "?" + strings.Join(params, "&")
	}
	return scheme + "://" + rest
}
