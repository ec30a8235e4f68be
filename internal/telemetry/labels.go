package telemetry

import "sync"

// maxValues bounds the values of one label. The two tables have some sixty
// states together; a label that reaches this is being fed something else.
const maxValues = 200

const other = "other"

// labels remembers which values each label has had. The zero value is ready.
type labels struct {
	mu   sync.RWMutex
	seen map[string]map[string]bool
}

// bound answers the value, or "other" when the label has too many already or
// the value is no short word.
func (l *labels) bound(label, value string) string {
	l.mu.RLock()
	known := l.seen[label][value]
	l.mu.RUnlock()
	if known {
		return value
	}
	if len(value) > 100 {
		return other
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[string]map[string]bool{}
	}
	values := l.seen[label]
	if values == nil {
		values = map[string]bool{}
		l.seen[label] = values
	}
	if !values[value] && len(values) >= maxValues {
		return other
	}
	values[value] = true
	return value
}
