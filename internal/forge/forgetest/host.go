package forgetest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mergeflow/mergeflow/internal/forge"
)

// HostHarness is a Harness of a forge that mergeflow keeps itself.
type HostHarness struct {
	// Open makes an empty forge, and the same as a Host.
	Open func(t testing.TB) (Env, forge.Host)
}

// RunHost holds a forge to forge.Host, each case on a forge of its own and in
// parallel.
func RunHost(t *testing.T, h HostHarness) {
	t.Helper()
	for _, c := range hostCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env, host := h.Open(t)
			c.run(&bench{T: t, Env: env, ctx: t.Context()}, host)
		})
	}
}

var hostCases = []struct {
	name string
	run  func(*bench, forge.Host)
}{
	{"CreateRepository", createRepository},
	{"CreateRepository refuses", createRepositoryRefuses},
	{"CreateMergeRequest refuses", createRequestRefuses},
	{"SetStatus refuses", setStatusRefuses},
	{"Git clients clone, fetch and push", gitClients},
	{"Git clients never see what mergeflow keeps", gitHidden},
	{"Git requests are allowed one by one", gitAllowed},
	{"Git requests for what is not there", gitUnknown},
	{"A push of more than 50 MB", gitLargePush},
	{"Pushes at the same time", gitManyPushes},
}

func createRepository(b *bench, h forge.Host) {
	r, err := h.CreateRepository(b.ctx, forge.Repository{Name: "app"})
	b.must(err)
	if r.Name != "app" || r.DefaultBranch != "main" || r.MergeStyle != forge.MergeCommit || r.RequireUpToDate || r.CreatedAt.IsZero() {
		b.Errorf("by default: %+v", r)
	}
	all := forge.Repository{Name: "Team.x/a_b-c/1", DefaultBranch: "trunk", RequiredChecks: []string{"build", "test"}, MergeStyle: forge.SquashCommit,
		RequireUpToDate: true, Reviewers: []string{"rex"}}
	r, err = h.CreateRepository(b.ctx, all)
	b.must(err)
	all.CreatedAt = r.CreatedAt
	if fmt.Sprint(r) != fmt.Sprint(all) {
		b.Errorf("with all set: %+v", r)
	}
	dir := b.TempDir()
	b.git(dir, "clone", "-q", b.URL(all.Name), ".")
	if head := b.git(dir, "symbolic-ref", "HEAD"); head != "refs/heads/trunk" {
		b.Errorf("an empty clone is on %s", head)
	}
	for _, name := range []string{"app", "APP"} { // folders that some systems take for one
		_, err = h.CreateRepository(b.ctx, forge.Repository{Name: name})
		b.kind(err, forge.KindExists, name)
	}
	racers := make([]error, 5)
	for i, err := range b.together(len(racers), func(int, forge.Changer) error {
		_, err := h.CreateRepository(b.ctx, forge.Repository{Name: "raced"})
		return err
	}) {
		racers[i] = err
	}
	b.winner(racers, forge.KindExists)
	b.write("raced", "main", "", text("works", "1"))
}

func createRepositoryRefuses(b *bench, h forge.Host) {
	for _, name := range []string{"", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "../x", ".hidden", "a/.b", "-x", "a.git", "a.GIT", "a.git/b", "a.lock",
		"a b", "a\\b", "a\x00", "a\nb", "ä", "a:b", "~a", "a?b", strings.Repeat("a", 101)} {
		_, err := h.CreateRepository(b.ctx, forge.Repository{Name: name})
		b.field(err, "name", fmt.Sprintf("the name %q", name))
	}
	for field, r := range map[string]forge.Repository{
		"defaultBranch":  {Name: "a", DefaultBranch: "--bare"},
		"mergeStyle":     {Name: "a", MergeStyle: "rebase"},
		"requiredChecks": {Name: "a", RequiredChecks: []string{"x", "x"}},
		"reviewers":      {Name: "a", Reviewers: []string{" "}},
	} {
		_, err := h.CreateRepository(b.ctx, r)
		b.field(err, field, field)
	}
	_, err := h.CreateRepository(b.ctx, forge.Repository{Name: "a"})
	b.must(err) // nothing of the refused ones is in the way
}

