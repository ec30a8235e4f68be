package config

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mergeflow.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustLoad(t *testing.T, opts Options) *Config {
	t.Helper()
	c, err := Load(opts)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return c
}

// problemsOf loads a text that is wrong and answers its problems without the
// file's folder.
func problemsOf(t *testing.T, text string, opts Options) []string {
	t.Helper()
	opts.File = write(t, text)
	_, err := Load(opts)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("Load answered %v, want *Error", err)
	}
	var out []string
	for _, p := range e.Problems {
		out = append(out, strings.ReplaceAll(p.String(), filepath.Dir(opts.File)+"/", ""))
	}
	return out
}

func shownValues(c *Config) map[string]string {
	out := map[string]string{}
	for _, s := range Show(c) {
		out[s.Key] = s.Value
	}
	return out
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"listen": "127.0.0.1:8080", "public_url": "http://127.0.0.1:8080",
		"database": "sqlite:mergeflow-data/mergeflow.db", "data_dir": "mergeflow-data",
		"flow.order": "approval_first", "binding.live_is_exclusive": "false",
		"forges.default.kind": "localgit", "forges.default.url": "", "forges.default.bot_token": "",
		"forges.default.reviewers": "[]", "forges.default.webhook_secret": "[]",
		"forges.default.approve.mode": "client", "forges.default.approve.max_retries": "3",
		"forges.default.approve.backoff":          "1s",
		"forges.default.approve.check_items_path": "/projects/{project}/approval_check_items",
		"projects":          "[]",
		"checks.poll.short": "5s", "checks.poll.short_tries": "12", "checks.poll.long": "30s", "checks.poll.budget": "1h",
		"merge.max_rebases": "5", "merge.rebase_poll.short": "1s", "merge.rebase_poll.short_tries": "10",
		"merge.rebase_poll.long": "5s", "merge.rebase_poll.budget": "5m",
		"approval.kind": "builtin", "approval.rules[0].match": "*", "approval.rules[0].approvers": "[*]",
		"approval.rules[0].quorum": "1", "approval.allow_self": "false", "approval.url": "",
		"approval.secret": "", "approval.callback_secret": "[]",
		"deploy.kind": "directory", "deploy.path": "live", "deploy.secret": "[]",
		"notify.urls": "[]", "notify.webhook.url": "", "notify.webhook.secret": "",
		"search.kind": "embedded", "search.url": "", "search.secret": "",
		"reconcile.min_age": "10m", "reconcile.max_age": "168h", "deadlines.queued": "30m",
		"engine.workers": "16", "engine.lease": "1m", "engine.poll": "1s", "engine.max_backlog": "100000",
		"engine.notify": "true", "engine.attempts": "10", "engine.backoff": "500ms", "engine.backoff_max": "30s",
		"auth.tokens_required": "auto", "log.level": "info", "log.format": "text", "telemetry.otlp_endpoint": "",
	}
	c := mustLoad(t, Options{})
	if d := cmp.Diff(want, shownValues(c)); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
	p := c.Project("any/thing")
	if p.Forge != "default" || !p.Checks.Required || p.Checks.NoneAfter != 2*time.Minute ||
		p.MR.Branch != "mergeflow/{operation}" || !p.MR.RemoveSourceBranch || p.Deploy.Environment != "production" {
		t.Errorf("a project that nothing matches has %+v", p)
	}
}

func TestDefaultTextIsTheDefaults(t *testing.T) {
	t.Parallel()
	states := []string{"INDEXING"}
	got := mustLoad(t, Options{File: write(t, Default()), States: states})
	if d := cmp.Diff(shownValues(mustLoad(t, Options{})), shownValues(got)); d != "" {
		t.Errorf("loading Default() (-nothing +text):\n%s", d)
	}

	// With its examples switched on it is valid too, and holds every key.
	var lines []string
	for line := range strings.Lines(Default()) {
		if strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "##") {
			line = line[1:]
		}
		lines = append(lines, line)
	}
	secret := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("projects: []", "projects:", "kind: builtin", "kind: webhook",
		"kind: directory", "kind: callback", "  path: live", "", "kind: embedded", "kind: http",
		"/run/secrets/approval", secret).Replace(strings.Join(lines, ""))
	c := mustLoad(t, Options{File: write(t, text), States: states, Env: []string{
		"GITLAB_BOT_TOKEN=x", "REVIEWER_A=x", "GITLAB_HOOK=x", "APPROVAL_CALLBACK=x", "DEPLOY_CALLBACK=x", "NOTIFY_SECRET=x", "INDEX_SECRET=x",
	}})
	if c.Forges["main"].URL != "https://gitlab.example.com" || len(c.Projects) != 1 || c.Deadlines["INDEXING"] != 2*time.Minute {
		t.Errorf("the examples weren't taken: %+v", c)
	}
	for _, k := range Keys() {
		last := k.Path[strings.LastIndexByte(k.Path, '.')+1:]
		if !strings.HasPrefix(last, "<") && !strings.Contains(Default(), last+":") {
			t.Errorf("Default() doesn't show %s", k.Path)
		}
	}
}

