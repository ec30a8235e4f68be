package git

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The kinds of entries in a tree, as git writes them.
const (
	ModeFile       = "100644"
	ModeExecutable = "100755"
	ModeSymlink    = "120000"
	ModeSubmodule  = "160000"
)

// Entry is a file in a tree.
type Entry struct {
	Path string
	Mode string
	Blob string
	Size int64 // bytes; 0 for a submodule
}

// Tree calls fn for every file of a commit, by path.
func (r Repo) Tree(ctx context.Context, commit string, fn func(Entry) error) error {
	if err := checkSHAs(commit); err != nil {
		return err
	}
	err := call{op: "ls-tree", dir: r.Dir, args: []string{"-r", "-z", "--long", "--full-tree", commit}}.stream(ctx, func(out *bufio.Reader) error {
		for {
			record, err := readField(out)
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			meta, path, ok := strings.Cut(record, "\t")
			f := strings.Fields(meta) // mode, type, id, size
			if !ok || len(f) != 4 {
				return fmt.Errorf("git ls-tree printed %.80q", record)
			}
			e := Entry{Path: path, Mode: f[0], Blob: f[2]}
			if f[3] != "-" {
				if e.Size, err = strconv.ParseInt(f[3], 10, 64); err != nil {
					return fmt.Errorf("git ls-tree printed the size %q", f[3])
				}
			}
			if err := fn(e); err != nil {
				return err
			}
		}
	})
	if exitCode(err) == 128 {
		err = r.explainMissing(ctx, err, commit)
	}
	return err
}

// FileChange is one path that differs between two commits. Renames are a
// removal and an addition.
type FileChange struct {
	Path    string
	Status  byte   // 'A'dded, 'D'eleted, 'M'odified, 'T'ype changed
	OldMode string // 000000 where it was not there
	NewMode string // 000000 where it is gone
	OldBlob string // Zero where it was not there
	NewBlob string // Zero where it is gone
}

// Diff calls fn for every file that differs, by path.
func (r Repo) Diff(ctx context.Context, from, to string, fn func(FileChange) error) error {
	if err := checkSHAs(from, to); err != nil {
		return err
	}
	args := []string{"-r", "-z", "--raw", "--no-abbrev", "--no-renames", from, to}
	err := call{op: "diff-tree", dir: r.Dir, args: args}.stream(ctx, func(out *bufio.Reader) error {
		for {
			meta, err := readField(out)
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			f := strings.Fields(strings.TrimPrefix(meta, ":")) // modes, ids, status
			if len(f) != 5 || f[4] == "" {
				return fmt.Errorf("git diff-tree printed %.80q", meta)
			}
			path, err := readField(out)
			if err != nil {
				return io.ErrUnexpectedEOF
			}
			if err := fn(FileChange{Path: path, Status: f[4][0], OldMode: f[0], NewMode: f[1], OldBlob: f[2], NewBlob: f[3]}); err != nil {
				return err
			}
		}
	})
	if exitCode(err) == 128 {
		err = r.explainMissing(ctx, err, from, to)
	}
	return err
}

// Sizes calls fn for each blob, in their order, with its size in bytes. A blob
// that is not there is ErrNotFound.
func (r Repo) Sizes(ctx context.Context, blobs []string, fn func(i int, size int64) error) error {
	return r.catFile(ctx, "--batch-check", blobs, func(i int, size int64, _ *bufio.Reader) error {
		return fn(i, size)
	})
}

// Blobs calls fn for each blob, in their order, with its content, which is
// valid only during the call. One blob at a time is in memory.
func (r Repo) Blobs(ctx context.Context, blobs []string, fn func(i int, content []byte) error) error {
	var content []byte
	return r.catFile(ctx, "--batch", blobs, func(i int, size int64, out *bufio.Reader) error {
		if int64(cap(content)) < size {
			content = make([]byte, size)
		}
		content = content[:size]
		if _, err := io.ReadFull(out, content); err != nil {
			return err
		}
		if _, err := out.Discard(1); err != nil { // the line's end behind the content
			return err
		}
		return fn(i, content)
	})
}

func (r Repo) catFile(ctx context.Context, mode string, blobs []string, fn func(i int, size int64, out *bufio.Reader) error) error {
	if err := checkSHAs(blobs...); err != nil || len(blobs) == 0 {
		return err
	}
	ids := strings.NewReader(strings.Join(blobs, "\n") + "\n")
	return call{op: "cat-file", dir: r.Dir, args: []string{mode, "--buffer"}, stdin: ids}.stream(ctx, func(out *bufio.Reader) error {
		for i, id := range blobs {
			line, err := out.ReadString('\n')
			if err != nil {
				return err
			}
			f := strings.Fields(line) // id, type, size; or id, "missing"
			if len(f) == 2 && f[1] == "missing" {
				return fmt.Errorf("blob %s: %w", id, ErrNotFound)
			}
			if len(f) != 3 || f[1] != "blob" {
				return fmt.Errorf("%s is no blob", id)
			}
			size, err := strconv.ParseInt(f[2], 10, 64)
			if err != nil {
				return fmt.Errorf("git cat-file printed the size %q", f[2])
			}
			if err := fn(i, size, out); err != nil {
				return err
			}
		}
		return nil
	})
}
