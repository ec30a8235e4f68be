package git

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
)

// Signed is a commit whose message ends with trailers ("Key: value").
type Signed struct {
	SHA string
	// Values are those of the trailers that were asked for, in their order; of
	// a trailer that is repeated the first, empty where there is none.
	Values []string
	// Copied says that somebody else wrote the commit down than the one who
	// made it, or later: cherry-picks and rebases keep message and author, and
	// are dated anew.
	Copied bool
}

// Trailers calls fn for every commit in tip's history that carries the first of
// the trailers, newest first. A key is letters, digits and dashes. fn's own
// error ends the walk and comes back as it is. ErrNotFound when tip isn't there.
func (r Repo) Trailers(ctx context.Context, tip string, keys []string, fn func(Signed) error) error {
	if err := checkSHAs(tip); err != nil {
		return err
	}
	format := "--format=tformat:%H%x00%an <%ae> %at%x00%cn <%ce> %ct"
	for _, k := range keys {
		if k == "" || strings.ContainsFunc(k, notInKey) {
			return fmt.Errorf("%.60q is no trailer's key", k)
		}
		format += "%x00%(trailers:key=" + k + ",valueonly=true,separator=%x0A)"
	}
	if len(keys) == 0 {
		return fmt.Errorf("no trailer was asked for")
	}
	// Only what may carry it is printed: most commits do not.
	args := []string{"-z", "--no-show-signature", "--regexp-ignore-case", "--grep=^" + keys[0] + ":", format, tip, "--"}
	err := call{op: "log", dir: r.Dir, args: args}.stream(ctx, func(out *bufio.Reader) error {
		f := make([]string, 3+len(keys)) // id, author, committer, then the values
		for {
			for i := range f {
				s, err := readField(out)
				if err == io.EOF && i == 0 {
					return nil
				}
				if err != nil {
					return err
				}
				f[i] = s
			}
			c := Signed{SHA: f[0], Copied: f[1] != f[2]}
			for _, v := range f[3:] {
				v, _, _ = strings.Cut(v, "\n")
				c.Values = append(c.Values, strings.TrimSpace(v))
			}
			if c.Values[0] == "" {
				continue // the line is there, but not where trailers are
			}
			if err := fn(c); err != nil {
				return err
			}
		}
	})
	if exitCode(err) == 128 {
		err = r.explainMissing(ctx, err, tip)
	}
	return err
}

func notInKey(c rune) bool {
	return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-')
}
