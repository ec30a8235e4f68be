package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// ErrInUse says that another process (or another DB of this one) has the file open.
var ErrInUse = errors.New("the database is in use")

// ownership is the lock file of a database. The lock ends with the process,
// however that ends; the file stays, because removing a locked file would let
// two processes hold a lock each.
type ownership struct{ f *os.File }

func own(path string) (*ownership, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		who, _ := io.ReadAll(io.LimitReader(f, 200)) // best effort: it only explains
		return nil, fmt.Errorf("%w by %s", ErrInUse, strings.TrimSpace(string(who)))
	}
	line := fmt.Sprintf("process %d since %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	if err := errors.Join(f.Truncate(0), writeAt(f, line)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &ownership{f}, nil
}

// lockPatience is how long a lock may outlive the process that was killed: a
// git that it had forked holds the file, too, until it has become git.
const lockPatience = time.Second

func lock(f *os.File) error {
	for end := time.Now().Add(lockPatience); ; time.Sleep(10 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// release gives the file up. It may be called twice, and on nil.
func (o *ownership) release() error {
	if o == nil || o.f == nil {
		return nil
	}
	err := o.f.Close() // ends the lock
	o.f = nil
	return err
}