func TestFileEnvFlags(t *testing.T) {
	t.Parallel()
	file := write(t, `
LISTEN: 127.0.0.1:1
data_dir: from-file
Flow: {Order: mr_first}
forges:
  MAIN:
    kind: gitlab
    url: https://gitlab.example.com/
    bot_token: tok
    approve: {max_retries: -4}
projects:
  - {match: "platform/*", forge: Main}
engine: {workers: 3, lease: 90s}
deadlines: {Indexing: 2m}
log:
`)
	c := mustLoad(t, Options{
		File: file,
		Env: []string{
			"MERGEFLOW_DATA_DIR=from-env", "MERGEFLOW_ENGINE__WORKERS=5", "MERGEFLOW_FORGES__MAIN__APPROVE__BACKOFF=3s",
			"MERGEFLOW_DEADLINES__MERGING=4m", "MERGEFLOW_NOTIFY__URLS=slack://a,b", "MERGEFLOW_LOG__LEVEL=",
			"MERGEFLOW_APPROVAL__RULES=[{match: 'a*', approvers: [x, y], quorum: 2}]",
			"MERGEFLOW_SEARCH={kind: http}", "MERGEFLOW_SEARCH__URL=http://127.0.0.1:9",
			"MERGEFLOW_SERVER=http://elsewhere", "MERGEFLOW_TOKEN=t", "MERGEFLOW_TEST_PG=x", "MERGEFLOW_FAULTS=y",
			"MERGEFLOW_PORT_8080_TCP_ADDR=10.0.0.1", "MERGEFLOW_SERVICE_HOST=10.0.0.1", "OTHER=1",
		},
		Flags:  map[string]any{"data_dir": "from-flag", "log.format": "json", "engine.attempts": 2},
		States: []string{"INDEXING", "MERGING"},
	})
	got := shownValues(c)
	for key, want := range map[string]string{
		"listen": "127.0.0.1:1", "public_url": "http://127.0.0.1:1", "data_dir": "from-flag",
		"database": "sqlite:from-flag/mergeflow.db", "flow.order": "mr_first",
		"forges.main.url": "https://gitlab.example.com", "forges.main.approve.max_retries": "0",
		"forges.main.approve.backoff": "3s", "forges.main.approve.mode": "client",
		"forges.default.kind": "localgit", "projects[0].forge": "main",
		"engine.workers": "5", "engine.lease": "1m30s", "engine.attempts": "2",
		"deadlines.indexing": "2m", "deadlines.merging": "4m", "deadlines.queued": "30m",
		"notify.urls": "[[secret]]", "approval.rules[0].approvers": "[x, y]", "approval.rules[0].quorum": "2",
		"search.kind": "http", "search.url": "http://127.0.0.1:9", "log.format": "json", "log.level": "info",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if v := c.Notify.URLs[0].Value(); v != "slack://a,b" {
		t.Errorf("the URL is %q", v)
	}
	if d := c.StateDeadlines(); len(d) != 2 || d["INDEXING"] != 2*time.Minute || c.Queued() != 30*time.Minute {
		t.Errorf("deadlines: %v, queued %v", d, c.Queued())
	}
	origins := map[string]string{}
	for _, s := range Show(c) {
		origins[s.Key] = strings.ReplaceAll(s.Origin, file, "F")
	}
	for key, want := range map[string]string{
		"listen": "F:2:9", "data_dir": "flag --data-dir", "engine.workers": "env MERGEFLOW_ENGINE__WORKERS",
		"engine.lease": "F:13:29", "engine.poll": "default", "forges.main.approve.backoff": "env MERGEFLOW_FORGES__MAIN__APPROVE__BACKOFF",
		"forges.default.kind": "default", "projects[0].forge": "F:12:34", "log.format": "flag --log-format",
		"approval.rules[0].quorum": "env MERGEFLOW_APPROVAL__RULES",
	} {
		if origins[key] != want {
			t.Errorf("%s comes from %q, want %q", key, origins[key], want)
		}
	}
}

func TestConfigVariableNamesTheFile(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, Options{Env: []string{"MERGEFLOW_CONFIG=" + write(t, "data_dir: here")}})
	if c.DataDir != "here" {
		t.Errorf("data_dir is %q", c.DataDir)
	}
	_, err := Load(Options{File: "/nowhere/mergeflow.yaml"})
	if err == nil || err.Error() != "/nowhere/mergeflow.yaml: no such file or directory" {
		t.Errorf("a file that isn't there: %v", err)
	}
}

