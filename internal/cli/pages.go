package cli

import (
	"encoding/json"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

// pageFlags are what every list command has.
type pageFlags struct {
	limit int
	all   bool
}

// maxPage is the most that the API answers at once.
const maxPage = 500

func (p *pageFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&p.limit, "limit", 100, fmt.Sprintf("at most this many, up to %d", maxPage))
	c.Flags().BoolVar(&p.all, "all", false, "all of them, however many")
	c.MarkFlagsMutuallyExclusive("all", "limit")
}

// size checks the flags and answers the size of a page.
func (p *pageFlags) size(c *cobra.Command) (int, error) {
	switch {
	case p.all:
		return maxPage, nil
	case p.limit < 1 || p.limit > maxPage:
		return 0, usageOf(c, fmt.Errorf("flag --limit must be 1 to %d", maxPage))
	}
	return p.limit, nil
}

// collect reads a list: one page, or all of them.
func collect[T any](api *client, p pageFlags, seq iter.Seq2[T, error]) ([]T, error) {
	var items []T
	for item, err := range seq {
		if err != nil {
			return nil, api.failure(err)
		}
		if items = append(items, item); !p.all && len(items) == p.limit {
			break
		}
	}
	return items, nil
}

// printList prints a list: the API's one page as it is, several joined.
func (s *session) printList(api *client, text func()) error {
	body, more, err := joined(api.tape.answers)
	if err != nil {
		return failed("bad-answer", err)
	}
	return s.print(body, func() {
		text()
		if more {
			s.errorln("there are more: --all")
		}
	})
}

// joined makes one list of pages.
func joined(pages [][]byte) (body []byte, more bool, err error) {
	all := httpapi.List[json.RawMessage]{Items: []json.RawMessage{}}
	for _, b := range pages {
		var page httpapi.List[json.RawMessage]
		if err := json.Unmarshal(b, &page); err != nil {
			return nil, false, err
		}
		all.Items, all.Next = append(all.Items, page.Items...), page.Next
	}
	if len(pages) == 1 {
		return pages[0], all.Next != "", nil
	}
	body, err = json.Marshal(all)
	return body, all.Next != "", err
}
