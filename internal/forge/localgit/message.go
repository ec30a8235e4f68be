package localgit

import (
	"fmt"
	"strings"

	"github.com/mergeflow/mergeflow/internal/forge"
	"github.com/mergeflow/mergeflow/internal/git"
	"github.com/mergeflow/mergeflow/internal/store"
)

// Trailers of a merge. The head is named where it is no parent.
const (
	trailerOperation = "Mergeflow-Operation"
	trailerPull      = "Mergeflow-Pull"
	trailerHead      = "Mergeflow-Head"
	trailerStart     = "mergeflow-"
)

// message is the merge commit's text: title, body, trailers. Lines of the body
// that look like our trailers are quoted, so that nobody can sign for us.
func message(p store.Pull, in forge.MergeInput, squashed string) string {
	title := strings.Join(strings.Fields(in.Title), " ")
	if title == "" {
		title = fmt.Sprintf("Merge %s into %s", p.Source, p.Target)
	}
	var b strings.Builder
	b.WriteString(quoted(title) + "\n")
	if body := strings.Trim(strings.ReplaceAll(in.Body, "\r\n", "\n"), "\n\t "); body != "" {
		b.WriteByte('\n')
		for line := range strings.SplitSeq(body, "\n") {
			b.WriteString(quoted(strings.TrimRight(line, " \t\r")) + "\n")
		}
	}
	fmt.Fprintf(&b, "\n%s: %s\n%s: %s!%d\n", trailerOperation, in.OperationID, trailerPull, p.Repo, p.IID)
	if squashed != "" {
		fmt.Fprintf(&b, "%s: %s\n", trailerHead, squashed)
	}
	return b.String()
}

func quoted(line string) string {
	if len(line) >= len(trailerStart) && strings.EqualFold(line[:len(trailerStart)], trailerStart) {
		return "> " + line
	}
	return line
}

// headOf is the head that a merge of ours merged; empty where it does not say.
func headOf(c git.Commit) string {
	if len(c.Parents) == 2 {
		return c.Parents[1]
	}
	for line := range strings.SplitSeq(c.Message, "\n") {
		if sha, ok := strings.CutPrefix(line, trailerHead+": "); ok && git.IsSHA(sha) {
			return sha
		}
	}
	return ""
}
