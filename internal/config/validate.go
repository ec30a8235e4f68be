package config

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// validate names every field that can't be used, by its path.
func (c *Config) validate(p *problems, opts Options) {
	v := validator{p}
	v.listen(c.Listen)
	v.url("public_url", c.PublicURL, false)
	v.database(c.Database)
	v.notEmpty("data_dir", c.DataDir)
	v.oneOf("flow.order", c.Flow.Order, "approval_first", "mr_first")
	v.forges(c.Forges)
	for i, x := range c.Projects {
		v.project(index("projects", i), x, c.Forges)
	}
	v.poll("checks.poll", c.Checks.Poll)
	v.least("merge.max_rebases", c.Merge.MaxRebases, 0)
	v.poll("merge.rebase_poll", c.Merge.RebasePoll)
	v.approval(c.Approval)
	v.deploy(c.Deploy)
	v.notify(c.Notify)
	v.search(c.Search)
	v.positive("reconcile.min_age", c.Reconcile.MinAge)
	v.positive("reconcile.max_age", c.Reconcile.MaxAge)
	v.atLeast("reconcile.max_age", c.Reconcile.MaxAge, "reconcile.min_age", c.Reconcile.MinAge)
	v.deadlines(c.Deadlines, opts)
	v.engine(c.Engine)
	v.oneOf("auth.tokens_required", c.Auth.TokensRequired, "auto", "true", "false")
	if c.Auth.TokensRequired == "false" && !c.Loopback() {
		p.field("auth.tokens_required", "may be false only while listen is a loopback address")
	}
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "text", "json")
	v.url("telemetry.otlp_endpoint", c.Telemetry.OTLPEndpoint, false)
}

type validator struct{ *problems }

func (v validator) listen(s string) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		v.field("listen", "must be HOST:PORT, not %q", s)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		v.field("listen", "the port must be a number from 0 to 65535, not %q", port)
	} else if strings.ContainsAny(host, " /@?#") {
		v.field("listen", "%q is no host name or address", host)
	}
}

// database says nothing about the address but its scheme: it may hold a password.
func (v validator) database(s Secret) {
	addr := s.Value()
	scheme, rest, ok := strings.Cut(addr, ":")
	switch {
	case addr == "":
		return // data_dir is empty, which is said already
	case ok && scheme == "sqlite":
		if rest == "" || strings.HasPrefix(rest, "//") {
			v.field("database", "must be sqlite:PATH, with a path after the colon")
		}
	case ok && (scheme == "postgres" || scheme == "postgresql"):
		if !strings.HasPrefix(rest, "//") || rest == "//" {
			v.field("database", "must be postgres://USER@HOST/NAME")
		}
	default:
		v.field("database", "must begin with sqlite: or postgres://")
	}
}

var forgeName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

func (v validator) forges(forges map[string]Forge) {
	for _, name := range sortedKeys(forges) {
		f, path := forges[name], "forges."+name
		if !forgeName.MatchString(name) {
			v.field(path, "a forge's name has letters, digits, - and _ only, at most 63")
		}
		a := path + ".approve"
		v.oneOf(a+".mode", f.Approve.Mode, "client", "checklist")
		v.positive(a+".backoff", f.Approve.Backoff)
		if !strings.HasPrefix(f.Approve.CheckItemsPath, "/") {
			v.field(a+".check_items_path", "must begin with /")
		}
		v.placeholders(a+".check_items_path", f.Approve.CheckItemsPath, "project", "iid")
		switch f.Kind {
		case "gitlab":
			v.url(path+".url", f.URL, true)
			v.secret(path+".bot_token", f.BotToken)
			seen := map[string]bool{}
			for i, r := range f.Reviewers {
				rp := index(path+".reviewers", i)
				v.notEmpty(rp+".name", r.Name)
				v.secret(rp+".token", r.Token)
				if seen[r.Name] {
					v.field(rp+".name", "there is another reviewer of this name")
				}
				seen[r.Name] = true
			}
		case "localgit":
			v.unused(path, "kind is localgit", "url", "bot_token", "reviewers", "webhook_secret")
		case "":
			v.field(path+".kind", "is required: localgit or gitlab")
		default:
			v.oneOf(path+".kind", f.Kind, "localgit", "gitlab")
		}
	}
}