func TestEveryProblemAtItsPlace(t *testing.T) {
	t.Parallel()
	got := problemsOf(t, `listne: x
engine:
  worker: 3
  lease: 60
  poll: -1s
  attempts: many
  backoff: 1m
workers: 4
approval:
  rules:
    - {match: "*", approvers: [a, a], quorum: 2}
    - {approvers: []}
    - {match: "x", approvers: ["*"], quorum: 0}
projects: [{match: "*", forge: nope, mr: {branch: "x {operation}", title: "{oops}"}}]
deadlines: {indexin: 2m, validating: 1m, merging: 0s}
log: {level: loud, LEVEL: info}
flow: mr_first
zzzzzzzz: 1
`, Options{
		States:           []string{"INDEXING", "VALIDATING", "MERGING"},
		RefusedDeadlines: map[string]string{"VALIDATING": "checks.poll.budget"},
		Env:              []string{"MERGEFLOW_ENGIN__LEASE=3s", "MERGEFLOW_LISTEN=nonsense"},
	})
	want := []string{
		`mergeflow.yaml:1:1: listne: unknown key; did you mean listen?`,
		`mergeflow.yaml:3:3: engine.worker: unknown key; did you mean workers?`,
		`mergeflow.yaml:4:10: engine.lease: a duration needs a unit, as in "60s" or "5m", not "60"`,
		`mergeflow.yaml:5:9: engine.poll: must be more than 0, not -1s`,
		`mergeflow.yaml:6:13: engine.attempts: must be a whole number, not "many"`,
		`mergeflow.yaml:2:1: engine.backoff_max: must not be less than engine.backoff (1m)`,
		`mergeflow.yaml:8:1: workers: unknown key; did you mean engine.workers?`,
		`mergeflow.yaml:11:47: approval.rules[0].quorum: can never be reached: there are only 1 approvers`,
		`mergeflow.yaml:12:7: approval.rules[1].match: is required; "*" matches everything`,
		`mergeflow.yaml:12:19: approval.rules[1].approvers: is empty: nobody could approve; "*" stands for everybody`,
		`mergeflow.yaml:13:46: approval.rules[2].quorum: must be at least 1, not 0`,
		`mergeflow.yaml:14:32: projects[0].forge: there is no forge "nope"; there are: default`,
		`mergeflow.yaml:14:51: projects[0].mr.branch: "x {operation}" is no branch name for git`,
		`mergeflow.yaml:14:75: projects[0].mr.title: {oops} is no placeholder here; there are {operation}, {subject}, {target}, {project}, {title}`,
		`mergeflow.yaml:15:22: deadlines.indexin: there is no such state; did you mean indexing?`,
		`mergeflow.yaml:15:38: deadlines.validating: is set by checks.poll.budget`,
		`mergeflow.yaml:15:51: deadlines.merging: must be more than 0, not 0s`,
		`mergeflow.yaml:16:14: log.level: must be debug, info, warn or error, not "loud"`,
		`mergeflow.yaml:16:20: LEVEL is given twice, first in line 16`,
		`mergeflow.yaml:17:7: flow: must be a section, not a single value`,
		`mergeflow.yaml:18:1: zzzzzzzz: unknown key`,
		`env MERGEFLOW_ENGIN__LEASE: engin: unknown key; did you mean engine?`,
		`env MERGEFLOW_LISTEN: listen: must be HOST:PORT, not "nonsense"`,
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}

func TestOneBadField(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a: [1": "sequence end token ']' not found",
		"- a":   "must be a section with keys, not a list",
		"listen: 127.0.0.1:8080\n---\nlisten: 127.0.0.1:8081":          "is a second document",
		"listen: 127.0.0.1:99999":                                      "from 0 to 65535",
		"listen: [a]":                                                  "listen: must be a single value, not a list",
		"public_url: ftp://x.example":                                  "must begin with http:// or https://",
		"public_url: https://u:geheim@x.example":                       "must hold no user or password",
		"database: mysql://u:geheim@h/d":                               "must begin with sqlite: or postgres://",
		"database: 'sqlite:'":                                          "must be sqlite:PATH",
		"data_dir: ''":                                                 "data_dir: must not be empty",
		"flow: {order: x}":                                             "must be approval_first or mr_first",
		"forges: {main: {url: https://x.example}}":                     "forges.main.kind: is required",
		"forges: {main: {kind: gitlab}}":                               "forges.main.bot_token: is required",
		"forges: {main: {kind: svn}}":                                  "must be localgit or gitlab",
		"forges: {default: {url: https://x.example}}":                  "has no effect while kind is localgit",
		"forges: {a/b: {kind: localgit}}":                              "a forge's name",
		"forges: {default: {approve: {mode: x}}}":                      "must be client or checklist",
		"approval: {kind: webhook}":                                    "approval.url: is required",
		"approval: {secret: geheim}":                                   "has no effect while kind is builtin",
		"deploy: {kind: none, path: x}":                                "deploy.path: has no effect",
		"search: {kind: http}":                                         "search.url: is required",
		"notify: {urls: [geheim]}":                                     "notify.urls[0]: must be a service's URL",
		"notify: {webhook: {secret: geheim}}":                          "is of no use without",
		"projects: [{match: '*', mr: {branch: fixed}}]":                "must hold {operation}",
		"projects: [{match: '*', mr: {branch: '-{operation}'}}]":       "no branch name",
		"projects: [{match: '*', mr: {branch: 'a//{operation}'}}]":     "no branch name",
		"projects: [{match: '*', mr: {branch: '{operation}.lock'}}]":   "no branch name",
		"projects: [null]":                                             "projects[0]: is empty",
		"engine: {workers: 0}":                                         "must be at least 1",
		"engine: {notify: yes}":                                        "must be true or false",
		"reconcile: {min_age: 2h, max_age: 1h}":                        "must not be less than reconcile.min_age (2h)",
		"listen: 0.0.0.0:1\nauth: {tokens_required: false}":            "may be false only while listen is a loopback",
		"notify: {webhook: {url: 'https://x.example', secret: env:N}}": "the environment variable N is not set",
		"search: {secret: file:/nowhere}":                              "/nowhere: no such file",
		"checks: {poll: {long: 1d}}":                                   "must be a duration such as",
		"log: *nothing":                                                "no anchor before it",
	} {
		got := strings.Join(problemsOf(t, text, Options{}), "\n")
		if !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if strings.Contains(got, "geheim") {
			t.Errorf("%q: the problem shows the secret: %q", text, got)
		}
	}
}

func TestSyntaxErrorsDontQuoteTheFile(t *testing.T) {
	t.Parallel()
	got := problemsOf(t, "approval:\n  secret: geheim\n bad: [", Options{})
	if len(got) != 1 || strings.Contains(got[0], "geheim") || !strings.HasPrefix(got[0], "mergeflow.yaml:") {
		t.Errorf("problems: %q", got)
	}
}

func TestAnchorsAndMerges(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, Options{File: write(t, `
checks: {poll: &slow {short: 7s, long: 1m}}
merge: {rebase_poll: {<<: *slow, short: 9s}}
`), Env: []string{"MERGEFLOW_MERGE__REBASE_POLL__LONG=2m"}})
	if c.Checks.Poll.Short != 7*time.Second || c.Checks.Poll.Long != time.Minute ||
		c.Merge.RebasePoll.Short != 9*time.Second || c.Merge.RebasePoll.Long != 2*time.Minute {
		t.Errorf("polls: %+v, %+v", c.Checks.Poll, c.Merge.RebasePoll)
	}
}

