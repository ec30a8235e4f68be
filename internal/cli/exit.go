package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// The exit statuses; scripts rely on them.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNotFound = 3
	exitRefused  = 4
	exitGoing    = 5
)

// failure is how a command ends when it doesn't end well.
type failure struct {
	exit   int
	code   string // stable, as the API's
	detail string
	fields []field
	hint   string   // what to do now
	more   []string // further lines, one problem each
	body   []byte   // the API's problem document; printed as it is with -o json
	silent bool     // all has been said on stdout
}

// field is one wrong field of the input.
type field struct{ path, message string }

// Error is the one line that stderr gets.
func (f *failure) Error() string {
	var b strings.Builder
	b.WriteString(f.code)
	if f.detail != "" {
		b.WriteString(": " + f.detail)
	}
	for _, x := range f.fields {
		b.WriteString("; ")
		if x.path != "" {
			b.WriteString(x.path + ": ")
		}
		b.WriteString(x.message)
	}
	if f.hint != "" {
		b.WriteString("; hint: " + f.hint)
	}
	return b.String()
}

// failed is a failure of no special kind.
func failed(code string, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	return &failure{exit: exitFailed, code: code, detail: err.Error()}
}

// usage is a command line that can't be understood.
func usage(err error) *failure {
	return &failure{exit: exitUsage, code: "usage", detail: err.Error(), hint: "mergeflow help"}
}

func usageOf(c *cobra.Command, err error) *failure {
	f := usage(err)
	f.hint = c.CommandPath() + " --help"
	return f
}

// args names a command's positional arguments: exactly these, none optional.
func args(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if len(given) < len(names) {
			return usageOf(c, fmt.Errorf("argument %s is missing", names[len(given)]))
		}
		if len(given) > len(names) {
			return usageOf(c, fmt.Errorf("argument %q is one too many", given[len(names)]))
		}
		for i, g := range given {
			if strings.TrimSpace(g) == "" {
				return usageOf(c, fmt.Errorf("argument %s is empty", names[i]))
			}
		}
		return nil
	}
}

// group makes a command that only holds others refuse to be run by itself.
func group(c *cobra.Command) *cobra.Command {
	c.Args = func(c *cobra.Command, given []string) error {
		if len(given) > 0 {
			err := fmt.Errorf("unknown command %q for %q", given[0], c.CommandPath())
			if near := c.SuggestionsFor(given[0]); len(near) > 0 {
				err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
			}
			return usageOf(c, err)
		}
		return nil
	}
	c.SuggestionsMinimumDistance = 2
	c.RunE = func(c *cobra.Command, _ []string) error {
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		return usageOf(c, fmt.Errorf("a command is missing: one of %s", strings.Join(names, ", ")))
	}
	return c
}

// required checks flags that must be given.
func required(c *cobra.Command, names ...string) error {
	for _, n := range names {
		if f := c.Flags().Lookup(n); f.Value.String() == "" {
			return usageOf(c, fmt.Errorf("flag --%s is required", n))
		}
	}
	return nil
}

// oneOf checks a flag's value.
func oneOf(c *cobra.Command, flag string, allowed ...string) error {
	v := c.Flags().Lookup(flag).Value.String()
	for _, a := range allowed {
		if v == a {
			return nil
		}
	}
	return usageOf(c, fmt.Errorf("flag --%s must be one of %s, not %q", flag, strings.Join(allowed, ", "), v))
}

// report prints a failure and answers its exit status.
func (s *session) report(err error) int {
	f := failed("failed", err)
	switch {
	case f.silent:
	case s.format == formatJSON && f.body != nil:
		s.errorln(strings.TrimSpace(string(f.body)))
	default:
		s.errorln("error: " + plain(f.Error()))
		for _, line := range f.more {
			s.errorln("  " + plain(line))
		}
	}
	return f.exit
}
