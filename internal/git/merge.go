package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// MergeResult is a merge that was computed and not recorded anywhere.
type MergeResult struct {
	Tree      string   // the merged tree; meaningless when there are conflicts
	Conflicts []string // paths, each once
}

// MergeTree merges two commits without a work tree. Conflicts are no error;
// ErrUnrelated is a merge that git refuses.
func (r Repo) MergeTree(ctx context.Context, ours, theirs string) (MergeResult, error) {
	if err := checkSHAs(ours, theirs); err != nil {
		return MergeResult{}, err
	}
	out, err := call{op: "merge-tree", dir: r.Dir, args: []string{
		"--write-tree", "-z", "--no-messages", "--name-only", ours, theirs}}.output(ctx)
	// Status 1 with a tree is a conflict; with none it is a commit that is missing.
	if err != nil && (exitCode(err) != 1 || len(out) == 0) {
		if e, ok := errors.AsType[*Error](err); ok && strings.Contains(e.Stderr, "unrelated histories") {
			return MergeResult{}, ErrUnrelated
		}
		if exitCode(err) > 0 {
			err = r.explainMissing(ctx, err, ours, theirs)
		}
		return MergeResult{}, err
	}
	tree, rest, _ := bytes.Cut(out, []byte{0})
	result := MergeResult{Tree: string(tree)}
	if !IsSHA(result.Tree) {
		return MergeResult{}, fmt.Errorf("git merge-tree printed no tree: %.60q", tree)
	}
	for path := range strings.SplitSeq(string(rest), "\x00") {
		if path != "" {
			result.Conflicts = append(result.Conflicts, path)
		}
	}
	if err != nil && len(result.Conflicts) == 0 {
		return MergeResult{}, err
	}
	return result, nil
}

// NewCommit is a commit to be made. Equal values make the same commit.
type NewCommit struct {
	Tree        string
	Parents     []string
	Name, Email string    // of author and committer
	When        time.Time // author's and committer's date; whole seconds, shown in UTC
	Message     string    // as it is, but for broken UTF-8, NULs and the end of its last line
}

// CommitTree writes a commit object. No reference moves.
func (r Repo) CommitTree(ctx context.Context, c NewCommit) (sha string, err error) {
	if err := checkSHAs(append([]string{c.Tree}, c.Parents...)...); err != nil {
		return "", err
	}
	if c.When.Unix() < 0 {
		return "", fmt.Errorf("a commit can't be dated before 1970")
	}
	name, email, date := person(c.Name, "mergeflow"), person(c.Email, "mergeflow@localhost"), "@"+strconv.FormatInt(c.When.Unix(), 10)+" +0000"
	var args []string
	for _, p := range c.Parents {
		args = append(args, "-p", p)
	}
	message := strings.ReplaceAll(strings.ToValidUTF8(c.Message, "\uFFFD"), "\x00", "\uFFFD")
	out, err := call{
		op: "commit-tree", dir: r.Dir,
		args: append(args, "-F", "-", c.Tree),
		env: []string{
			"GIT_AUTHOR_NAME=" + name, "GIT_AUTHOR_EMAIL=" + email, "GIT_AUTHOR_DATE=" + date,
			"GIT_COMMITTER_NAME=" + name, "GIT_COMMITTER_EMAIL=" + email, "GIT_COMMITTER_DATE=" + date,
		},
		stdin: strings.NewReader(strings.TrimRight(message, "\n") + "\n"),
	}.output(ctx)
	if err != nil {
		return "", err
	}
	sha = strings.TrimSpace(string(out))
	return sha, checkSHAs(sha)
}

// person makes a name or address one that git takes: it refuses what is empty
// after it has dropped the characters that mean something in a commit's header.
func person(s, otherwise string) string {
	const limit = 200
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '<' || r == '>' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	if s = strings.Trim(s, " .,:;\"\\'"); s == "" {
		return otherwise
	}
	return s
}
