package config

import (
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
)

// maxFileBytes bounds the configuration file.
const maxFileBytes = 4 << 20

// Options says what to load.
type Options struct {
	// File is the configuration file; empty: the one that MERGEFLOW_CONFIG in
	// Env names, or none.
	File string
	// Env is the environment as os.Environ gives it. Nothing else is looked at.
	Env []string
	// Flags are the flags that were given, by key ("data_dir", "log.level").
	Flags map[string]any
	// States are the names of the states whose deadlines may be set; nil
	// accepts any name.
	States []string
	// RefusedDeadlines names the setting to use instead, by state.
	RefusedDeadlines map[string]string
}

// Load reads, merges and validates the configuration. A configuration that is
// wrong answers an *Error with every problem; a file that can't be read is one
// of them. Load changes nothing outside.
func Load(opts Options) (*Config, error) {
	text, err := readFile(opts.path())
	return load(opts, text, err)
}

// Check says whether the configuration would load: nil or an *Error.
func Check(opts Options) error {
	_, err := Load(opts)
	return err
}

func (o Options) path() string {
	if o.File != "" {
		return o.File
	}
	path, _ := o.lookup("MERGEFLOW_CONFIG")
	return path
}

// lookup finds a variable; of two with one name the later counts.
func (o Options) lookup(name string) (value string, ok bool) {
	for _, kv := range o.Env {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			value, ok = v, true
		}
	}
	return value, ok
}

func readFile(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	switch {
	case err != nil:
		return nil, cause(err)
	case len(text) > maxFileBytes:
		return nil, errors.New("the file is larger than 4 MiB")
	}
	return text, nil
}

// load is Load of a file that is read already.
func load(opts Options, text []byte, readErr error) (*Config, error) {
	c := defaults()
	p := &problems{at: c.origins}
	place := Origin{File: opts.path()}
	if readErr != nil {
		p.add(place, "", "%s", readErr)
		return nil, p.err()
	}
	root := parseYAML(text, place, p)
	if root.kind == null {
		root = &node{kind: mapping}
	}
	if root.kind != mapping {
		p.add(root.origin, "", "must be a section with keys, not %s", root.kind)
		return nil, p.err()
	}
	root, unknown := overlayEnv(root, opts.Env, p)
	root = overlayFlags(root, opts.Flags, p)

	d := &decoder{p: p, env: opts.lookup, envUsed: map[string]bool{}}
	d.value(root, reflect.ValueOf(c).Elem(), "", field{})
	for _, u := range unknown {
		if !d.envUsed[u.name] {
			p.add(Origin{Env: u.name}, u.problem.Path, "%s", u.problem.Message)
		}
	}
	c.derive()
	c.validate(p, opts)
	if err := p.err(); err != nil {
		return nil, err
	}
	return c, nil
}