func TestUnknownVariableThatASecretUses(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, Options{
		File: write(t, "search: {kind: http, url: 'http://127.0.0.1:1', secret: env:MERGEFLOW_INDEX_SECRET}"),
		Env:  []string{"MERGEFLOW_INDEX_SECRET=s3"},
	})
	if c.Search.Secret.Value() != "s3" {
		t.Error("the secret wasn't taken")
	}
	for env, want := range map[string]string{
		"MERGEFLOW_INDEX_SECRET=s3":       "env MERGEFLOW_INDEX_SECRET: index_secret: unknown key",
		"MERGEFLOW_NOTIFY__URLS__0=x":     "a list is set as a whole",
		"MERGEFLOW_LISTEN__HOST=x":        "listen.host: has no parts",
		"MERGEFLOW_FORGES____KIND=x":      "a name is missing",
		"MERGEFLOW_SEARCH=http":           "must be a section",
		"MERGEFLOW_ENGINE__BACKOFF=1":     "env MERGEFLOW_ENGINE__BACKOFF: engine.backoff: a duration needs a unit",
		"MERGEFLOW_FORGES__X__BOT_TOKN=1": "did you mean bot_token?",
	} {
		_, err := Load(Options{Env: []string{env}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", env, err, want)
		}
	}
	if _, err := Load(Options{Flags: map[string]any{"engine.wrokers": 1}}); err == nil ||
		err.Error() != "flag --engine-wrokers: engine.wrokers: unknown key; did you mean workers?" {
		t.Errorf("an unknown flag: %v", err)
	}
}

