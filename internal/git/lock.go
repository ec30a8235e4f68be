package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A git program that is killed in the middle of changing a reference leaves
// refs/heads/x.lock behind, and nobody can change that reference any more. Age
// alone does not prove that its maker is dead, and a process id may belong to
// another container. The kernel's file locks do prove it, because they last
// exactly as long as the last process that inherited the open file:
//
//   - whoever changes references holds "writer" exclusively. The git program
//     inherits it, so that a git that outlives its killed parent still holds it.
//     The file says which references are about to change; it is emptied when
//     git has ended by itself.
//   - every push holds "push" shared, all its git programs included.
//
// So who gets "writer" and finds references in it knows that their writer is
// dead; if nobody holds "push" either, a lock file on one of them has no living
// maker, and is removed. Programs that somebody starts by hand on a served
// repository are beyond this; their locks are only reported.
const (
	lockDir    = "mergeflow"
	writerFile = "writer"
	pushFile   = "push"
)

// head is locked with the branch that it names, packedRefs when a reference is removed.
const (
	head       = "HEAD"
	packedRefs = "packed-refs"
)

const lockPoll = 2 * time.Millisecond

// openLock opens one of the lock files, made when needed.
func (r Repo) openLock(name string) (*os.File, error) {
	dir := filepath.Join(r.Dir, lockDir)
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if !errors.Is(err, os.ErrNotExist) {
		return f, r.lockFailure(name, err)
	}
	if _, err := os.Stat(r.Dir); err != nil {
		return nil, fmt.Errorf("%w: the repository's directory is missing", ErrNotFound)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, r.lockFailure(name, err)
	}
	f, err = os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	return f, r.lockFailure(name, err)
}

func (r Repo) lockFailure(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("lock %s/%s: %w", lockDir, name, pathless(err))
}

// pathless drops the local path from an error of package os.
func pathless(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}

// acquire takes a lock (syscall.LOCK_EX or LOCK_SH) and waits until ctx ends.
// Closing the file gives it back, unless a child has it too.
func (r Repo) acquire(ctx context.Context, name string, how int) (*os.File, error) {
	f, err := r.openLock(name)
	if err != nil {
		return nil, err
	}
	wait := lockPoll
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, r.lockFailure(name, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for another writer of the repository: %w", context.Cause(ctx))
		case <-time.After(wait):
			wait = min(2*wait, 16*lockPoll)
		}
	}
}

// Lock takes a lock of the repository's that is named for what it orders, and
// waits for it until ctx ends. It also orders other processes, and ends with its
// holder.
func (r Repo) Lock(ctx context.Context, name string) (unlock func(), err error) {
	if checkRef("refs/"+name) != nil || strings.Contains(name, "/") || name == writerFile || name == pushFile {
		return nil, fmt.Errorf("%.80q is no name for a lock", name)
	}
	f, err := r.acquire(ctx, name, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// begin takes the writer's lock, removes what a dead writer left behind, and
// notes the references that are about to change.
func (r Repo) begin(ctx context.Context, refs []string) (*os.File, error) {
	f, err := r.acquire(ctx, writerFile, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	if err = r.clearDead(f); err == nil {
		_, err = f.WriteAt([]byte(strings.Join(append(refs, head, packedRefs), "\n")+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// end gives the writer's lock back. The note stays where git did not end by
// itself: it may have left lock files.
func end(f *os.File, finished bool) {
	if finished {
		// A note that can't be removed costs the next writer one look.
		_ = f.Truncate(0)
	}
	f.Close()
}

// clearDead removes the lock files of the references that the note names. The
// writer's lock is held.
func (r Repo) clearDead(writer *os.File) error {
	note, err := io.ReadAll(io.LimitReader(io.NewSectionReader(writer, 0, 1<<16), 1<<16))
	if err != nil {
		return r.lockFailure(writerFile, err)
	}
	var noted []string
	for ref := range strings.SplitSeq(strings.TrimSpace(string(note)), "\n") {
		if ref == head || ref == packedRefs || checkRef(ref) == nil { // else nothing, or torn: then git was never started
			noted = append(noted, ref)
		}
	}
	if err := r.removeStale(noted); err != nil {
		return err
	}
	return r.lockFailure(writerFile, writer.Truncate(0))
}

// pushPatience is how long "push" is tried for when nobody pushes. A child that
// this process starts at that moment has a copy of every open file between its
// fork and its exec, and with it a lock that was given back meanwhile.
const pushPatience = time.Second

// removeStale removes the references' lock files, where there are any.
func (r Repo) removeStale(refs []string) error {
	var left []string
	for _, ref := range refs {
		if _, err := os.Lstat(r.lockPath(ref)); err == nil {
			left = append(left, ref)
		}
	}
	if len(left) == 0 {
		return nil
	}
	patience, cancel := context.WithTimeout(context.Background(), pushPatience)
	defer cancel()
	push, err := r.acquire(patience, pushFile, syscall.LOCK_EX)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return r.lockError(left[0]) // a push is under way: it may be the maker
	case err != nil:
		return err
	}
	defer push.Close()
	for _, ref := range left {
		stale := []string{r.lockPath(ref)}
		if ref == packedRefs { // its next content is written beside it, under the same lock
			stale = []string{filepath.Join(r.Dir, packedRefs+".new"), r.lockPath(ref)}
		}
		for _, path := range stale {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove the stale %s: %w", filepath.Base(path), pathless(err))
			}
		}
	}
	return nil
}

func (r Repo) lockPath(ref string) string {
	return filepath.Join(r.Dir, filepath.FromSlash(ref)+".lock")
}

func (r Repo) lockError(ref string) error {
	e := &LockError{Ref: ref}
	if info, err := os.Lstat(r.lockPath(ref)); err == nil {
		e.Age = max(0, time.Since(info.ModTime()))
	}
	return e
}