func (v validator) project(path string, x Project, forges map[string]Forge) {
	v.pattern(path+".match", x.Match)
	if _, ok := forges[x.Forge]; !ok {
		v.field(path+".forge", "there is no forge %q; there are: %s", x.Forge, strings.Join(sortedKeys(forges), ", "))
	}
	v.positive(path+".checks.none_after", x.Checks.NoneAfter)
	v.branch(path+".mr.branch", x.MR.Branch)
	v.notEmpty(path+".mr.title", x.MR.Title)
	v.placeholders(path+".mr.title", x.MR.Title, "operation", "subject", "target", "project", "title")
	for i, l := range x.MR.Labels {
		if l == "" || strings.Contains(l, ",") {
			v.field(index(path+".mr.labels", i), "a label is not empty and holds no comma")
		}
	}
}

// branch wants {operation} in the name, so that no two operations can meet in
// one branch, and nothing that git refuses in a reference.
func (v validator) branch(path, s string) {
	v.placeholders(path, s, "operation", "subject", "target", "project")
	plain := placeholder.ReplaceAllString(s, "x")
	switch {
	case !strings.Contains(s, "{operation}"):
		v.field(path, "must hold {operation}, so that each operation has a branch of its own")
	case strings.ContainsAny(plain, " ~^:?*[\\{}\x7f") || strings.HasPrefix(plain, "-") ||
		strings.Contains(plain, "..") || strings.Contains(plain, "@{") || strings.HasSuffix(plain, "."):
		v.field(path, "%q is no branch name for git", s)
	default:
		for part := range strings.SplitSeq(plain, "/") {
			if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
				v.field(path, "%q is no branch name for git", s)
			}
		}
	}
}

func (v validator) approval(a Approval) {
	switch a.Kind {
	case "builtin":
		v.unused("approval", "kind is builtin", "url", "secret", "callback_secret")
	case "webhook":
		v.url("approval.url", a.URL, true)
	default:
		v.oneOf("approval.kind", a.Kind, "builtin", "webhook")
	}
	if a.Kind == "builtin" && len(a.Rules) == 0 {
		v.field("approval.rules", "is empty: nobody could approve anything")
	}
	for i, r := range a.Rules {
		path := index("approval.rules", i)
		v.pattern(path+".match", r.Match)
		v.least(path+".quorum", r.Quorum, 1)
		names := slices.Compact(slices.Sorted(slices.Values(r.Approvers)))
		switch {
		case len(names) == 0:
			v.field(path+".approvers", "is empty: nobody could approve; \"*\" stands for everybody")
		case names[0] == "":
			v.field(path+".approvers", "holds an empty name")
		case !slices.Contains(names, "*") && r.Quorum > len(names):
			v.field(path+".quorum", "can never be reached: there are only %d approvers", len(names))
		}
	}
}

func (v validator) deploy(d Deploy) {
	switch d.Kind {
	case "directory":
		v.notEmpty("deploy.path", d.Path)
		v.unused("deploy", "kind is directory", "secret")
	case "callback":
		v.unused("deploy", "kind is callback", "path")
	case "none":
		v.unused("deploy", "kind is none", "path", "secret")
	default:
		v.oneOf("deploy.kind", d.Kind, "directory", "callback", "none")
	}
}

func (v validator) notify(n Notify) {
	for i, s := range n.URLs {
		path := index("notify.urls", i)
		v.secret(path, s)
		if addr := s.Value(); s.IsSet() && !serviceURL.MatchString(addr) {
			v.field(path, "must be a service's URL, such as slack://…")
		}
	}
	v.url("notify.webhook.url", n.Webhook.URL, false)
	if n.Webhook.URL == "" && n.Webhook.Secret.IsSet() {
		v.field("notify.webhook.secret", "is of no use without notify.webhook.url")
	}
}