func createRequestRefuses(b *bench, h forge.Host) {
	b.must(b.Create(b.ctx, forge.Repository{Name: "empty"}))
	_, err := h.CreateMergeRequest(b.ctx, request("empty", "work"))
	b.field(err, "repo", "an empty repository")
	project, base := b.project(forge.Repository{})
	b.write(project, "work", base, text("x", "1"))
	b.write(project, "alone", "", text("x", "1"))
	for field, spoil := range map[string][]func(*forge.NewMergeRequest){
		"source": {
			func(in *forge.NewMergeRequest) { in.Source = "none" }, func(in *forge.NewMergeRequest) { in.Source = "a..b" },
			func(in *forge.NewMergeRequest) { in.Source = "main" }, func(in *forge.NewMergeRequest) { in.Source = "refs/heads/work" },
		},
		"target": {func(in *forge.NewMergeRequest) { in.Target = "none" }, func(in *forge.NewMergeRequest) { in.Target = "-x" }},
		"title": {
			func(in *forge.NewMergeRequest) { in.Title = " " }, func(in *forge.NewMergeRequest) { in.Title = "a\nb" },
			func(in *forge.NewMergeRequest) { in.Title = strings.Repeat("a", 501) }, func(in *forge.NewMergeRequest) { in.Title = "\xff" },
		},
		"description": {func(in *forge.NewMergeRequest) { in.Description = "\x00" }},
		"author":      {func(in *forge.NewMergeRequest) { in.Author = "a\nb" }},
		"watchers":    {func(in *forge.NewMergeRequest) { in.Watchers = []string{"a", "a"} }},
		"repo":        {func(in *forge.NewMergeRequest) { in.Project = "../x" }},
	} {
		for i, change := range spoil {
			in := request(project, "work")
			change(&in)
			_, err := h.CreateMergeRequest(b.ctx, in)
			b.field(err, field, fmt.Sprint(field, " ", i))
		}
	}
	_, err = h.CreateMergeRequest(b.ctx, request("nowhere", "work"))
	b.kind(err, forge.KindNotFound, "an unknown repository")
	if got := b.found(project, "work", "main"); len(got) != 0 {
		b.Errorf("found %v", got)
	}
}

func setStatusRefuses(b *bench, h forge.Host) {
	project, sha := b.project(forge.Repository{RequiredChecks: []string{"build"}})
	good := forge.Status{Project: project, SHA: sha, Context: "build", State: "success"}
	for field, spoil := range map[string][]func(*forge.Status){
		"sha":         {func(s *forge.Status) { s.SHA = "main" }, func(s *forge.Status) { s.SHA = sha[:10] }},
		"context":     {func(s *forge.Status) { s.Context = "" }, func(s *forge.Status) { s.Context = "a\nb" }},
		"state":       {func(s *forge.Status) { s.State = "passed" }, func(s *forge.Status) { s.State = "" }},
		"description": {func(s *forge.Status) { s.Description = "\x00" }, func(s *forge.Status) { s.Description = strings.Repeat("a", 1001) }},
		"targetUrl":   {func(s *forge.Status) { s.TargetURL = "javascript:alert(1)" }, func(s *forge.Status) { s.TargetURL = "/x" }},
	} {
		for i, change := range spoil {
			s := good
			change(&s)
			b.field(h.SetStatus(b.ctx, s), field, fmt.Sprint(field, " ", i))
		}
	}
	none := good
	none.SHA = missing
	b.kind(h.SetStatus(b.ctx, none), forge.KindNotFound, "a commit that is not there")
	none = good
	none.Project = "nowhere"
	b.kind(h.SetStatus(b.ctx, none), forge.KindNotFound, "an unknown repository")
	if c, err := h.Checks(b.ctx, project, sha); err != nil || c.State != forge.ChecksPending {
		b.Errorf("the checks: %+v, %v", c, err)
	}
	b.must(h.SetStatus(b.ctx, good))
	if c, err := h.Checks(b.ctx, project, sha); err != nil || c.State != forge.ChecksPassed {
		b.Errorf("the checks: %+v, %v", c, err)
	}
}

