package git

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
)

const (
	exportBatch = 4096 // files per run of cat-file; bounds the memory
	maxLink     = 4096 // bytes of a symbolic link's target
)

// Export writes a commit's files into the empty folder dir: 0644 or 0755, as git
// has them, folders 0755. A symbolic link is written where its target is
// relative and stays inside, whatever the links on its way; otherwise the
// export is refused. Submodules are left out. No attribute of the repository
// changes what is written. Nothing outside dir is touched; what a failed export
// leaves in it is the caller's.
func (r Repo) Export(ctx context.Context, commit, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the folder: %w", pathless(err))
	}
	defer root.Close()
	x := exporter{repo: r, root: root}
	err = r.Tree(ctx, commit, func(e Entry) error {
		if e.Mode == ModeSubmodule {
			return nil
		}
		if err := checkParts(e.Path); err != nil {
			return &PathError{Path: e.Path, Why: err.Error()}
		}
		if e.Mode == ModeSymlink && e.Size > maxLink {
			return &PathError{Path: e.Path, Why: "is a symbolic link with too long a target"}
		}
		if x.batch = append(x.batch, e); len(x.batch) < exportBatch {
			return nil
		}
		return x.flush(ctx)
	})
	if err == nil {
		err = x.flush(ctx)
	}
	return err
}

// exporter writes files, a batch at a time.
type exporter struct {
	repo  Repo
	root  *os.Root
	batch []Entry
	dir   string // the folder that is known to be there
}

func (x *exporter) flush(ctx context.Context) error {
	ids := make([]string, len(x.batch))
	for i, e := range x.batch {
		ids[i] = e.Blob
	}
	err := x.repo.catFile(ctx, "--batch", ids, func(i int, size int64, out *bufio.Reader) error {
		e := x.batch[i]
		if err := x.write(e, io.LimitReader(out, size)); err != nil {
			if _, ok := errors.AsType[*PathError](err); ok {
				return err
			}
			if errors.Is(err, syscall.ENAMETOOLONG) { // whenever it is tried
				return &PathError{Path: e.Path, Why: "has a name that is too long for this disk"}
			}
			return fmt.Errorf("write %.200q: %w", e.Path, bare(err))
		}
		_, err := out.Discard(1) // the line's end behind the content
		return err
	})
	x.batch = x.batch[:0]
	return err
}

func (x *exporter) write(e Entry, content io.Reader) error {
	if err := x.ensure(path.Dir(e.Path)); err != nil {
		return err
	}
	if e.Mode == ModeSymlink {
		target, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		if err := checkLink(e.Path, string(target)); err != nil {
			return &PathError{Path: e.Path, Why: "is a symbolic link that is not written: " + err.Error()}
		}
		return x.root.Symlink(string(target), e.Path)
	}
	mode := os.FileMode(0o644)
	if e.Mode == ModeExecutable {
		mode = 0o755
	}
	f, err := x.root.OpenFile(e.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, content)
	if err == nil && n != e.Size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = f.Chmod(mode) // whatever the umask
	}
	return errors.Join(err, f.Close())
}

// ensure makes a folder and those above it. Files come folder by folder.
func (x *exporter) ensure(dir string) error {
	if dir == x.dir || dir == "." {
		return nil
	}
	for i, c := range dir + "/" {
		if c != '/' {
			continue
		}
		switch err := x.root.Mkdir(dir[:i], 0o755); {
		case err == nil:
			if err := x.root.Chmod(dir[:i], 0o755); err != nil {
				return err
			}
		case !errors.Is(err, os.ErrExist):
			return err
		}
	}
	x.dir = dir
	return nil
}

// checkLink refuses a link that leads outside. The folder that it lies in is a
// real one, so its leading ".." are what they look like; behind them there may
// be none, because a name before it may be a link to elsewhere.
func checkLink(at, target string) error {
	depth := strings.Count(at, "/")
	if target == "" || strings.HasPrefix(target, "/") || strings.ContainsRune(target, 0) {
		return fmt.Errorf("its target %.100q is not relative", target)
	}
	down := false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part != "..":
			down = down || part != "" && part != "."
		case down:
			return fmt.Errorf(`its target %.100q goes up behind a name`, target)
		default:
			if depth--; depth < 0 {
				return fmt.Errorf("its target %.100q leads outside", target)
			}
		}
	}
	return nil
}

// bare drops the paths from an error of package os.
func bare(err error) error {
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return pathless(err)
}