var serviceURL = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:/?/?\S`)

func (v validator) search(s Search) {
	switch s.Kind {
	case "embedded":
		v.unused("search", "kind is embedded", "url", "secret")
	case "http":
		v.url("search.url", s.URL, true)
	default:
		v.oneOf("search.kind", s.Kind, "embedded", "http")
	}
}

func (v validator) deadlines(deadlines map[string]time.Duration, opts Options) {
	known := func(state string) bool {
		return slices.ContainsFunc(opts.States, func(s string) bool { return strings.EqualFold(s, state) })
	}
	for _, state := range sortedKeys(deadlines) {
		path := "deadlines." + strings.ToLower(state)
		for refused, instead := range opts.RefusedDeadlines {
			if strings.EqualFold(refused, state) {
				v.field(path, "is set by %s", instead)
			}
		}
		if opts.States != nil && state != queued && !known(state) {
			if s := nearestState(state, opts); s != "" {
				v.field(path, "there is no such state; did you mean %s?", s)
			} else {
				v.field(path, "there is no such state")
			}
		}
		v.positive(path, deadlines[state])
	}
}

func nearestState(state string, opts Options) string {
	best, limit := "", len(state)/3+1
	for _, s := range append([]string{queued}, opts.States...) {
		if d := distance(state, strings.ToUpper(s)); d < limit {
			best, limit = strings.ToLower(s), d
		}
	}
	return best
}

func (v validator) engine(e Engine) {
	v.least("engine.workers", e.Workers, 1)
	v.positive("engine.lease", e.Lease)
	v.positive("engine.poll", e.Poll)
	v.least("engine.max_backlog", e.MaxBacklog, 1)
	v.least("engine.attempts", e.Attempts, 1)
	v.positive("engine.backoff", e.Backoff)
	v.positive("engine.backoff_max", e.BackoffMax)
	v.atLeast("engine.backoff_max", e.BackoffMax, "engine.backoff", e.Backoff)
}

func (v validator) poll(path string, x Poll) {
	v.positive(path+".short", x.Short)
	v.least(path+".short_tries", x.ShortTries, 0)
	v.positive(path+".long", x.Long)
	v.positive(path+".budget", x.Budget)
}

func (v validator) positive(path string, d time.Duration) {
	if d <= 0 {
		v.field(path, "must be more than 0, not %s", short(d))
	}
}

func (v validator) atLeast(path string, d time.Duration, other string, least time.Duration) {
	if d < least {
		v.field(path, "must not be less than %s (%s)", other, short(least))
	}
}

func (v validator) least(path string, n, least int) {
	if n < least {
		v.field(path, "must be at least %d, not %d", least, n)
	}
}

func (v validator) notEmpty(path, s string) {
	if strings.TrimSpace(s) == "" {
		v.field(path, "must not be empty")
	}
}

func (v validator) secret(path string, s Secret) {
	if !s.IsSet() {
		v.field(path, "is required")
	}
}

func (v validator) oneOf(path, s string, allowed ...string) {
	if !slices.Contains(allowed, s) {
		v.field(path, "must be %s or %s, not %q", strings.Join(allowed[:len(allowed)-1], ", "), allowed[len(allowed)-1], s)
	}
}

func (v validator) pattern(path, s string) {
	if s == "" {
		v.field(path, "is required; \"*\" matches everything")
	}
}

var placeholder = regexp.MustCompile(`\{([^{}]*)\}`)

func (v validator) placeholders(path, s string, allowed ...string) {
	for _, m := range placeholder.FindAllStringSubmatch(s, -1) {
		if !slices.Contains(allowed, m[1]) {
			v.field(path, "{%s} is no placeholder here; there are {%s}", m[1], strings.Join(allowed, "}, {"))
		}
	}
}

// url never quotes the address: people put credentials into them.
func (v validator) url(path, s string, required bool) {
	if s == "" {
		if required {
			v.field(path, "is required")
		}
		return
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		v.field(path, "is no URL with a host, such as https://example.com")
	case u.Scheme != "http" && u.Scheme != "https":
		v.field(path, "must begin with http:// or https://")
	case u.User != nil:
		v.field(path, "must hold no user or password")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		v.field(path, "must end before ? and #")
	}
}

// unused complains about keys that were given but have no effect.
func (v validator) unused(section, why string, keys ...string) {
	for _, k := range keys {
		path := section + "." + k
		if o, given := v.at[path]; given {
			v.add(o, path, "has no effect while %s", why)
		}
	}
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// short is a duration as a person would write it: 1h, not 1h0m0s.
func short(d time.Duration) string {
	s := fmt.Sprint(d)
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
