// Package proof holds the tests that take whole processes: killed at every
// fault point, frozen, several over one database, an index that is down. What
// they show is what mergeflow promises: nothing lost, nothing doubled, nothing
// stuck. The package has tests only.
package proof
