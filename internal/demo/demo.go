// Package demo shows the main job with nothing set up: a server on a free
// port, real repositories, a stock git client, an index that fails on purpose, a
// receiver of notifications and a folder that changes are deployed to. It believes nothing: what it says at the end
// it has looked up in git and at the receiver.
//
// The order of the story is in story.go, the changes' half in change.go; world.go holds what it needs, check.go
// what must be true in the end, and voice.go how it is told.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// limit bounds the whole story. It takes a few seconds.
const limit = 55 * time.Second

// Options say how the demo runs.
type Options struct {
	Dir     string // an empty folder, or one to make; empty: a fresh temporary one. It stays
	JSON    bool   // one JSON object per line instead of the story
	Serve   bool   // go on serving until the context ends
	Version string
	Out     io.Writer
}

// ErrNotAsItShould is the demo that ran and did not end as it should; what was
// wrong is on Out.
var ErrNotAsItShould = errors.New("the demo did not end as it should")

// Run tells the story. It answers nil only if everything ended as it should.
func Run(ctx context.Context, o Options) (err error) {
	dir, err := folder(o.Dir)
	if err != nil {
		return err
	}
	v := &voice{out: o.Out, json: o.JSON}
	w := &world{dir: dir}
	defer func() { err = errors.Join(err, w.close()) }()

	told, err := tell(ctx, w, v, o.Version)
	ok := v.result(dir, told, err)
	if err != nil {
		return err
	}
	if !ok {
		return ErrNotAsItShould
	}
	if o.Serve {
		v.say("Still serving on %s, with the index at %s; Ctrl-C ends it.", w.app.URL(), w.indexer.URL())
		select {
		case <-ctx.Done():
		case err := <-w.app.Failed():
			return err
		}
	}
	return nil
}

// tell starts the world and plays the stories in it.
func tell(ctx context.Context, w *world, v *voice, version string) (told []*operation, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := w.start(ctx, version); err != nil {
		return nil, err
	}
	s := &story{world: w, voice: v}
	v.say("mergeflow demo: a server on %s, its files in %s\n", w.app.URL(), w.dir)
	err = s.play(ctx)
	return s.told, err
}

// folder makes the demo's folder. One that holds something already is refused:
// the story would meet what an earlier one left.
func folder(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "mergeflow-demo-")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 {
		return "", fmt.Errorf("%s is not empty; the demo needs a folder of its own", dir)
	}
	return filepath.Abs(dir)
}
