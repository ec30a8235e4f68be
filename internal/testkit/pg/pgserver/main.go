// Command pgserver runs a command beside a throwaway PostgreSQL:
//
//	pgserver [-durable] -- command [argument]…
//
// It starts the server, sets MERGEFLOW_TEST_PG to its address, runs the
// command, stops the server and ends with the command's exit status.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/mergeflow/mergeflow/internal/testkit/pg"
)

func main() {
	durable := flag.Bool("durable", false, "run with fsync, as in production")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: pgserver [-durable] -- command [argument]…")
		os.Exit(2)
	}
	status, err := run(pg.Options{Durable: *durable}, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgserver:", err)
	}
	os.Exit(status)
}

func run(o pg.Options, args []string) (status int, err error) {
	// Before the server starts, so that a signal can't leave it half started.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	s, err := pg.Start(context.Background(), o)
	if err != nil {
		return 1, err
	}
	defer s.Stop()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), pg.Env+"="+s.DSN("postgres"))
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case got := <-signals:
			_ = cmd.Process.Signal(got) // it may have ended meanwhile
		case err := <-ended:
			exit, ok := errors.AsType[*exec.ExitError](err)
			switch {
			case err == nil:
				return 0, nil
			case !ok:
				return 1, err
			}
			if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
				return 128 + int(w.Signal()), nil
			}
			return exit.ExitCode(), nil
		}
	}
}
