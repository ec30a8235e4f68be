package httpapi

import "time"

// WithPulse shortens a stream's poll and heartbeat.
func (o Options) WithPulse(poll, heartbeat time.Duration) Options {
	o.poll, o.heartbeat = poll, heartbeat
	return o
}

// What the outside can't see.
var (
	CheckJSON   = checkJSON
	HostAllowed = hostAllowed
	TimeCursor  = timeCursor
)
