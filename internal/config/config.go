package config

import (
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// Config is one validated configuration. It is immutable after Load: share the
// pointer, copy nothing, change nothing. Secrets print as "[secret]" everywhere.
//
// The tag `cfg` names a key; ",live" marks what a reload may change, with all
// that is below it. The tag `keys` says how the keys of a map are written:
// "lower" or "upper", whatever case the file has.
type Config struct {
	Listen    string `cfg:"listen"`     // host:port; an empty host means all interfaces
	PublicURL string `cfg:"public_url"` // without a trailing slash; derived from Listen when unset, see PublicURLAt
	Database  Secret `cfg:"database"`   // sqlite:PATH or postgres://…; derived from DataDir when unset; may hold a password
	DataDir   string `cfg:"data_dir"`

	Flow      Flow                     `cfg:"flow"`
	Binding   Binding                  `cfg:"binding"`
	Forges    map[string]Forge         `cfg:"forges" keys:"lower" in:"name"`
	Projects  []Project                `cfg:"projects"`
	Checks    Checks                   `cfg:"checks"`
	Merge     Merge                    `cfg:"merge"`
	Approval  Approval                 `cfg:"approval"`
	Deploy    Deploy                   `cfg:"deploy"`
	Notify    Notify                   `cfg:"notify"`
	Search    Search                   `cfg:"search"`
	Reconcile Reconcile                `cfg:"reconcile,live"`
	Deadlines map[string]time.Duration `cfg:"deadlines,live" keys:"upper" in:"state"` // by state name in upper case, and QUEUED; see Queued, StateDeadlines
	Engine    Engine                   `cfg:"engine"`
	Auth      Auth                     `cfg:"auth"`
	Log       Log                      `cfg:"log"`
	Telemetry Telemetry                `cfg:"telemetry"`

	origins map[string]Origin // by path; what isn't here is a default
}

// Flow says how changes run.
type Flow struct {
	Order string `cfg:"order,live"` // approval_first or mr_first
}

// Binding says when a target is free again.
type Binding struct {
	LiveIsExclusive bool `cfg:"live_is_exclusive"` // a live change blocks the next one for the same target
}

// Forge is one place where repositories live.
type Forge struct {
	Kind          string     `cfg:"kind"` // localgit or gitlab
	URL           string     `cfg:"url"`  // gitlab; without a trailing slash
	BotToken      Secret     `cfg:"bot_token"`
	Reviewers     []Reviewer `cfg:"reviewers"`
	WebhookSecret []Secret   `cfg:"webhook_secret"` // any of these is valid
	Approve       Approve    `cfg:"approve,live"`
}

// Reviewer is an account that approves merge requests.
type Reviewer struct {
	Name  string `cfg:"name"`
	Token Secret `cfg:"token"`
}

// Approve says how reviewer accounts approve on the forge.
type Approve struct {
	Mode           string        `cfg:"mode"`        // client or checklist
	MaxRetries     int           `cfg:"max_retries"` // never negative after Load
	Backoff        time.Duration `cfg:"backoff"`
	CheckItemsPath string        `cfg:"check_items_path"` // mode checklist; {project} and {iid} are replaced
}

// Project holds the settings of the projects that Match names.
type Project struct {
	Match  string        `cfg:"match"` // see Match
	Forge  string        `cfg:"forge"` // a key of Forges
	Checks ProjectChecks `cfg:"checks"`
	MR     MR            `cfg:"mr"`
	Deploy ProjectDeploy `cfg:"deploy"`
}

// ProjectChecks says what a project demands of its CI.
type ProjectChecks struct {
	Required  bool          `cfg:"required"`   // a pipeline must exist
	NoneAfter time.Duration `cfg:"none_after"` // how long to wait for one to appear
}

// MR is how merge requests are made. The texts hold {placeholders}.
type MR struct {
	Branch             string   `cfg:"branch"`
	Title              string   `cfg:"title"`
	Labels             []string `cfg:"labels"`
	RemoveSourceBranch bool     `cfg:"remove_source_branch"`
}

// ProjectDeploy says how a project goes live.
type ProjectDeploy struct {
	Environment string `cfg:"environment"`
	InOrder     bool   `cfg:"in_order"` // deploys run in merge order and skip nothing
}

// Checks is the schedule of waiting for CI.
type Checks struct {
	Poll Poll `cfg:"poll,live"`
}

// Poll is a tiered schedule: ShortTries looks Short apart, then one every Long,
// until Budget is used up.
type Poll struct {
	Short      time.Duration `cfg:"short"`
	ShortTries int           `cfg:"short_tries"`
	Long       time.Duration `cfg:"long"`
	Budget     time.Duration `cfg:"budget"`
}

// Merge is how often and how long a merge request that fell behind is rebased.
type Merge struct {
	MaxRebases int  `cfg:"max_rebases"`
	RebasePoll Poll `cfg:"rebase_poll"`
}

// Approval is who says yes.
type Approval struct {
	Kind           string   `cfg:"kind"` // builtin or webhook
	Rules          []Rule   `cfg:"rules"`
	AllowSelf      bool     `cfg:"allow_self"` // requesters may approve their own
	URL            string   `cfg:"url"`
	Secret         Secret   `cfg:"secret"`          // for calls that mergeflow makes
	CallbackSecret []Secret `cfg:"callback_secret"` // for calls that it gets; any of these is valid
}

// Rule says who approves the targets that Match names; the first that matches counts.
type Rule struct {
	Match     string   `cfg:"match"`
	Approvers []string `cfg:"approvers"` // "*": everybody with the role
	Quorum    int      `cfg:"quorum"`
}

// Deploy is how merged changes go live.
type Deploy struct {
	Kind   string   `cfg:"kind"`   // directory, callback or none
	Path   string   `cfg:"path"`   // directory: relative to DataDir, see DeployPath
	Secret []Secret `cfg:"secret"` // callback: any of these is valid
}

// Notify is who is told. Chat and mail URLs hold credentials, hence Secret.
type Notify struct {
	URLs    []Secret `cfg:"urls"`
	Webhook Webhook  `cfg:"webhook"`
}

// Webhook is an address that mergeflow calls, and what it signs with.
type Webhook struct {
	URL    string `cfg:"url"`
	Secret Secret `cfg:"secret"`
}

// Search is the code index.
type Search struct {
	Kind   string `cfg:"kind"` // embedded or http
	URL    string `cfg:"url"`
	Secret Secret `cfg:"secret"`
}

// Reconcile is when mergeflow asks by itself whether a merged change is live.
type Reconcile struct {
	MinAge time.Duration `cfg:"min_age"`
	MaxAge time.Duration `cfg:"max_age"`
}

// Engine is how commands are performed.
type Engine struct {
	Workers    int           `cfg:"workers"`
	Lease      time.Duration `cfg:"lease"`
	Poll       time.Duration `cfg:"poll"`
	MaxBacklog int           `cfg:"max_backlog"`
	Notify     bool          `cfg:"notify"` // wake other instances by the database's notifications
	Attempts   int           `cfg:"attempts"`
	Backoff    time.Duration `cfg:"backoff"`
	BackoffMax time.Duration `cfg:"backoff_max"`
}

// Auth says whether callers must show a token.
type Auth struct {
	TokensRequired string `cfg:"tokens_required"` // auto, true or false; see TokensRequired
}

// Log is what is logged, and how.
type Log struct {
	Level  string `cfg:"level,live"` // debug, info, warn or error
	Format string `cfg:"format"`     // text or json
}

// Telemetry is where traces go.
type Telemetry struct {
	OTLPEndpoint string `cfg:"otlp_endpoint"`
}

// The key of Deadlines that is no state: how long a command may wait in the queue.
const queued = "QUEUED"

// Queued is how long a command may wait for its first claim.
func (c *Config) Queued() time.Duration { return c.Deadlines[queued] }

// StateDeadlines are the configured deadlines by state name, without the queue's.
func (c *Config) StateDeadlines() map[string]time.Duration {
	out := make(map[string]time.Duration, len(c.Deadlines))
	for k, d := range c.Deadlines {
		if k != queued {
			out[k] = d
		}
	}
	return out
}

// Project answers the settings of a project: the first that matches its name,
// or the defaults on the forge `default`.
func (c *Config) Project(name string) Project {
	for _, p := range c.Projects {
		if Match(p.Match, name) {
			return p
		}
	}
	var p Project
	p.setDefaults()
	p.Match = "*"
	return p
}

// Rule answers the approval rule for a name, by the first that matches.
func (c *Config) Rule(name string) (Rule, bool) {
	for _, r := range c.Approval.Rules {
		if Match(r.Match, name) {
			return r, true
		}
	}
	return Rule{}, false
}

// DeployPath is the folder of kind directory; a relative path begins at DataDir.
func (c *Config) DeployPath() string {
	if filepath.IsAbs(c.Deploy.Path) {
		return c.Deploy.Path
	}
	return filepath.Join(c.DataDir, c.Deploy.Path)
}

// PublicURLAt is the address for links and callbacks once the server listens at
// addr (host:port): the configured one, or else the one that it really got, so
// that port 0 works.
func (c *Config) PublicURLAt(addr string) string {
	if _, set := c.origins["public_url"]; set {
		return c.PublicURL
	}
	return derivedURL(addr)
}

// TokensRequired says whether callers must show a token: on anything but
// loopback, unless it is set.
func (c *Config) TokensRequired() bool {
	switch c.Auth.TokensRequired {
	case "true":
		return true
	case "false":
		return false
	}
	return !c.Loopback()
}

// Loopback says whether Listen can be reached from this machine only. A name
// other than localhost counts as reachable from outside.
func (c *Config) Loopback() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// DatabaseShown is the database's address without its password.
func (c *Config) DatabaseShown() string { return shownDatabase(c.Database.Value()) }