func gitClients(b *bench, _ forge.Host) {
	b.must(b.Create(b.ctx, forge.Repository{Name: "team/app"}))
	one, two := b.clone("team/app"), b.clone("team/app")
	commit := func(dir, file string) string {
		b.must(os.WriteFile(filepath.Join(dir, file), []byte(file), 0o600))
		b.git(dir, "add", file)
		b.git(dir, "commit", "-q", "-m", file)
		return b.git(dir, "rev-parse", "HEAD")
	}
	first := commit(one, "first")
	b.git(one, "push", "-q", "origin", "main", "main:feature/x")
	if b.tip("team/app", "main") != first || b.tip("team/app", "feature/x") != first {
		b.Error("the push did not arrive")
	}
	for _, version := range []string{"0", "1", "2"} {
		if out := b.git(one, "-c", "protocol.version="+version, "ls-remote", "origin", "refs/heads/main"); !strings.HasPrefix(out, first) {
			b.Errorf("protocol %s: %s", version, out)
		}
	}
	b.git(two, "pull", "-q", "origin", "main")
	second := commit(two, "second")
	b.git(two, "push", "-q", "origin", "main")
	commit(one, "third")
	if out, err := b.Git(b.ctx, one, "push", "-q", "origin", "main"); err == nil || !strings.Contains(out, "rejected") {
		b.Errorf("a push over another one: %s %v", out, err)
	}
	if b.tip("team/app", "main") != second {
		b.Error("a refused push arrived")
	}
	b.git(one, "fetch", "-q", "--depth=1", "origin", "main")
	b.git(one, "push", "-q", "origin", ":feature/x")
	if b.tip("team/app", "feature/x") != "" {
		b.Error("the branch is still there")
	}
}

func gitHidden(b *bench, _ forge.Host) {
	project, mr := b.opened(forge.Repository{})
	b.merge(input(mr))
	b.write(project, "other", mr.TargetSHA, text("y", "1"))
	b.must(b.Forge.CloseMergeRequest(b.ctx, b.open(project, "other").Ref))
	dir := b.clone(project)
	for _, version := range []string{"0", "2"} {
		if out := b.git(dir, "-c", "protocol.version="+version, "ls-remote", "origin"); strings.Contains(out, "mergeflow") || !strings.Contains(out, "refs/heads/main") {
			b.Errorf("a client sees:\n%s", out)
		}
	}
	for _, ref := range []string{"refs/mergeflow/merged/" + mr.ID, "refs/mergeflow/closed/" + mr.ID, "refs/mergeflow/x"} {
		for _, args := range [][]string{{"fetch", "-q", "origin", ref}, {"push", "-q", "origin", "HEAD:" + ref}, {"push", "-q", "--force", "origin", ":" + ref}} {
			// What is hidden can be asked to be deleted; nothing may come of it.
			if out, err := b.Git(b.ctx, dir, args...); err == nil && args[0] == "push" && args[2] != "--force" {
				b.Errorf("git %v went through: %s", args, out)
			}
		}
	}
	b.merged(mr, b.look(mr.Ref).MergeCommit)
	if s := b.found(project, "other", "main"); !slices.Equal(s, []string{"2 closed"}) {
		b.Errorf("the closed one: %v", s)
	}
}

func gitAllowed(b *bench, h forge.Host) {
	project, base := b.project(forge.Repository{})
	server := httptest.NewServer(h.GitHandler("/git/", func(r *http.Request, write bool) error {
		user, password, _ := r.BasicAuth()
		switch {
		case user == "":
			return fmt.Errorf("who is there")
		case password != "secret":
			return fmt.Errorf("wrong password: %w", forge.ErrUnauthenticated)
		case write && user != "writer":
			return fmt.Errorf("not for %s", user)
		}
		return nil
	}))
	b.Cleanup(server.Close)
	url := server.URL + "/git/" + project + ".git"
	for _, c := range []struct {
		user, password, path string
		want                 int
	}{
		{"", "", "/info/refs?service=git-upload-pack", 401},
		{"reader", "wrong", "/info/refs?service=git-upload-pack", 401},
		{"reader", "secret", "/info/refs?service=git-upload-pack", 200},
		{"reader", "secret", "/info/refs?service=git-receive-pack", 403},
		{"writer", "secret", "/info/refs?service=git-receive-pack", 200},
	} {
		req, err := http.NewRequestWithContext(b.ctx, http.MethodGet, url+c.path, nil)
		b.must(err)
		if c.user != "" {
			req.SetBasicAuth(c.user, c.password)
		}
		resp, err := server.Client().Do(req)
		b.must(err)
		body, err := io.ReadAll(resp.Body)
		b.must(err)
		_ = resp.Body.Close()
		if resp.StatusCode != c.want || (c.want == 401) != (resp.Header.Get("WWW-Authenticate") != "") {
			b.Errorf("%+v: %d %q", c, resp.StatusCode, resp.Header.Get("WWW-Authenticate"))
		}
		if c.want != 200 && (strings.Contains(string(body), "password") || strings.Contains(string(body), "not for")) {
			b.Errorf("%+v: the reason is shown: %s", c, body)
		}
	}
	dir := b.clone(project)
	b.git(dir, "commit", "-q", "--allow-empty", "-m", "x")
	as := func(user string) string {
		return strings.Replace(url, "http://", "http://"+user+":secret@", 1)
	}
	b.git(dir, "fetch", "-q", as("reader"))
	if out, err := b.Git(b.ctx, dir, "push", "-q", as("reader"), "HEAD:main"); err == nil || b.tip(project, "main") != base {
		b.Errorf("a reader's push: %s", out)
	}
	b.git(dir, "push", "-q", as("writer"), "HEAD:main")
	if b.tip(project, "main") == base {
		b.Error("a writer's push did not arrive")
	}
}

