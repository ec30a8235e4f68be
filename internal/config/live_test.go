package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// follower runs a watch and hands out what it says.
type follower struct {
	*Live
	hup     chan os.Signal
	changes chan [2]*Config
	errs    chan error
}

func follow(t *testing.T, path string, floor time.Duration) *follower {
	t.Helper()
	l, err := NewLive(Options{File: path, States: []string{"INDEXING"}, Env: []string{"MERGEFLOW_ENGINE__POLL=2s"}})
	if err != nil {
		t.Fatal(err)
	}
	l.settle, l.floor = 5*time.Millisecond, floor
	f := &follower{l, make(chan os.Signal), make(chan [2]*Config, 10), make(chan error, 10)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.watch(ctx, f.hup, func(old, new *Config) { f.changes <- [2]*Config{old, new} }, func(err error) { f.errs <- err })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// wantLevel waits for the next change and checks what it is.
func (f *follower) wantLevel(t *testing.T, from, to string) {
	t.Helper()
	c := receive(t, f.changes)
	if c[0].Log.Level != from || c[1].Log.Level != to || f.Current() != c[1] {
		t.Errorf("changed from %s to %s (current %s), want %s to %s", c[0].Log.Level, c[1].Log.Level, f.Current().Log.Level, from, to)
	}
}

func TestFileIsReplaced(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, path, text string){
		"in place": put,
		"rename over": func(t *testing.T, path, text string) {
			put(t, path+".new", text)
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		},
		"remove and create": func(t *testing.T, path, text string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			put(t, path, text)
		},
		"link swap": func(t *testing.T, path, text string) {
			// The file is a link through ..data, which is swapped.
			dir := filepath.Dir(path)
			v, err := os.MkdirTemp(dir, "..v")
			if err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(v, "mergeflow.yaml"), text)
			if err := os.Symlink(filepath.Base(v), filepath.Join(dir, "..tmp")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "mergeflow.yaml")
			if name == "link swap" {
				replace(t, path, "log: {level: info}")
				if err := os.Symlink("..data/mergeflow.yaml", path); err != nil {
					t.Fatal(err)
				}
			} else {
				put(t, path, "log: {level: info}")
			}
			f := follow(t, path, time.Hour)
			from := "info"
			for _, to := range []string{"debug", "warn", "error"} { // the watch survives each replacement
				replace(t, path, "log: {level: "+to+"}")
				// A remove may be seen before the create; the running values stay.
				for done := false; !done; {
					select {
					case err := <-f.errs:
						if !strings.Contains(err.Error(), "no such file") {
							t.Fatal(err)
						}
					case c := <-f.changes:
						if c[0].Log.Level != from || c[1].Log.Level != to {
							t.Fatalf("changed from %s to %s, want %s to %s", c[0].Log.Level, c[1].Log.Level, from, to)
						}
						done = true
					case <-time.After(20 * time.Second):
						t.Fatal("no change came")
					}
				}
				from = to
			}
		})
	}
}

func TestBadFileKeepsTheRunningValues(t *testing.T) {
	t.Parallel()
	path := write(t, "log: {level: warn}")
	f := follow(t, path, time.Hour)
	put(t, path, "log: {level: loud}\nengin: {}")
	err := receive(t, f.errs)
	var e *Error
	if !errors.As(err, &e) || len(e.Problems) != 2 || !strings.Contains(err.Error(), "the running values stay") {
		t.Errorf("reported: %v", err)
	}
	if f.Current().Log.Level != "warn" {
		t.Errorf("the level is %s", f.Current().Log.Level)
	}
	put(t, path, "log: {level: debug}")
	f.wantLevel(t, "warn", "debug")
}

func TestOnlyLiveKeysChange(t *testing.T) {
	t.Parallel()
	path := write(t, `
forges: {main: {kind: gitlab, url: "https://a.example", bot_token: x}, old: {kind: localgit}}
deadlines: {indexing: 1m}
reconcile: {min_age: 1m}
`)
	f := follow(t, path, time.Hour)
	put(t, path, `
listen: 127.0.0.1:9
forges: {main: {kind: gitlab, url: "https://a.example", bot_token: y, approve: {max_retries: 7}}, new: {kind: localgit}}
deadlines: {queued: 1h}
checks: {poll: {long: 1m}}
merge: {rebase_poll: {long: 1m}}
projects: [{match: "*"}]
flow: {order: mr_first}
engine: {workers: 2}
`)
	c := receive(t, f.changes)[1]
	got := shownValues(c)
	for key, want := range map[string]string{
		"listen": "127.0.0.1:8080", "forges.main.approve.max_retries": "7", "deadlines.queued": "1h",
		"checks.poll.long": "1m", "merge.rebase_poll.long": "5s", "projects": "[]", "flow.order": "mr_first",
		"reconcile.min_age": "10m", "engine.workers": "16", "engine.poll": "2s", "forges.old.kind": "localgit",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if _, ok := got["deadlines.indexing"]; ok || got["forges.new.kind"] != "" || c.Forges["main"].BotToken.Value() != "x" {
		t.Error("a key that went stays, or one that isn't live came")
	}
	var restart *RestartError
	if err := receive(t, f.errs); !errors.As(err, &restart) {
		t.Fatalf("reported: %v", err)
	}
	want := []string{"engine.workers", "forges.main.bot_token", "forges.new", "forges.old", "listen", "merge.rebase_poll.long", "projects", "public_url"}
	if !slices.Equal(restart.Keys, want) {
		t.Errorf("%v, want %v", restart, want)
	}
	for _, s := range Show(c) {
		fromFile := strings.HasPrefix(s.Origin, path)
		if s.Key == "flow.order" && !fromFile || s.Key == "listen" && s.Origin != "default" {
			t.Errorf("%s comes from %s", s.Key, s.Origin)
		}
	}
}

func TestSignalReloads(t *testing.T) {
	t.Parallel()
	path := write(t, "log: {level: info}")
	f := follow(t, path, time.Hour)
	f.hup <- syscall.SIGHUP // nothing changed: nothing is said
	put(t, path, "log: {level: debug}")
	f.hup <- syscall.SIGHUP
	f.wantLevel(t, "info", "debug")
	if len(f.errs) > 0 || len(f.changes) > 0 {
		t.Error("something was said twice")
	}
}

func TestFloorSeesWhatNoEventTells(t *testing.T) {
	t.Parallel()
	// The folder behind a link isn't watched.
	target := write(t, "log: {level: info}")
	link := filepath.Join(t.TempDir(), "mergeflow.yaml")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	f := follow(t, link, 10*time.Millisecond)
	put(t, target, "log: {level: error}")
	f.wantLevel(t, "info", "error")
}

func TestWatchSeesAChangeMadeBeforeItBegan(t *testing.T) {
	t.Parallel()
	path := write(t, "log: {level: info}")
	l, err := NewLive(Options{File: path})
	if err != nil {
		t.Fatal(err)
	}
	put(t, path, "log: {level: warn}")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Watch itself, with its signal handler and its own intervals.
	l.Watch(ctx, func(_, _ *Config) { cancel() }, nil)
	if l.Current().Log.Level != "warn" {
		t.Errorf("the level is %s", l.Current().Log.Level)
	}
}

func TestWatchWithoutAFile(t *testing.T) {
	t.Parallel()
	l, err := NewLive(Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	l.Watch(ctx, nil, func(err error) { t.Error(err) })
}

func TestNewLiveRefusesABadFile(t *testing.T) {
	t.Parallel()
	if _, err := NewLive(Options{File: write(t, "x: 1")}); err == nil {
		t.Error("no complaint")
	}
}
