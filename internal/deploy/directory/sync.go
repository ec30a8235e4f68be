package directory

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// syncers is how many files are synced at once: a file system writes its journal
// for all of them together, which makes a release of thousands cheap.
const syncers = 8

// syncTree waits until a folder and all in it are on the disk.
func syncTree(ctx context.Context, dir string) error {
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
		files = make(chan string)
		stop  = make(chan struct{})
	)
	fail := func(err error) { once.Do(func() { first = err; close(stop) }) }
	for range syncers {
		wg.Go(func() {
			for f := range files {
				if err := syncFile(f); err != nil {
					fail(err)
				}
			}
		})
	}
	err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 { // a link is its folder's
			return err
		}
		select {
		case files <- file:
			return ctx.Err()
		case <-stop:
			return fs.SkipAll
		}
	})
	close(files)
	wg.Wait()
	if first != nil {
		err = first
	}
	return pathless(err)
}

func syncDirs(dirs ...string) error {
	for _, d := range dirs {
		if err := syncFile(d); err != nil {
			return pathless(err)
		}
	}
	return nil
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
