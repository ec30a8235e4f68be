package git

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ModeDir is a folder, as a tree object writes it.
const ModeDir = "40000"

const (
	maxPath = 4096
	maxTree = 64 << 20 // bytes of one folder's object
)

// Edit is one file of a tree that is to be made from another one.
type Edit struct {
	Path    string
	Delete  bool // a file that is not there already is none
	Content string
}

// Edited is a tree that was computed. Nothing of it is in the repository before
// Store.
type Edited struct {
	Base, Tree string // equal when the edits change nothing
	repo       Repo
	commit     string
	objects    []object
}

// PathError is a path that can't be written to in this tree.
type PathError struct {
	Index int // of the edit
	Path  string
	Why   string
}

// Error names the path and what is in the way.
func (e *PathError) Error() string { return fmt.Sprintf("%.200q %s", e.Path, e.Why) }

// CheckPath refuses what is no file's path in a repository: one that is not
// relative and clean, leads into a .git folder on some file system, or holds
// control characters.
func CheckPath(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("is empty")
	case len(path) > maxPath:
		return fmt.Errorf("is longer than %d bytes", maxPath)
	case !utf8.ValidString(path):
		return fmt.Errorf("is no valid UTF-8")
	case strings.ContainsFunc(path, unicode.IsControl):
		return fmt.Errorf("holds a control character")
	}
	return checkParts(path)
}

// checkParts is CheckPath for what somebody else has put into a tree already,
// where a name may hold any byte.
func checkParts(path string) error {
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case part == "":
			return fmt.Errorf("has an empty part")
		case part == "." || part == "..":
			return fmt.Errorf("holds %q", part)
		case strings.EqualFold(strings.TrimRight(part, ". "), ".git"), strings.EqualFold(part, "git~1"):
			return fmt.Errorf("leads into a .git folder")
		}
	}
	return nil
}

// Lookup answers what stands at each path of a commit, in their order: an entry
// without a mode where there is nothing, and the entry that is in the way (by
// its own path) where a part of the path is no folder.
func (r Repo) Lookup(ctx context.Context, commit string, paths []string) ([]Entry, error) {
	found := make([]Entry, len(paths))
	for i, p := range paths {
		if err := CheckPath(p); err != nil {
			return nil, &PathError{Index: i, Path: p, Why: err.Error()}
		}
	}
	err := r.withTree(ctx, commit, func(_ string, root *folder) error {
		for i, p := range paths {
			e, err := root.find(p)
			if err != nil {
				return err
			}
			found[i] = e
		}
		return nil
	})
	return found, err
}

// Edit computes the commit's tree with these edits: new files are plain, others
// keep their mode. Folders come and go with their files. A *PathError where
// something else than a plain file stands at a path, where a file, a link or a
// submodule is in its way, or where two edits need the same place. It costs one
// run of git and reads only the folders that are touched.
func (r Repo) Edit(ctx context.Context, commit string, edits []Edit) (Edited, error) {
	ed := Edited{repo: r, commit: commit}
	seen := make(map[string]bool, len(edits))
	for i, e := range edits {
		if err := CheckPath(e.Path); err != nil {
			return ed, &PathError{Index: i, Path: e.Path, Why: err.Error()}
		}
		if seen[e.Path] {
			return ed, &PathError{Index: i, Path: e.Path, Why: "is named twice"}
		}
		seen[e.Path] = true
	}
	err := r.withTree(ctx, commit, func(id string, root *folder) error {
		made := map[string]bool{}
		keep := func(o object) string {
			id := o.id()
			if !made[id] {
				made[id], ed.objects = true, append(ed.objects, o)
			}
			return id
		}
		// All are looked at before the first is made: what one edit adds is no
		// reason to call the tree itself bad.
		for i, e := range edits {
			there, err := root.find(e.Path)
			if err != nil {
				return err
			}
			if why := inTheWay(e.Path, there); why != "" {
				return &PathError{Index: i, Path: e.Path, Why: why}
			}
		}
		for i, e := range edits {
			why, err := root.edit(e, keep)
			if err != nil {
				return err
			}
			if why != "" {
				return &PathError{Index: i, Path: e.Path, Why: why}
			}
		}
		ed.Base, ed.Tree = id, id
		if root.changed {
			ed.Tree = root.write(keep)
			if len(root.entries) == 0 {
				ed.Tree = keep(object{kind: kindTree})
			}
		}
		return nil
	})
	return ed, err
}

