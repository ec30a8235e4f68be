package git

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Repo is a bare repository. Dir is absolute.
type Repo struct{ Dir string }

// Init makes an empty bare repository whose HEAD names branch. The directory
// appears complete or not at all; one that is there already is ErrExist.
func Init(ctx context.Context, dir, branch string) (Repo, error) {
	if err := CheckBranch(branch); err != nil {
		return Repo{}, err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Repo{}, err
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return Repo{}, err
	}
	// A leading dot: no repository's name begins with one.
	temp, err := os.MkdirTemp(parent, ".init-*")
	if err != nil {
		return Repo{}, err
	}
	defer os.RemoveAll(temp)
	c := call{op: "init", dir: temp, args: []string{"--bare", "--quiet", "--template=", "--initial-branch=" + branch}}
	if _, err := c.output(ctx); err != nil {
		return Repo{}, err
	}
	// A rename onto a directory that holds something fails.
	if err := os.Rename(temp, dir); err != nil {
		if _, there := os.Lstat(dir); there == nil {
			return Repo{}, fmt.Errorf("make the repository: %w", os.ErrExist)
		}
		return Repo{}, errors.New("make the repository: it could not be moved to its place")
	}
	return Repo{Dir: dir}, nil
}

// SetHead makes branch the one that clients check out by default.
func (r Repo) SetHead(ctx context.Context, branch string) error {
	if err := CheckBranch(branch); err != nil {
		return err
	}
	_, err := call{op: "symbolic-ref", dir: r.Dir, args: []string{"HEAD", "refs/heads/" + branch}}.output(ctx)
	return err
}

// Ref is a reference and the object it names.
type Ref struct{ Name, SHA string }

// Refs lists the references that are named exactly so or lie below one of the
// names ("refs/heads"), by name. Without names it lists all.
func (r Repo) Refs(ctx context.Context, names ...string) ([]Ref, error) {
	for _, n := range names {
		if err := checkRef(n); err != nil {
			return nil, err
		}
	}
	args := append([]string{"--format=%(objectname) %(refname)"}, names...)
	var refs []Ref
	err := call{op: "for-each-ref", dir: r.Dir, args: args}.stream(ctx, func(out *bufio.Reader) error {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			sha, name, _ := strings.Cut(lines.Text(), " ")
			refs = append(refs, Ref{Name: name, SHA: sha})
		}
		return lines.Err()
	})
	return refs, err
}

// Values looks several references up at once, in one consistent order: the
// answer holds those that exist.
func (r Repo) Values(ctx context.Context, names ...string) (map[string]string, error) {
	refs, err := r.Refs(ctx, names...)
	if err != nil {
		return nil, err
	}
	values := make(map[string]string, len(refs))
	for _, ref := range refs {
		values[ref.Name] = ref.SHA
	}
	return values, nil
}

// Resolve answers the commit that a reference (refs/…) or a full commit id
// names; ErrNotFound when there is none.
func (r Repo) Resolve(ctx context.Context, name string) (sha string, err error) {
	return r.parse(ctx, name, "^{commit}")
}

// TreeOf answers the id of a commit's tree.
func (r Repo) TreeOf(ctx context.Context, commit string) (string, error) {
	return r.parse(ctx, commit, "^{tree}")
}

func (r Repo) parse(ctx context.Context, name, suffix string) (string, error) {
	if !IsSHA(name) {
		if err := checkRef(name); err != nil {
			return "", err
		}
	}
	out, err := call{op: "rev-parse", dir: r.Dir, args: []string{"--verify", "--quiet", "--end-of-options", name + suffix}}.output(ctx)
	sha := strings.TrimSpace(string(out))
	switch code := exitCode(err); {
	case err == nil && IsSHA(sha):
		return sha, nil
	case err == nil, code == 1, code == 128 && !errors.Is(err, ErrNotFound):
		return "", fmt.Errorf("%s: %w", name, ErrNotFound)
	default:
		return "", err
	}
}

