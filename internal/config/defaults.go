package config

import (
	_ "embed"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

//go:embed default.yaml
var defaultText string

// Default is a configuration file that says what is so anyway: every key that
// has a default with that default, every other key in a comment.
func Default() string { return defaultText }

// defaults is the configuration of an empty file. What depends on other values
// is filled in by derive.
func defaults() *Config {
	return &Config{
		Listen:    "127.0.0.1:8080",
		DataDir:   "mergeflow-data",
		Flow:      Flow{Order: "approval_first"},
		Forges:    map[string]Forge{"default": defaultForge()},
		Checks:    Checks{Poll: Poll{Short: 5 * time.Second, ShortTries: 12, Long: 30 * time.Second, Budget: time.Hour}},
		Merge:     Merge{MaxRebases: 5, RebasePoll: Poll{Short: time.Second, ShortTries: 10, Long: 5 * time.Second, Budget: 5 * time.Minute}},
		Approval:  Approval{Kind: "builtin", Rules: []Rule{{Match: "*", Approvers: []string{"*"}, Quorum: 1}}},
		Deploy:    Deploy{Kind: "directory", Path: "live"},
		Search:    Search{Kind: "embedded"},
		Reconcile: Reconcile{MinAge: 10 * time.Minute, MaxAge: 7 * 24 * time.Hour},
		Deadlines: map[string]time.Duration{queued: 30 * time.Minute},
		Engine: Engine{
			Workers: 16, Lease: time.Minute, Poll: time.Second, MaxBacklog: 100_000, Notify: true,
			Attempts: 10, Backoff: 500 * time.Millisecond, BackoffMax: 30 * time.Second,
		},
		Auth:    Auth{TokensRequired: "auto"},
		Log:     Log{Level: "info", Format: "text"},
		origins: map[string]Origin{},
	}
}

func defaultForge() Forge {
	f := Forge{Kind: "localgit"}
	f.Approve.setDefaults()
	return f
}

// defaulter gives a new element of a list or map its defaults before the file
// is laid over it.
type defaulter interface{ setDefaults() }

func (f *Forge) setDefaults() { f.Approve.setDefaults() }

func (a *Approve) setDefaults() {
	*a = Approve{
		Mode: "client", MaxRetries: 3, Backoff: time.Second,
		CheckItemsPath: "/projects/{project}/approval_check_items",
	}
}

func (p *Project) setDefaults() {
	*p = Project{
		Forge:  "default",
		Checks: ProjectChecks{Required: true, NoneAfter: 2 * time.Minute},
		MR:     MR{Branch: "mergeflow/{operation}", Title: "{title}", RemoveSourceBranch: true},
		Deploy: ProjectDeploy{Environment: "production"},
	}
}

func (r *Rule) setDefaults() { r.Quorum = 1 }

// derive fills in what follows from other values and writes values in their one form.
func (c *Config) derive() {
	if c.PublicURL == "" {
		c.PublicURL = derivedURL(c.Listen)
	}
	if !c.Database.IsSet() && c.DataDir != "" {
		c.Database = Literal("sqlite:" + filepath.Join(c.DataDir, "mergeflow.db"))
	}
	c.PublicURL = strings.TrimRight(c.PublicURL, "/")
	c.Approval.URL = strings.TrimRight(c.Approval.URL, "/")
	c.Search.URL = strings.TrimRight(c.Search.URL, "/")
	for name, f := range c.Forges {
		f.URL = strings.TrimRight(f.URL, "/")
		f.Approve.MaxRetries = max(0, f.Approve.MaxRetries)
		c.Forges[name] = f
	}
	for i := range c.Projects {
		c.Projects[i].Forge = strings.ToLower(c.Projects[i].Forge)
	}
}

// derivedURL is how this machine reaches a listening address; all interfaces
// are reached by loopback.
func derivedURL(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return ""
	}
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}