// Store writes the tree and its new files into the repository.
func (ed Edited) Store(ctx context.Context) error {
	return ed.repo.store(ctx, ed.objects, "")
}

// inTheWay says why nothing can be written to path; empty: it can.
func inTheWay(path string, there Entry) string {
	what := ""
	switch there.Mode {
	case "":
		return ""
	case ModeDir:
		what = "a folder"
	case ModeSymlink:
		what = "a symbolic link"
	case ModeSubmodule:
		what = "a submodule"
	}
	switch {
	case there.Path == path && what == "":
		return ""
	case there.Path == path:
		return "is " + what
	case what == "":
		what = "a file"
	}
	return fmt.Sprintf("lies below %q, which is %s", there.Path, what)
}

// folder is a tree object as it is being edited.
type folder struct {
	path    string
	read    func(id string) ([]byte, error)
	entries map[string]Entry // by name; an entry's Path is its name here
	folders map[string]*folder
	changed bool
}

func newFolder(path string, read func(string) ([]byte, error)) *folder {
	return &folder{path: path, read: read, entries: map[string]Entry{}, folders: map[string]*folder{}}
}

func openFolder(path, id string, read func(string) ([]byte, error)) (*folder, error) {
	f := newFolder(path, read)
	content, err := read(id)
	if err != nil {
		return nil, err
	}
	for len(content) > 0 {
		mode, rest, ok := bytes.Cut(content, []byte{' '})
		name, rest, ok2 := bytes.Cut(rest, []byte{0})
		if !ok || !ok2 || len(rest) < 20 {
			return nil, fmt.Errorf("the tree %s is damaged", id)
		}
		e := Entry{Path: string(name), Mode: string(mode), Blob: hex.EncodeToString(rest[:20])}
		f.entries[e.Path] = e
		content = rest[20:]
	}
	return f, nil
}

// sub is the folder of that name, nil where there is none.
func (f *folder) sub(name string) (*folder, error) {
	if s, ok := f.folders[name]; ok {
		return s, nil
	}
	e, ok := f.entries[name]
	if !ok || e.Mode != ModeDir {
		return nil, nil
	}
	s, err := openFolder(f.below(name), e.Blob, f.read)
	if err == nil {
		f.folders[name] = s
	}
	return s, err
}

func (f *folder) below(name string) string {
	if f.path == "" {
		return name
	}
	return f.path + "/" + name
}

// find answers what stands at a path below f, or what is in its way.
func (f *folder) find(path string) (Entry, error) {
	name, rest, deeper := strings.Cut(path, "/")
	e, ok := f.entries[name]
	if !ok {
		return Entry{}, nil
	}
	if !deeper || e.Mode != ModeDir {
		e.Path = f.below(name)
		return e, nil
	}
	s, err := f.sub(name)
	if err != nil {
		return Entry{}, err
	}
	return s.find(rest)
}

