package sqlite

import "context"

// Wake does nothing: no other process has the file.
func (db *DB) Wake(context.Context) error { return nil }

// Listen returns at once: there is nobody to listen to.
func (db *DB) Listen(context.Context, func()) error { return nil }