// IsAncestor says whether descendant is ancestor or has it in its history.
// ErrNotFound when one of them is not in the repository.
func (r Repo) IsAncestor(ctx context.Context, ancestor, descendant string) (bool, error) {
	if err := checkSHAs(ancestor, descendant); err != nil {
		return false, err
	}
	if ancestor == descendant {
		return true, nil
	}
	_, err := call{op: "merge-base", dir: r.Dir, args: []string{"--is-ancestor", ancestor, descendant}}.output(ctx)
	switch exitCode(err) {
	case 1:
		return false, nil
	case 128:
		return false, r.explainMissing(ctx, err, ancestor, descendant)
	}
	return err == nil, err
}

// MergeBase answers the best common ancestor, ErrUnrelated when there is none.
func (r Repo) MergeBase(ctx context.Context, a, b string) (string, error) {
	if err := checkSHAs(a, b); err != nil {
		return "", err
	}
	out, err := call{op: "merge-base", dir: r.Dir, args: []string{a, b}}.output(ctx)
	switch exitCode(err) {
	case 1:
		return "", ErrUnrelated
	case 128:
		return "", r.explainMissing(ctx, err, a, b)
	}
	return strings.TrimSpace(string(out)), err
}

// explainMissing turns git's "fatal" into ErrNotFound where a commit is not there.
func (r Repo) explainMissing(ctx context.Context, err error, commits ...string) error {
	for _, c := range commits {
		if _, look := r.Resolve(ctx, c); errors.Is(look, ErrNotFound) {
			return look
		}
	}
	return err
}

// Commit is what a commit says.
type Commit struct {
	SHA, Tree          string
	Parents            []string
	AuthorName, Author string // Author is the address
	When               time.Time
	Message            string
}

const commitFormat = "--format=tformat:%H%x00%T%x00%P%x00%an%x00%ae%x00%ct%x00%B"

// Commit reads one commit.
func (r Repo) Commit(ctx context.Context, sha string) (Commit, error) {
	commits, err := r.log(ctx, sha, "--max-count=1", sha)
	if err != nil {
		return Commit{}, err
	}
	return commits[0], nil
}

// Log lists the commits that tip has and exclude (may be empty) has not, newest
// first, at most limit (all when 0).
func (r Repo) Log(ctx context.Context, tip, exclude string, limit int) ([]Commit, error) {
	args := []string{tip}
	if exclude != "" {
		if err := checkSHAs(exclude); err != nil {
			return nil, err
		}
		args = append(args, "^"+exclude)
	}
	if limit > 0 {
		args = append([]string{"--max-count=" + strconv.Itoa(limit)}, args...)
	}
	return r.log(ctx, tip, args...)
}

func (r Repo) log(ctx context.Context, tip string, args ...string) ([]Commit, error) {
	if err := checkSHAs(tip); err != nil {
		return nil, err
	}
	var commits []Commit
	args = append([]string{"-z", "--no-show-signature", commitFormat}, args...)
	err := call{op: "log", dir: r.Dir, args: append(args, "--")}.stream(ctx, func(out *bufio.Reader) error {
		for {
			var f [7]string
			for i := range f {
				s, err := readField(out)
				if err == io.EOF && i == 0 {
					return nil
				}
				if err != nil {
					return err
				}
				f[i] = s
			}
			seconds, err := strconv.ParseInt(f[5], 10, 64)
			if err != nil {
				return fmt.Errorf("git log printed the date %q", f[5])
			}
			commits = append(commits, Commit{
				SHA: f[0], Tree: f[1], Parents: strings.Fields(f[2]),
				AuthorName: f[3], Author: f[4], When: time.Unix(seconds, 0).UTC(), Message: f[6],
			})
		}
	})
	if exitCode(err) == 128 {
		err = r.explainMissing(ctx, err, tip)
	}
	return commits, err
}

// readField reads up to a NUL; io.EOF only where nothing is left.
func readField(r *bufio.Reader) (string, error) {
	s, err := r.ReadString(0)
	if err == io.EOF && s != "" {
		return "", io.ErrUnexpectedEOF
	}
	if err != nil {
		return "", err
	}
	return s[:len(s)-1], nil
}