// edit makes one edit. The tree itself has nothing in its way; why says so of
// an earlier edit.
func (f *folder) edit(e Edit, keep func(object) string) (why string, err error) {
	parts := strings.Split(e.Path, "/")
	way := []*folder{f}
	for _, name := range parts[:len(parts)-1] {
		s, err := f.sub(name)
		if err != nil {
			return "", err
		}
		if s == nil {
			if e.Delete {
				return "", nil
			}
			if _, taken := f.entries[name]; taken {
				return fmt.Sprintf("lies below %q, which is a file in another place of the list", f.below(name)), nil
			}
			s = newFolder(f.below(name), f.read)
			f.folders[name] = s
		}
		f = s
		way = append(way, f)
	}
	name := parts[len(parts)-1]
	old, there := f.entries[name]
	switch {
	case f.folders[name] != nil && !e.Delete:
		return "is a folder in another place of the list", nil
	case e.Delete && !there:
		return "", nil
	case e.Delete:
		delete(f.entries, name)
	default:
		blob := object{kindBlob, []byte(e.Content)}
		if there && old.Blob == blob.id() {
			return "", nil
		}
		mode := ModeFile
		if there {
			mode = old.Mode
		}
		f.entries[name] = Entry{Path: name, Mode: mode, Blob: keep(blob)}
	}
	for _, f := range way {
		f.changed = true
	}
	return "", nil
}

// write makes the changed folders' objects, the deepest first, and answers f's id.
func (f *folder) write(keep func(object) string) string {
	for name, s := range f.folders {
		if !s.changed {
			continue
		}
		id := s.write(keep)
		delete(f.entries, name)
		if len(s.entries) > 0 {
			f.entries[name] = Entry{Path: name, Mode: ModeDir, Blob: id}
		}
	}
	if len(f.entries) == 0 {
		return ""
	}
	list := make([]Entry, 0, len(f.entries))
	for _, e := range f.entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(sortName(a), sortName(b)) })
	var b []byte
	for _, e := range list {
		b = append(b, e.Mode+" "+e.Path+"\x00"...)
		b, _ = hex.AppendDecode(b, []byte(e.Blob)) // 40 digits: ours, or made from 20 bytes
	}
	return keep(object{kindTree, b})
}

// sortName is the name that git sorts by: a folder counts as "name/".
func sortName(e Entry) string {
	if e.Mode == ModeDir {
		return e.Path + "/"
	}
	return e.Path
}

// withTree lets use look at a commit's tree. Folders are read from one git
// program as they are asked for.
func (r Repo) withTree(ctx context.Context, commit string, use func(id string, root *folder) error) error {
	if err := checkSHAs(commit); err != nil {
		return err
	}
	in, feed, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("read trees: %w", err)
	}
	defer in.Close()
	defer feed.Close()
	c := call{op: "cat-file", dir: r.Dir, args: []string{"--batch"}, stdin: in}
	return c.stream(ctx, func(out *bufio.Reader) error {
		in.Close() // git has its own; so a write to a git that is gone fails
		defer feed.Close()
		id, content, err := readTree(feed, out, commit+"^{tree}")
		if err != nil {
			return err
		}
		first := true
		root, err := openFolder("", id, func(id string) ([]byte, error) {
			if first {
				first = false
				return content, nil
			}
			_, content, err := readTree(feed, out, id)
			return content, err
		})
		if err != nil {
			return err
		}
		return use(id, root)
	})
}

// readTree asks a waiting git for one tree.
func readTree(feed io.Writer, out *bufio.Reader, name string) (id string, content []byte, err error) {
	if _, err := io.WriteString(feed, name+"\n"); err != nil {
		return "", nil, fmt.Errorf("ask for a tree: %w", pathless(err))
	}
	line, err := out.ReadString('\n')
	if err != nil {
		return "", nil, err
	}
	f := strings.Fields(line) // id, type, size; or the name, "missing"
	if len(f) == 2 && f[1] == "missing" {
		return "", nil, fmt.Errorf("%s: %w", strings.TrimSuffix(name, "^{tree}"), ErrNotFound)
	}
	if len(f) != 3 || f[1] != "tree" {
		return "", nil, fmt.Errorf("%.60s is no tree", name)
	}
	size, err := strconv.Atoi(f[2])
	if err != nil || size > maxTree {
		return "", nil, fmt.Errorf("the tree %s is larger than %d bytes", f[0], maxTree)
	}
	content = make([]byte, size)
	if _, err := io.ReadFull(out, content); err != nil {
		return "", nil, err
	}
	_, err = out.Discard(1) // the line's end behind the content
	return f[0], content, err
}
