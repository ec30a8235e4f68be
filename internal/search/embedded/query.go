package embedded

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mergeflow/mergeflow/internal/search"
)

// Limits of a query and of what it answers.
const (
	defaultLimit = 100
	maxLimit     = 1000
	maxText      = 1000 // bytes of a query
)

const candidates = `
SELECT b.repo, f.path, b.commit_id, f.blob_id
FROM files f JOIN branches b ON b.id = f.branch_id
WHERE (?1 = '' OR b.repo = ?1)%s
ORDER BY b.repo, f.path, b.seq DESC`

// Search answers the lines that hold the text, whatever their case, ordered by
// repository, path and line. A line that several branches hold at the same
// place is answered once, with the commit of the branch that was indexed last.
// A text under three characters is looked for in the first ScanLimit bytes.
func (x *Index) Search(ctx context.Context, q search.Query) ([]search.Hit, error) {
	if len(q.Text) > maxText {
		return nil, &search.Error{Op: "search", Detail: fmt.Sprintf("the text has more than %d bytes", maxText)}
	}
	// No line holds a line break, and no text in the index a NUL.
	if strings.TrimSpace(q.Text) == "" || strings.ContainsAny(q.Text, "\n\x00") {
		return nil, nil
	}
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	q.Limit = min(q.Limit, maxLimit)
	hits, err := x.search(ctx, q, fold(strings.ToValidUTF8(q.Text, "\uFFFD")))
	if err != nil {
		return nil, fmt.Errorf("search: %w", cause(ctx, err))
	}
	return hits, nil
}

func (x *Index) search(ctx context.Context, q search.Query, needle string) ([]search.Hit, error) {
	// One snapshot for the candidates and their contents.
	tx, err := x.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() // it only reads
	content, err := tx.PrepareContext(ctx, "SELECT content FROM blobs WHERE id = ?")
	if err != nil {
		return nil, err
	}
	var rows *sql.Rows
	budget := int64(-1)
	if expr := filter(needle); expr != "" {
		rows, err = tx.QueryContext(ctx, fmt.Sprintf(candidates, " AND f.blob_id IN (SELECT rowid FROM trigrams WHERE trigrams MATCH ?2)"), q.Repo, expr)
	} else {
		budget = x.o.ScanLimit
		rows, err = tx.QueryContext(ctx, fmt.Sprintf(candidates, ""), q.Repo)
	}
	if err != nil {
		return nil, err
	}
	defer rows.Close()

	var hits, file []search.Hit // file: of one path, over all branches
	var last search.Hit
	seen := map[int64]bool{} // contents of that path
	for rows.Next() {
		var h search.Hit
		var blob int64
		if err := rows.Scan(&h.Repo, &h.Path, &h.Commit, &blob); err != nil {
			return nil, err
		}
		if h.Repo != last.Repo || h.Path != last.Path {
			hits = append(hits, merge(file)...)
			if len(hits) >= q.Limit || budget == 0 {
				return hits[:min(len(hits), q.Limit)], nil
			}
			file = file[:0]
			clear(seen)
			last = h
		}
		if seen[blob] {
			continue
		}
		seen[blob] = true
		var text string
		if err := content.QueryRowContext(ctx, blob).Scan(&text); err != nil {
			return nil, err
		}
		if budget > 0 {
			budget = max(0, budget-int64(len(text)))
		}
		file = match(file, h, text, needle, q.Limit)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	hits = append(hits, merge(file)...)
	return hits[:min(len(hits), q.Limit)], nil
}

// match appends a text's first lines that hold the needle, at most limit.
func match(hits []search.Hit, h search.Hit, text, needle string, limit int) []search.Hit {
	folded := fold(text)
	if !strings.Contains(folded, needle) {
		return hits
	}
	for found := 0; found < limit; {
		h.Line++
		line, rest, more := strings.Cut(text, "\n")
		foldedLine, foldedRest, _ := strings.Cut(folded, "\n")
		if at := strings.Index(foldedLine, needle); at >= 0 {
			h.Text = search.Excerpt(line, utf8.RuneCountInString(foldedLine[:at]))
			hits = append(hits, h)
			found++
		}
		if !more {
			break
		}
		text, folded = rest, foldedRest
	}
	return hits
}

// merge orders one path's hits by line and keeps one of those that say the same.
// Those of the branch that was indexed last come first, and stay.
func merge(file []search.Hit) []search.Hit {
	slices.SortStableFunc(file, func(a, b search.Hit) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), strings.Compare(a.Text, b.Text))
	})
	return slices.CompactFunc(file, func(a, b search.Hit) bool { return a.Line == b.Line && a.Text == b.Text })
}
