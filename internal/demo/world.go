package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mergeflow/mergeflow/internal/app"
	"github.com/mergeflow/mergeflow/internal/config"
	"github.com/mergeflow/mergeflow/internal/httpapi"
	"github.com/mergeflow/mergeflow/internal/search"
	"github.com/mergeflow/mergeflow/internal/search/embedded"
	"github.com/mergeflow/mergeflow/internal/testkit/indexer"
	"github.com/mergeflow/mergeflow/internal/testkit/receiver"
)

// repo is the repository of the story.
const repo = "shop/app"

// world is what the story happens in.
type world struct {
	dir      string
	app      *app.App
	api      *httpapi.Client
	indexer  *indexer.Indexer
	receiver *receiver.Receiver
	undo     []func() error
}

// start starts everything, in the order in which the parts need each other.
func (w *world) start(ctx context.Context, version string) error {
	if _, err := exec.LookPath("git"); err != nil {
		return errors.New("the demo needs git, and finds none on the path")
	}
	log, err := os.Create(filepath.Join(w.dir, "server.log"))
	if err != nil {
		return err
	}
	w.onClose(log.Close)

	lines := &late{}
	if w.indexer, err = indexer.Start(indexer.WithIndex(lines)); err != nil {
		return fmt.Errorf("the index: %w", err)
	}
	w.onClose(w.indexer.Close)
	secret := rand.Text()
	if w.receiver, err = receiver.Start(receiver.WithSecret(secret)); err != nil {
		return fmt.Errorf("the receiver: %w", err)
	}
	w.onClose(w.receiver.Close)

	// No environment: what the user has set for a real server is not for this one.
	live, err := config.NewLive(app.ConfigOptions("", nil, map[string]any{
		"listen": "127.0.0.1:0", "data_dir": filepath.Join(w.dir, "data"),
		"search.kind": "http", "search.url": w.indexer.URL(),
		"notify.webhook.url": w.receiver.URL(), "notify.webhook.secret": secret,
		// A broken index shows within seconds instead of minutes.
		"engine.poll": "100ms", "engine.attempts": 3, "engine.backoff": "200ms", "engine.backoff_max": "1s", "deadlines.indexing": "10s",
		// A reported check is seen at once.
		"checks.poll.short": "100ms", "checks.poll.short_tries": 600,
		"log.level": "debug",
	}))
	if err != nil {
		return err
	}
	a, err := app.New(app.Options{Config: live, Version: version, Log: log})
	if err != nil {
		return err
	}
	if err := a.Start(ctx); err != nil {
		return err
	}
	w.app = a
	w.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return a.Stop(ctx)
	})
	x, err := embedded.Open(ctx, embedded.Options{Path: filepath.Join(w.dir, "index", "lines.db"), Source: a.Source()})
	if err != nil {
		return fmt.Errorf("the index: %w", err)
	}
	w.onClose(x.Close)
	lines.is.Store(x)
	w.api = &httpapi.Client{BaseURL: a.URL()}
	return nil
}

func (w *world) onClose(f func() error) { w.undo = append(w.undo, f) }

func (w *world) close() error {
	var errs []error
	for _, f := range slices.Backward(w.undo) {
		errs = append(errs, f())
	}
	w.undo = nil
	return errors.Join(errs...)
}

// clone is the user's work tree; bare is the server's repository.
func (w *world) clone() string { return filepath.Join(w.dir, "clone") }
func (w *world) bare() string {
	return filepath.Join(w.dir, "data", "repos", filepath.FromSlash(repo)+".git")
}

// git runs the stock git client in dir, as a user of no configuration would.
func (w *world) git(ctx context.Context, dir string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "git", args...)
	c.Dir, c.WaitDelay = dir, 5*time.Second
	for _, kv := range os.Environ() {
		// Hooks and wrappers set GIT_DIR and the like; a proxy can't reach this machine's loopback.
		if k, _, _ := strings.Cut(strings.ToUpper(kv), "="); !strings.HasPrefix(k, "GIT_") && !strings.HasSuffix(k, "_PROXY") {
			c.Env = append(c.Env, kv)
		}
	}
	c.Env = append(c.Env, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=Dana Demo", "GIT_AUTHOR_EMAIL=dana@example.com",
		"GIT_COMMITTER_NAME=Dana Demo", "GIT_COMMITTER_EMAIL=dana@example.com")
	out, err := c.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("git %s: %w: %s", args[0], err, text)
	}
	return text, nil
}

// late is an index that is put in after its server has started: the server's
// address belongs to the app's configuration, and the index reads the app's repositories.
type late struct {
	is atomic.Pointer[embedded.Index]
}

var errNoIndex = &search.Error{Op: "index", Detail: "not there yet", Transient: true}

// Covers asks the index.
func (l *late) Covers(ctx context.Context, t search.Target) (bool, error) {
	if x := l.is.Load(); x != nil {
		return x.Covers(ctx, t)
	}
	return false, errNoIndex
}

// Index asks the index.
func (l *late) Index(ctx context.Context, t search.Target) error {
	if x := l.is.Load(); x != nil {
		return x.Index(ctx, t)
	}
	return errNoIndex
}

// Search asks the index.
func (l *late) Search(ctx context.Context, q search.Query) ([]search.Hit, error) {
	if x := l.is.Load(); x != nil {
		return x.Search(ctx, q)
	}
	return nil, errNoIndex
}
