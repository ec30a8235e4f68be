package git

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// patchArgs make a patch that depends on nothing but the two trees.
var patchArgs = []string{
	"-r", "-p", "-U3", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--diff-algorithm=myers", "--indent-heuristic",
	"--ignore-submodules=none", "--submodule=short", "--src-prefix=a/", "--dst-prefix=b/", "--full-index",
}

// PatchID is the identity of a change: the SHA-256 of its patch with three lines
// of context, without what a different base changes in it, which is the lines'
// numbers and text files' object ids. A change of nothing has a fixed id.
//
// git patch-id is not used, because it ignores white space: in a YAML file a
// change of indentation is a change of meaning.
func (r Repo) PatchID(ctx context.Context, from, to string) (string, error) {
	if err := checkSHAs(from, to); err != nil {
		return "", err
	}
	p := patchHash{sum: sha256.New()}
	err := call{op: "diff-tree", dir: r.Dir, args: append(patchArgs[:len(patchArgs):len(patchArgs)], from, to)}.stream(ctx, p.read)
	if exitCode(err) == 128 {
		err = r.explainMissing(ctx, err, from, to)
	}
	return hex.EncodeToString(p.sum.Sum(nil)), err
}

// patchHash reads a patch line by line, whatever their length.
type patchHash struct {
	sum      hash.Hash
	old, new int    // lines that the hunk still has on each side
	index    []byte // the file's index line, which counts only where there is no text
}

func (p *patchHash) read(out *bufio.Reader) error {
	for begins := true; ; {
		part, err := out.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF) {
			return err
		}
		if begins && len(part) > 0 {
			if bad := p.line(part); bad != nil {
				return bad
			}
		} else {
			p.sum.Write(part)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		begins = err == nil
	}
}

// line takes a line's beginning.
func (p *patchHash) line(s []byte) error {
	if p.old > 0 || p.new > 0 {
		switch s[0] {
		case ' ':
			p.old, p.new = p.old-1, p.new-1
		case '-':
			p.old--
		case '+':
			p.new--
		case '\\':
		default:
			return fmt.Errorf("git diff-tree printed %.80q in a hunk", s)
		}
		p.sum.Write(s)
		return nil
	}
	switch {
	case bytes.HasPrefix(s, []byte("@@ ")):
		f := strings.Fields(string(s[:min(len(s), 100)])) // @@ -1,2 +3,4 @@
		if len(f) < 4 {
			return fmt.Errorf("git diff-tree printed the hunk %.80q", s)
		}
		p.old, p.new = lineCount(f[1]), lineCount(f[2])
		_, err := io.WriteString(p.sum, "@@\n")
		return err
	case bytes.HasPrefix(s, []byte("index ")):
		p.index = append(p.index[:0], s...)
		return nil
	case bytes.HasPrefix(s, []byte("Binary files ")):
		p.sum.Write(p.index)
	}
	p.sum.Write(s)
	return nil
}

// lineCount is n of "-12,n"; without it one line is meant.
func lineCount(s string) int {
	_, n, ok := strings.Cut(s, ",")
	if !ok {
		return 1
	}
	lines, _ := strconv.Atoi(n)
	return lines
}

// errEnough ends a git program whose answer is long enough.
var errEnough = errors.New("enough")

// Patch is a unified diff of what the edits change, at most limit bytes, cut at
// a line. The new objects are in a folder of their own while it runs, so that
// nothing of them stays in the repository.
func (ed Edited) Patch(ctx context.Context, limit int) (string, error) {
	if ed.Tree == ed.Base {
		return "", nil
	}
	dir, err := os.MkdirTemp("", "mergeflow-objects-")
	if err != nil {
		return "", fmt.Errorf("make a temporary folder: %w", pathless(err))
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, "info"), 0o700); err != nil {
		return "", fmt.Errorf("make a temporary folder: %w", pathless(err))
	}
	// A file, not the environment variable: there a path must not hold a colon.
	objects := filepath.Join(ed.repo.Dir, "objects") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "info", "alternates"), []byte(objects), 0o600); err != nil {
		return "", fmt.Errorf("write to a temporary folder: %w", pathless(err))
	}
	if err := ed.repo.store(ctx, ed.objects, dir); err != nil {
		return "", err
	}
	var text []byte
	err = call{
		op: "diff-tree", dir: ed.repo.Dir, args: append(patchArgs[:len(patchArgs)-1:len(patchArgs)-1], ed.Base, ed.Tree),
		env: []string{"GIT_OBJECT_DIRECTORY=" + dir}, temp: dir, config: []string{"core.quotePath", "false"},
	}.stream(ctx, func(out *bufio.Reader) error {
		var err error
		if text, err = io.ReadAll(io.LimitReader(out, int64(limit)+1)); err == nil && len(text) > limit {
			text, err = text[:bytes.LastIndexByte(text[:limit], '\n')+1], errEnough
		}
		return err
	})
	if err != nil && !errors.Is(err, errEnough) {
		return "", err
	}
	return string(text), nil
}