func gitUnknown(b *bench, h forge.Host) {
	project, _ := b.project(forge.Repository{})
	server := httptest.NewServer(h.GitHandler("/git/", func(*http.Request, bool) error { return nil }))
	b.Cleanup(server.Close)
	for _, path := range []string{
		"nowhere.git/info/refs?service=git-upload-pack",
		project + ".git/info/refs", // the older protocol hands out files
		project + ".git/info/refs?service=git-upload-archive",
		project + ".git/HEAD",
		project + ".git/config",
		project + ".git/objects/info/packs",
		project + "/info/refs?service=git-upload-pack",
		project + ".git/git-upload-pack",
		"..%2f..%2f" + project + ".git/info/refs?service=git-upload-pack",
		project + ".git/../" + project + ".git/info/refs?service=git-upload-pack",
		".git/info/refs?service=git-upload-pack",
	} {
		req, err := http.NewRequestWithContext(b.ctx, http.MethodGet, server.URL+"/git/"+path, nil)
		b.must(err)
		resp, err := server.Client().Do(req)
		b.must(err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			b.Errorf("%s: %s", path, resp.Status)
		}
	}
}

func gitLargePush(b *bench, _ forge.Host) {
	project, _ := b.project(forge.Repository{})
	dir := b.clone(project)
	const size = 52 << 20
	// Noise, so that it stays that large on the way; three files, so that no
	// single one is the whole.
	noise := rand.NewChaCha8([32]byte{1})
	for i := range 3 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint("large", i)))
		b.must(err)
		_, err = io.CopyN(f, noise, size/3+1)
		b.must(err)
		b.must(f.Close())
	}
	// Speed is the server's business here, not the client's compression.
	for _, c := range [][2]string{{"core.compression", "0"}, {"core.bigFileThreshold", "1m"}} {
		b.git(dir, "config", c[0], c[1])
	}
	b.git(dir, "add", ".")
	b.git(dir, "commit", "-q", "-m", "large")
	head := b.git(dir, "rev-parse", "HEAD")
	b.git(dir, "push", "-q", "origin", "HEAD:refs/heads/large")
	if got := b.tip(project, "large"); got != head {
		b.Fatalf("the branch is at %q, the client's at %s", got, head)
	}
	files, err := b.Forge.Files(b.ctx, project, head, []string{"large0", "large1", "large2"})
	b.must(err)
	for name, f := range files {
		if want := b.git(dir, "rev-parse", "HEAD:"+name); f.Blob != want {
			b.Errorf("%s is %s, the client has %s", name, f.Blob, want)
		}
	}
}

func gitManyPushes(b *bench, _ forge.Host) {
	project, _ := b.project(forge.Repository{})
	dirs := make([]string, 4)
	for i := range dirs {
		dirs[i] = b.clone(project)
		b.git(dirs[i], "commit", "-q", "--allow-empty", "-m", fmt.Sprint("branch ", i))
	}
	for i, err := range b.together(len(dirs), func(i int, _ forge.Changer) error {
		_, err := b.Git(b.ctx, dirs[i], "push", "-q", "origin", fmt.Sprint("HEAD:refs/heads/b", i))
		return err
	}) {
		if head := b.git(dirs[i], "rev-parse", "HEAD"); err != nil || b.tip(project, fmt.Sprint("b", i)) != head {
			b.Errorf("push %d: %v, the branch is at %s", i, err, b.tip(project, fmt.Sprint("b", i)))
		}
	}
}
