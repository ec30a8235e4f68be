package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// writerPatience is how long a change waits for another writer. It takes
// milliseconds, unless its process was stopped in between.
const writerPatience = 15 * time.Second

// Swap moves one reference from Old to New. Zero as Old makes it, Zero as New
// removes it.
type Swap struct {
	Ref, Old, New string
}

// Guard is what another reference must be for a swap to happen; Zero: absent.
type Guard struct {
	Ref, Value string
}

// UpdateRef performs the swap if the reference is at s.Old and every guard
// holds, checked while all of them are locked. One reference is written, so a
// crash leaves it either as it was or as it was asked to be: git writes several
// references one after the other, and a killed git has written some of them.
//
// ErrMoved: something has another value, nothing was written. ErrNested and
// *LockError: nothing was written. A cancelled context or a killed git: the swap may have
// happened, or may still happen until UpdateRef is called again (every call
// first waits for an orphaned git to end).
func (r Repo) UpdateRef(ctx context.Context, s Swap, guards ...Guard) error {
	var in strings.Builder
	refs := []string{s.Ref}
	ids := []string{s.Old, s.New}
	fmt.Fprintf(&in, "update %s\x00%s\x00%s\x00", s.Ref, s.New, s.Old)
	for _, g := range guards {
		refs, ids = append(refs, g.Ref), append(ids, g.Value)
		fmt.Fprintf(&in, "verify %s\x00%s\x00", g.Ref, g.Value)
	}
	if err := checkSHAs(ids...); err != nil {
		return err
	}
	for _, ref := range refs {
		if err := checkRef(ref); err != nil {
			return fmt.Errorf("%.80q: %w", ref, err)
		}
	}
	waiting, cancel := context.WithTimeout(ctx, writerPatience)
	defer cancel()
	writer, err := r.begin(waiting, refs)
	if err != nil {
		return err
	}
	_, err = call{
		op: "update-ref", dir: r.Dir, args: []string{"--no-deref", "--stdin", "-z"},
		stdin: strings.NewReader(in.String()), held: []*os.File{writer},
	}.output(ctx)
	end(writer, err == nil || exitCode(err) >= 0)
	return r.refused(err, refs)
}

// refused turns git's words about a swap that it did not make into an error
// that callers can tell apart.
func (r Repo) refused(err error, refs []string) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.ExitCode < 0 {
		return err
	}
	switch {
	case strings.Contains(e.Stderr, ".lock': File exists"):
		for _, ref := range append(refs, head, packedRefs) {
			if strings.Contains(e.Stderr, "'"+ref+".lock'") {
				return r.lockError(ref)
			}
		}
	case strings.Contains(e.Stderr, "' exists; cannot create '"):
		return fmt.Errorf("%s: %w", refs[0], ErrNested)
	case strings.Contains(e.Stderr, "but expected"),
		strings.Contains(e.Stderr, "reference already exists"),
		strings.Contains(e.Stderr, "unable to resolve reference"):
		return fmt.Errorf("%s: %w", strings.Join(refs, ", "), ErrMoved)
	}
	return err
}
