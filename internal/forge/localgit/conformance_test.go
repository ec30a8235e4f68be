package localgit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mergeflow/mergeflow/internal/fault"
	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/forge/forgetest"
	"github.com/mergeflow/mergeflow/internal/store/sqlite"
)

func TestForge(t *testing.T) {
	t.Parallel()
	forgetest.Run(t, forgetest.Harness{Open: func(t testing.TB) forgetest.Env { return newRig(t).env() }})
}

func TestHost(t *testing.T) {
	t.Parallel()
	forgetest.RunHost(t, forgetest.HostHarness{Open: func(t testing.TB) (forgetest.Env, forge.Host) {
		r := newRig(t)
		return r.env(), r.host
	}})
}

// rig is a local forge over SQLite, served to stock git clients.
type rig struct {
	testing.TB
	host *Host
	db   *sqlite.DB
	home string
	url  string

	mu    sync.Mutex
	armed fault.Place // the one that fails next
}

func newRig(t testing.TB) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: sqlite.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{TB: t, db: db, home: t.TempDir()}
	r.host = New(Options{Dir: filepath.Join(t.TempDir(), "repos"), Store: db, ApprovalStore: db})
	r.host.point = r.point
	server := httptest.NewServer(r.host.GitHandler("/git/", func(*http.Request, bool) error { return nil }))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// second is another handle on the same repositories and rows.
func (r *rig) second() *Host { return New(r.host.Options) }

var errInjected = errors.New("injected")

func (r *rig) point(p fault.Place) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p != r.armed {
		return fault.Point(p)
	}
	r.armed = 0
	return errInjected
}

func (r *rig) fail(point fault.Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed = point
}

func (r *rig) env() forgetest.Env {
	points := map[forgetest.Write][2]fault.Place{
		forgetest.Merge:             {pointBefore, pointSwapped},
		forgetest.CreateCommit:      {pointCommitBefore, pointCommitAfter},
		forgetest.OpenMergeRequest:  {pointOpenBefore, pointOpenAfter},
		forgetest.CloseMergeRequest: {pointCloseBefore, pointCloseAfter},
		forgetest.DeleteBranch:      {pointDeleteBefore, pointDeleteAfter},
		forgetest.Approve:           {pointApproveBefore, pointApproveAfter},
	}
	return forgetest.Env{
		Forge: r.host,
		Create: func(ctx context.Context, in forge.Repository) error {
			_, err := r.host.CreateRepository(ctx, in)
			return err
		},
		Status: r.host.SetStatus,
		Write:  r.write,
		Log:    r.log,
		Git:    r.git,
		URL:    func(project string) string { return r.url + "/git/" + project + ".git" },
		Fail: func(op forgetest.Write, applied bool) {
			p := points[op]
			if applied {
				r.fail(p[1])
			} else {
				r.fail(p[0])
			}
		},
		Second: func() forge.Changer { return r.second() },
	}
}

// git runs the stock client with no configuration but this.
func (r *rig) git(ctx context.Context, dir string, args ...string) (string, error) {
	return r.gitInput(ctx, dir, nil, args...)
}

func (r *rig) gitInput(ctx context.Context, dir string, in []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+r.home, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=U", "GIT_AUTHOR_EMAIL=u@example.com", "GIT_COMMITTER_NAME=U", "GIT_COMMITTER_EMAIL=u@example.com")
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("git %v: %w: %s", args, err, out)
	}
	return string(out), err
}

// write commits behind the forge's back; a push through it costs ten times as much.
func (r *rig) write(ctx context.Context, project, branch, parent string, files forgetest.Tree) (string, error) {
	dir, ref := r.host.repo(project).Dir, "refs/heads/"+branch
	if files == nil {
		_, err := r.git(ctx, dir, "update-ref", ref, parent)
		return parent, err
	}
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit %s\ncommitter U <u@example.com> 1700000000 +0000\ndata 6\nwrite\n\n", ref)
	if parent != "" {
		fmt.Fprintf(&in, "from %s\n", parent)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		switch f := files[path]; f.Mode {
		case "160000":
			fmt.Fprintf(&in, "M 160000 %s %s\n", f.Content, path)
		case "":
			f.Mode = "100644"
			fallthrough
		default:
			fmt.Fprintf(&in, "M %s inline %s\ndata %d\n%s\n", f.Mode, path, len(f.Content), f.Content)
		}
	}
	in.WriteString("\n")
	if _, err := r.gitInput(ctx, dir, in.Bytes(), "fast-import", "--quiet", "--force", "--date-format=raw"); err != nil {
		return "", err
	}
	out, err := r.git(ctx, dir, "rev-parse", ref)
	return strings.TrimSpace(out), err
}

func (r *rig) log(ctx context.Context, project, branch string) ([]forgetest.Commit, error) {
	repo := r.host.repo(project)
	tip, err := repo.Resolve(ctx, "refs/heads/"+branch)
	var log []forgetest.Commit
	for err == nil {
		c, readErr := repo.Commit(ctx, tip)
		if readErr != nil {
			return nil, readErr
		}
		log = append(log, forgetest.Commit{SHA: c.SHA, Parents: c.Parents, Message: c.Message, Name: c.AuthorName, Email: c.Author, When: c.When})
		if len(c.Parents) == 0 {
			break
		}
		tip = c.Parents[0]
	}
	return log, err
}
