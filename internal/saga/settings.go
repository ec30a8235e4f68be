package saga

import "time"

// Settings are what configuration may change about the tables while they run.
// The zero value means the tables' own defaults.
type Settings struct {
	Deadlines  map[State]time.Duration
	Polls      map[State]Poll
	Queued     time.Duration // how long a command may wait for its first claim
	Attempts   int           // executions per visit to a state
	Backoff    time.Duration // pause after the first failed attempt; doubles
	BackoffMax time.Duration
}

// Defaults of the settings (docs/configuration.md).
const (
	DefaultQueued     = 30 * time.Minute
	DefaultAttempts   = 10
	DefaultBackoff    = 500 * time.Millisecond
	DefaultBackoffMax = 30 * time.Second
)

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// DeadlineOf is a state's patience.
func (s Settings) DeadlineOf(spec *Spec) time.Duration {
	return or(s.Deadlines[spec.State], spec.Deadline.After)
}

// PollOf is a state's schedule of looks.
func (s Settings) PollOf(spec *Spec) Poll {
	p := or(s.Polls[spec.State], spec.Poll)
	if p == (Poll{}) {
		p = Poll{Short: time.Second, ShortTries: 10, Long: 5 * time.Second}
	}
	return p
}

// QueuedLimit is how long a command may wait for its first claim.
func (s Settings) QueuedLimit() time.Duration { return or(s.Queued, DefaultQueued) }

// AttemptLimit is how many executions a visit to a state may begin.
func (s Settings) AttemptLimit() int { return or(s.Attempts, DefaultAttempts) }

// BackoffAfter is the pause after failed attempt n (from 1): doubling, capped,
// and spread by jitter in [0,1) over the upper half, so that sagas that failed
// together don't come back together.
func (s Settings) BackoffAfter(n int, jitter float64) time.Duration {
	base, limit := or(s.Backoff, DefaultBackoff), or(s.BackoffMax, DefaultBackoffMax)
	d := base
	for i := 1; i < n && d < limit; i++ {
		d *= 2
	}
	d = min(d, limit)
	return d/2 + time.Duration(jitter*float64(d/2))
}
