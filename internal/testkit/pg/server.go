// Package pg lends throwaway PostgreSQL databases to tests.
//
// One server runs per test process, started from the installed binaries on its
// first use; with MERGEFLOW_TEST_PG (a DSN) all processes share one that runs
// already (package pgserver starts it). Every test gets a database of its own,
// copied from a migrated template in a few dozen milliseconds.
//
// A server listens on a Unix socket in a private folder and nowhere else. It
// ends with the process that started it, however that process ends.
package pg

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options says how a server runs.
type Options struct {
	// Durable turns fsync and the rest of PostgreSQL's crash safety on, as in
	// production. Tests do without: their databases need not survive anything.
	Durable bool
}

// Server is one running PostgreSQL. Its methods are safe for concurrent use,
// but for Crash, Restart and Stop.
type Server struct {
	dir     string
	command func() error // starts the server's process
	process *os.Process
	ended   chan struct{} // closed when the server process has been reaped
	janitor *exec.Cmd
	cord    *os.File // the janitor reads it; it closes with this process
}

const (
	startLimit = 30 * time.Second
	superuser  = "postgres"
)

// Start starts a server and waits until it answers. Stop ends it.
func Start(ctx context.Context, o Options) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	cred, err := unprivileged()
	if err != nil {
		return nil, err
	}
	// Not os.TempDir: a socket's path must stay under 108 bytes.
	dir, err := os.MkdirTemp("/tmp", "mergeflow-pg-")
	if err != nil {
		return nil, fmt.Errorf("folder for PostgreSQL: %w", err)
	}
	s := &Server{dir: dir, ended: make(chan struct{})}
	if err := s.start(ctx, bin, cred, o); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, bin string, cred *syscall.Credential, o Options) error {
	if cred != nil {
		if err := os.Chown(s.dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return fmt.Errorf("folder for PostgreSQL: %w", err)
		}
	}
	data := filepath.Join(s.dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", superuser,
		"-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions")
	initdb.Dir, initdb.Env, initdb.SysProcAttr = s.dir, environment(), &syscall.SysProcAttr{Credential: cred}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}

	durable := "off"
	if o.Durable {
		durable = "on"
	}
	args := []string{"-D", data, "-k", s.dir}
	for _, setting := range []string{
		"listen_addresses=", "unix_socket_permissions=0700", "max_connections=400", "shared_buffers=128MB",
		"fsync=" + durable, "synchronous_commit=" + durable, "full_page_writes=" + durable,
		"autovacuum_naptime=10s", "max_wal_size=1GB", "log_min_messages=fatal",
	} {
		args = append(args, "-c", setting)
	}
	s.command = func() error { return s.run(filepath.Join(bin, "postgres"), args, cred) }
	if err := s.command(); err != nil {
		return err
	}
	if err := s.hireJanitor(); err != nil {
		return err
	}
	return s.awaitReady(ctx)
}

// run starts the server on an OS thread that lives as long as the server: the
// kernel sends the parent-death signal when the thread that forked ends, not
// when the process does.
func (s *Server) run(name string, args []string, cred *syscall.Credential) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = s.dir, environment()
		// A group of its own: Ctrl-C on the tests must not reach it before they have ended.
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Setpgid: true, Pdeathsig: syscall.SIGQUIT}
		log, err := os.Create(filepath.Join(s.dir, "log"))
		if err == nil {
			defer log.Close()
			cmd.Stdout, cmd.Stderr = log, log
			err = cmd.Start()
		}
		if err != nil {
			started <- fmt.Errorf("start PostgreSQL: %w", err)
			return
		}
		s.process = cmd.Process
		ended := s.ended
		// For the janitor. It is as good as its folder: what can't be written leaves the folder behind.
		_ = os.WriteFile(filepath.Join(s.dir, "pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
		started <- nil
		_ = cmd.Wait() // the exit status of a killed server says nothing
		close(ended)
	}()
	return <-started
}

// hireJanitor starts a shell that removes the server's folder when this process
// is gone, even when it was killed.
func (s *Server) hireJanitor() error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	defer r.Close()
	s.cord = w
	s.janitor = exec.Command("/bin/sh", "-c", `read -r _; while kill -0 "$(cat "$0/pid")" 2>/dev/null; do sleep 0.1; done; rm -rf -- "$0"`, s.dir)
	s.janitor.Stdin = r
	s.janitor.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.janitor.Start(); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	return nil
}

func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, s.DSN(superuser))
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-s.ended:
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("PostgreSQL ended at once: %s", strings.TrimSpace(string(log)))
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL does not answer: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// DSN is the address of one of the server's databases.
func (s *Server) DSN(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database,
		RawQuery: url.Values{"host": {s.dir}, "port": {"5432"}}.Encode()}
	return u.String()
}

// Pid is the server's main process.
func (s *Server) Pid() int { return s.process.Pid }

// Crash ends the server as a power cut would, for its clients: nobody is told,
// nothing is finished (the immediate shutdown). Its data stays.
func (s *Server) Crash() {
	_ = s.process.Signal(syscall.SIGQUIT) // fails only when it has ended already
	<-s.ended
}

// Restart starts a crashed server on its data again and waits until it answers.
func (s *Server) Restart(ctx context.Context) error {
	s.ended = make(chan struct{})
	if err := s.command(); err != nil {
		close(s.ended)
		return err
	}
	return s.awaitReady(ctx)
}

// Stop ends the server at once and removes its folder. It is called once.
func (s *Server) Stop() {
	if s.process != nil {
		_ = s.process.Signal(syscall.SIGQUIT) // fails only when it has ended already
		<-s.ended
	}
	if s.cord != nil {
		s.cord.Close()
	}
	if s.janitor != nil && s.janitor.Process != nil {
		_ = s.janitor.Wait() // what it leaves, the next line removes
	}
	os.RemoveAll(s.dir)
}

// binaries finds the folder of the newest PostgreSQL.
func binaries() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is well-formed
	slices.SortFunc(found, func(a, b string) int { return majorOf(b) - majorOf(a) })
	if p, err := exec.LookPath("postgres"); err == nil {
		found = append(found, p)
	}
	for _, p := range found {
		dir := filepath.Dir(p)
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("tests need PostgreSQL: install Debian's package postgresql (apt-get install postgresql)")
}

func majorOf(p string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(p)))) // no number sorts last
	return n
}

// unprivileged is who the server runs as: PostgreSQL refuses root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(superuser)
	if err != nil {
		return nil, errors.New("tests run as root need the user postgres: install Debian's package postgresql (apt-get install postgresql)")
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user postgres: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user postgres: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "TZ=UTC"}
}