func TestProjectsAndRules(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, Options{File: write(t, `
projects:
  - {match: "platform/*", deploy: {environment: a}}
  - {match: "platform/x", deploy: {environment: b}}
approval: {rules: [{match: "prod/*", approvers: [x]}]}
`)})
	if p := c.Project("platform/x/y"); p.Deploy.Environment != "a" {
		t.Errorf("the first match wins, got %+v", p)
	}
	if r, ok := c.Rule("prod/eu"); !ok || r.Quorum != 1 {
		t.Errorf("rule: %+v %v", r, ok)
	}
	if _, ok := c.Rule("dev"); ok {
		t.Error("a rule for what none names")
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "", true}, {"*", "a/b", true}, {"a/*", "a/b/c", true}, {"a/*", "b/a/", false}, {"a?c", "aäc", true},
		{"a?c", "ac", false}, {"*b*d", "abbcd", true}, {"*b*d", "abbcdx", false}, {"a", "a", true}, {"a", "ab", false},
		{"", "", true}, {"", "a", false}, {"a**", "a", true}, {"[a]", "a", false}, {"*a*a*a*a*b", strings.Repeat("a", 200), false},
	} {
		if got := Match(x.pattern, x.name); got != x.want {
			t.Errorf("Match(%q, %q) is %v", x.pattern, x.name, got)
		}
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]struct {
		url      string
		loopback bool
	}{
		"127.0.0.1:0": {"http://127.0.0.1:0", true}, "localhost:81": {"http://localhost:81", true},
		"[::1]:80": {"http://[::1]:80", true}, ":8080": {"http://127.0.0.1:8080", false},
		"0.0.0.0:80": {"http://127.0.0.1:80", false}, "[::]:80": {"http://127.0.0.1:80", false},
		"10.1.2.3:80": {"http://10.1.2.3:80", false}, "host.example:80": {"http://host.example:80", false},
	} {
		c := mustLoad(t, Options{Flags: map[string]any{"listen": listen}})
		if c.PublicURL != want.url || c.Loopback() != want.loopback || c.TokensRequired() == want.loopback {
			t.Errorf("listen %s: %s, loopback %v, tokens %v", listen, c.PublicURL, c.Loopback(), c.TokensRequired())
		}
	}
	if got := mustLoad(t, Options{}).PublicURLAt("127.0.0.1:4711"); got != "http://127.0.0.1:4711" {
		t.Errorf("derived: %s", got)
	}
	c := mustLoad(t, Options{Flags: map[string]any{"public_url": "https://mf.example/x/", "deploy.path": "/srv/live"}})
	if c.PublicURLAt("127.0.0.1:4711") != "https://mf.example/x" || c.DeployPath() != "/srv/live" {
		t.Errorf("configured: %s, %s", c.PublicURLAt("127.0.0.1:4711"), c.DeployPath())
	}
	if got := mustLoad(t, Options{Flags: map[string]any{"data_dir": "d"}}).DeployPath(); got != "d/live" {
		t.Errorf("deploy path: %s", got)
	}
	if !mustLoad(t, Options{Env: []string{"MERGEFLOW_AUTH__TOKENS_REQUIRED=true"}}).TokensRequired() {
		t.Error("tokens_required: true is no requirement")
	}
}

func TestCheckIsLoad(t *testing.T) {
	t.Parallel()
	if err := Check(Options{}); err != nil {
		t.Errorf("nothing is valid: %v", err)
	}
	if err := Check(Options{Flags: map[string]any{"engine.workers": 0}}); err == nil {
		t.Error("no complaint")
	}
}

func TestKeysCoverTheDefaults(t *testing.T) {
	t.Parallel()
	keys := map[string]bool{}
	for _, k := range Keys() {
		keys[k.Path] = true
	}
	for _, want := range []string{"listen", "forges.<name>.reviewers[].token", "projects[].mr.branch", "deadlines.<state>", "approval.rules[].quorum"} {
		if !keys[want] {
			t.Errorf("no key %s in %v", want, slices.Sorted(maps.Keys(keys)))
		}
	}
}
