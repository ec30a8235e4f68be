//go:build !fault

// Package fault names the places where tests make a process die, freeze, hang
// or fail. Only a binary built with the tag `fault` holds their names and acts
// at them; in the product Point is empty and inlined away.
package fault

import "github.com/mergeflow/mergeflow/internal/saga"

// Enabled says whether this binary was built for tests.
const Enabled = false

// Point is a place. It does nothing in this build.
func Point(Place) error { return nil }

// PointOf is a place of a command, or of a kind of callback. It does nothing in
// this build.
func PointOf(Place, string) error { return nil }

// Older is the table as this process shows it: whole, in this build.
func Older(f *saga.Flow) *saga.Flow { return f }

// Without says whether this process plays an older build that does not know a
// type of command. None does in this build.
func Without(string) bool { return false }
