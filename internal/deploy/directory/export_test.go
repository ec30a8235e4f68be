package directory

import "context"

// Flat is flat.
var Flat = flat

// BeforeName calls f with each new release before it gets its name.
func (d *Deployer) BeforeName(f func(dir string) error) {
	d.sync = func(_ context.Context, dir string) error { return f(dir) }
}
