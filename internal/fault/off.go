//go:build !fault

// Package fault names the places where tests make a process die, freeze, hang
// or fail. Only a binary built with the tag `fault` holds them; in the product
// Point is empty and inlined away.
package fault

// Enabled says whether this binary was built for tests.
const Enabled = false

// Point is a named place. It does nothing in this build.
func Point(string) error { return nil }
