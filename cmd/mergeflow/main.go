// Command mergeflow carries changes from request to live. Everything it does is
// behind a subcommand; see internal/cli.
package main

import (
	"os"

	"github.com/mergeflow/mergeflow/internal/cli"
)

// version is set when the binary is built.
var version string

func main() {
	if version != "" {
		cli.Version = version
	}
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
