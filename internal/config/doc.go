// Package config reads the configuration: defaults, then a YAML file, then
// MERGEFLOW_ variables, then flags, each laid over what came before.
//
// The Config struct is the schema. Its tags name the keys and say which are
// live; decoding, the "did you mean" of an unknown key, `config show`, the
// comparison on a reload and the test over docs/configuration.md all walk the
// same struct, so that no list of keys has to be kept beside it.
//
// Every value remembers where it came from. Loading never stops at the first
// problem: it collects all of them, each with its place.
//
// Live holds the running configuration and follows its file. What a reload may
// change is what the tags mark live; the rest is reported and waits for a restart.
package config
