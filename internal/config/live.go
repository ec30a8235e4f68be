package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Live holds the running configuration and follows its file. All methods are
// safe for concurrent use.
type Live struct {
	opts    Options
	current atomic.Pointer[Config]

	mu   sync.Mutex // one look at a time
	seen content    // what the running values were made of, or what was refused last

	settle time.Duration // a change counts when two looks this far apart agree
	floor  time.Duration // looks without an event, for file systems that send none
}

// content is what a look found: the hash of the file, or why it can't be read.
type content struct {
	hash [sha256.Size]byte
	err  string
}

// NewLive loads the configuration that will be followed; its errors are Load's.
func NewLive(opts Options) (*Live, error) {
	l := &Live{opts: opts, settle: 100 * time.Millisecond, floor: 15 * time.Second}
	text, readErr := readFile(opts.path())
	c, err := load(opts, text, readErr)
	if err != nil {
		return nil, err
	}
	l.current.Store(c)
	l.seen = contentOf(text, readErr)
	return l, nil
}

// Current is the running configuration. Ask again at each use: the live keys
// change. Keep no secret's value; Secret.Value follows its file.
func (l *Live) Current() *Config { return l.current.Load() }

// Watch follows the file and SIGHUP until ctx ends, and returns then. onChange
// is called after live values have changed, with the configuration before and
// after. onError is told an *Error for a file that can't be used (the running
// values stay), and a *RestartError for changed keys that aren't live; once per
// change. The callbacks are called one at a time; none of them is needed for
// Current to be up to date.
//
// What is watched is the folder, because editors, deploy tools and Kubernetes
// replace the file and the links that lead to it.
func (l *Live) Watch(ctx context.Context, onChange func(old, new *Config), onError func(error)) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	l.watch(ctx, hup, onChange, onError)
}

func (l *Live) watch(ctx context.Context, hup <-chan os.Signal, onChange func(old, new *Config), onError func(error)) {
	tell := func(err error) {
		if err != nil && onError != nil {
			onError(err)
		}
	}
	events, fails, stop, err := l.follow()
	if err != nil {
		tell(fmt.Errorf("the configuration's folder can't be watched, so changes are seen late: %w", err))
	}
	defer stop()

	settled := time.NewTimer(l.settle) // a first look: the file may have changed since it was loaded
	defer settled.Stop()
	armed, before := true, l.look()
	floor := time.NewTicker(l.floor)
	defer floor.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-events:
			if !open {
				events = nil // the floor goes on looking
			} else if !armed {
				// The timer isn't moved by further events: a busy folder
				// must not put the look off for ever.
				armed, before = true, l.look()
				settled.Reset(l.settle)
			}
		case err, open := <-fails:
			if !open {
				fails = nil
			}
			tell(err)
		case <-floor.C:
			if !armed && l.changed() {
				armed, before = true, l.look()
				settled.Reset(l.settle)
			}
		case <-settled.C:
			now := l.look()
			if now != before { // somebody is still writing
				before = now
				settled.Reset(l.settle)
				continue
			}
			armed = false
			if l.changed() {
				tell(l.reload(onChange))
			}
		case <-hup:
			tell(l.reload(onChange))
		}
	}
}

// follow watches the file's folder. Without a file there is nothing to watch.
func (l *Live) follow() (<-chan fsnotify.Event, <-chan error, func(), error) {
	none := func() {}
	path := l.opts.path()
	if path == "" {
		return nil, nil, none, nil
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, nil, none, err
	}
	if err := w.Add(filepath.Dir(path)); err != nil {
		_ = w.Close()
		return nil, nil, none, err
	}
	return w.Events, w.Errors, func() { _ = w.Close() }, nil
}

func (l *Live) look() content { return contentOf(readFile(l.opts.path())) }

func (l *Live) changed() bool {
	now := l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	return now != l.seen
}

func contentOf(text []byte, err error) content {
	if err != nil {
		return content{err: err.Error()}
	}
	return content{hash: sha256.Sum256(text)}
}

// reload takes the live values of the file as it is now.
func (l *Live) reload(onChange func(old, new *Config)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text, readErr := readFile(l.opts.path())
	l.seen = contentOf(text, readErr)
	next, err := load(l.opts, text, readErr)
	if err != nil {
		return errors.Join(errKept, err)
	}
	old := l.current.Load()
	merged, changed, restart := reload(old, next)
	if changed {
		l.current.Store(merged)
		if onChange != nil {
			onChange(old, merged)
		}
	}
	if len(restart) > 0 {
		return &RestartError{Keys: restart}
	}
	return nil
}

var errKept = errors.New("the configuration has errors; the running values stay")
