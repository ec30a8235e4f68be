package directory

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A project with a slash or a capital has a link that is not called like it.
// People and scripts find it under its own path all the same: a second link
// leads there from <path>/<project>. It is a courtesy that gives way: where
// another project's link needs the place, there is none.

// standing is what is found where a project's nested path would be.
type standing string

const (
	open    standing = "open"    // nothing, or what may be replaced
	earlier standing = "earlier" // the link of a version that had no other
	taken   standing = "taken"   // another project's
)

// alias says what stands at the nested path. An error: what nobody here made.
func (p place) alias() (standing, error) {
	if p.nested == "" {
		return taken, nil
	}
	for i, c := range p.nested {
		if c != '/' {
			continue
		}
		info, err := os.Lstat(filepath.Join(p.root, p.nested[:i]))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return open, nil
		case err != nil:
			return taken, pathless(err)
		case info.IsDir():
		case isOurs(p.root, p.nested[:i]):
			return taken, nil
		default:
			return taken, inTheWay(p.nested[:i])
		}
	}
	to, err := readLink(p.root, p.nested)
	switch {
	case errors.Is(err, fs.ErrNotExist), err != nil && onlyAliases(p.root, p.nested):
		return open, nil
	case err != nil:
		return taken, inTheWay(p.nested)
	case to == p.name:
		return open, nil
	case path.Dir(to) == p.older:
		return earlier, nil
	case isOurs(p.root, p.nested):
		return taken, nil
	}
	return taken, inTheWay(p.nested)
}

// setAlias makes the nested path lead to the link, which need not be there yet.
func (p place) setAlias() error {
	at := filepath.Join(p.root, filepath.FromSlash(p.nested))
	if err := p.clear(p.nested); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return pathless(err)
	}
	return p.set(p.nested, p.name)
}

// isAlias says whether a link that stands at a path and leads to another is
// what setAlias makes there.
func isAlias(at, to string) bool { return !strings.Contains(to, "/") && isNameOf(to, at) && to != at }

// isOurs says whether mergeflow made what stands at a path: a link to a release,
// or a nested one.
func isOurs(root, at string) bool {
	to, err := readLink(root, at)
	return err == nil && (strings.HasPrefix(to, releasesDir+"/") || isAlias(at, to))
}

// onlyAliases says whether a path is a folder that holds nothing but nested
// links, or nothing at all.
func onlyAliases(root, at string) bool {
	_, ok := aliasesIn(root, at)
	return ok
}

// aliasesIn lists a folder of nested links, what is deeper last; false where it
// holds anything else or is no folder.
func aliasesIn(root, at string) (files []string, ok bool) {
	top := filepath.Join(root, filepath.FromSlash(at))
	if info, err := os.Lstat(top); err != nil || !info.IsDir() {
		return nil, false
	}
	err := filepath.WalkDir(top, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		files = append(files, file)
		if e.IsDir() {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		to, err := readLink(root, filepath.ToSlash(rel))
		if err == nil && !isAlias(filepath.ToSlash(rel), to) {
			err = fs.ErrExist
		}
		return err
	})
	return files, err == nil
}

// clear makes room where only nested links are. What somebody put beside them
// meanwhile stays, and so does its folder.
func (p place) clear(at string) error {
	files, ok := aliasesIn(p.root, at)
	if !ok {
		return nil
	}
	for _, f := range slices.Backward(files) {
		if err := os.Remove(f); err != nil {
			return pathless(err)
		}
	}
	return nil
}
