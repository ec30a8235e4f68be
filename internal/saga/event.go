package saga

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// Event is what moves a saga: a step's outcome, a callback, an operator's
// click, a deadline, what reconcile found. All take the same road.
type Event struct {
	ID      string          `json:"id,omitempty"` // the callback that brought it, where one did
	Name    Name            `json:"name"`
	Version int64           `json:"version,omitempty"` // the version of the row it was made for; 0: whatever it is now
	Actor   string          `json:"actor"`
	Detail  string          `json:"detail,omitempty"` // a person's reason, or what was seen
	Data    json.RawMessage `json:"data,omitempty"`   // laid over the saga's data
	Failure *Failure        `json:"failure,omitempty"`
	At      time.Time       `json:"at"` // the database's time
	Step    bool            `json:"-"`  // it comes from the holder of the command's lease
	Requeue *Requeue        `json:"-"`  // not a transition: the command goes back
}

// Requeue puts a command back for a later look or try.
type Requeue struct {
	After    time.Duration
	Attempt  int
	Checks   int
	Unclear  bool
	Evidence string
	// Extend, where set, moves a deadline or queue limit that has passed to that
	// much from now.
	Extend time.Duration
	// Note goes into the saga's notes; empty for a mere poll.
	Note string
}

// Actor names for events that no person sends.
const (
	ActorEngine = "mergeflow"
)

// TypeOf is an outbox row's type: all that an instance must know to perform it.
func TypeOf(flow string, version int, s State, c Command) string {
	return flow + "/" + strconv.Itoa(version) + "/" + string(s) + "/" + string(c)
}

// ParseType undoes TypeOf; ok is false for a text that TypeOf doesn't make.
func ParseType(t string) (flow string, version int, s State, c Command, ok bool) {
	p := strings.Split(t, "/")
	if len(p) != 4 {
		return "", 0, "", "", false
	}
	v, err := strconv.Atoi(p[1])
	if err != nil {
		return "", 0, "", "", false
	}
	return p[0], v, State(p[2]), Command(p[3]), true
}
