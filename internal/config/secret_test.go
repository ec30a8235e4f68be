package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	const secret = "geheim-4711"
	file := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := mustLoad(t, Options{
		File: write(t, `
database: postgres://mergeflow:`+secret+`@db.example/mergeflow?sslpassword=`+secret+`&sslmode=require
forges:
  main:
    kind: gitlab
    url: https://gitlab.example.com
    bot_token: `+secret+`
    reviewers: [{name: a, token: env:TOKEN}]
    webhook_secret: [file:`+file+`, `+secret+`]
approval: {kind: webhook, url: "https://x.example", secret: `+secret+`}
notify: {urls: ["slack://`+secret+`@x"], webhook: {url: "https://x.example", secret: `+secret+`}}
`),
		Env: []string{"TOKEN=" + secret},
	})
	f := c.Forges["main"]
	if f.BotToken.Value() != secret || f.Reviewers[0].Token.Func()() != secret || strings.Join(Values(f.WebhookSecret), " ") != secret+" "+secret {
		t.Fatal("the values are wrong")
	}

	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", *c)
		fmt.Fprintf(&out, verb+"\n", f.BotToken)
	}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "config", c, "secret", f.BotToken, "list", f.WebhookSecret)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "config", c, "secret", f.BotToken, "list", f.WebhookSecret)
	j, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	y, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	s, err := json.Marshal(Show(c))
	if err != nil {
		t.Fatal(err)
	}
	all := out.String() + string(j) + string(y) + string(s)
	hex := fmt.Sprintf("%x", secret)
	if strings.Contains(all, secret) || strings.Contains(all, hex) {
		t.Errorf("a secret is printed:\n%s", all)
	}
	if !strings.Contains(string(j), hidden) || !strings.Contains(string(y), hidden) || !strings.Contains(out.String(), hidden) {
		t.Error("secrets that are set should show as [secret]")
	}
	if got := shownValues(c)["database"]; got != "postgres://mergeflow:xxxxx@db.example/mergeflow?sslpassword=xxxxx&sslmode=require" {
		t.Errorf("database is shown as %s", got)
	}
}

func TestShownDatabase(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"sqlite:a/b.db":                    "sqlite:a/b.db",
		"postgres://u@h/d":                 "postgres://u@h/d",
		"postgres://u:p@h1:1,h2:2/d":       "postgres://u:xxxxx@h1:1,h2:2/d",
		"postgres://u:p/?@q@h/d":           "postgres://u:xxxxx@h/d",
		"postgres:///d?host=/run&PASS=x":   "postgres:///d?host=/run&PASS=xxxxx",
		"postgres:///d?%70assword=p&a=b@c": "postgres:///d?%70assword=xxxxx&a=b@c",
	} {
		if got := shownDatabase(in); got != want {
			t.Errorf("%s is shown as %s, want %s", in, got, want)
		}
	}
}

func TestSecretFileFollowsItsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("one\n")
	s, err := newSecret("file:"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := func(v string) {
		t.Helper()
		if got := s.Value(); got != v {
			t.Errorf("the value is %q, want %q", got, v)
		}
	}
	want("one")
	put("two\r\n") // same length, same second
	want("two")
	put("")
	want("two") // half written
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("two")

	// As Kubernetes does it: a link to a folder is swapped.
	for _, v := range []string{"3", "4"} {
		if err := os.Mkdir(filepath.Join(dir, "v"+v), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "v"+v, "token"), []byte("value"+v), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("v"+v, filepath.Join(dir, "next")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
		if v == "3" {
			if err := os.Symlink("..data/token", path); err != nil {
				t.Fatal(err)
			}
		}
		want("value" + v)
	}
}

func TestSecretFileIsNotReadWhenItIsOld(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	s, err := newSecret("file:"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The same file with the same size and time counts as unchanged.
	if err := os.WriteFile(path, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if got := s.Value(); got != "one" {
		t.Errorf("read again: %q", got)
	}
}

func TestSecretErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty, large := filepath.Join(dir, "empty"), filepath.Join(dir, "large")
	for path, text := range map[string]string{empty: "\n", large: strings.Repeat("x", maxSecretBytes+1)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	none := func(string) (string, bool) { return "", true }
	for spec, want := range map[string]string{
		"env:EMPTY": "the environment variable EMPTY is not set", "file:" + empty: empty + ": the file is empty",
		"file:" + large: large + ": the file is larger than 65536 bytes", "file:" + dir: dir + ": is not a file",
		"file:" + dir + "/x": dir + "/x: no such file or directory",
	} {
		if _, err := newSecret(spec, none); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
	var unset Secret
	if unset.IsSet() || unset.Value() != "" || unset.String() != "" || Literal("").IsSet() {
		t.Error("the zero value isn't unset")
	}
}
