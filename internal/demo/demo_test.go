package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// line is any line of --json.
type line struct {
	transition
	OK         bool              `json:"ok"`
	Dir        string            `json:"dir"`
	Operations []resultOperation `json:"operations"`
}

func TestDemoForPrograms(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	dir := filepath.Join(t.TempDir(), "demo")
	if err := Run(t.Context(), Options{JSON: true, Dir: dir, Out: &out}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	moves := map[string][]string{}
	var last line
	for text := range strings.Lines(out.String()) {
		last = line{}
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&last); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if last.Type == "transition" {
			moves[last.OperationID] = append(moves[last.OperationID], last.To+" "+last.Status)
			if last.Flow == "" || last.At.IsZero() {
				t.Errorf("%s: flow and time", text)
			}
		}
	}
	if last.Type != "result" || !last.OK || last.Dir != dir || len(last.Operations) != 4 {
		t.Fatalf("the last line is %+v", last)
	}
	straight := []string{"VALIDATING merging", "MERGING merging", "NOTIFYING merging", "INDEXING merging", "MERGED merged"}
	retried := slices.Concat(straight[:4], []string{"MERGE_FAILED merge-failed", "INDEXING merging", "MERGED merged"})
	for i, want := range [][]string{straight, retried} {
		op := last.Operations[i]
		if got := moves[op.OperationID]; !slices.Equal(got, want) {
			t.Errorf("operation %d went %q, want %q", i+1, got, want)
		}
		if op.Flow != "pull" || op.State != "MERGED" || op.Status != "merged" || len(op.MergeCommit) != 40 || op.MergesInGit != 1 {
			t.Errorf("operation %d: %+v", i+1, op)
		}
	}
	approvalFirst := []string{"APPROVAL_SENDING APPROVAL_SENDING", "APPROVAL_SENT APPROVAL_SENT"}
	created := []string{"CREATE_STARTED MR_CREATING", "CREATE_CHECKING MR_CREATING", "CREATE_SUCCEEDED MR_CREATED"}
	handled := []string{"HANDLE_STARTED MERGING", "HANDLE_APPROVED MERGING", "HANDLE_MERGED MERGED", "CALLED_BACK VALIDATED"}
	for i, want := range [][]string{slices.Concat(approvalFirst, created, handled), slices.Concat(created, approvalFirst, handled)} {
		op := last.Operations[i+2]
		if got := moves[op.OperationID]; !slices.Equal(got, want) {
			t.Errorf("change %d went %q, want %q", i+1, got, want)
		}
		if op.Flow != "change" || op.State != "CALLED_BACK" || op.Status != "VALIDATED" || len(op.MergeCommit) != 40 || op.MergesInGit != 1 {
			t.Errorf("change %d: %+v", i+1, op)
		}
	}
	for _, name := range []string{"data/live/platform/config/quotas/payments.yaml", "server.log", "data/mergeflow.db", "data/repos/shop/app.git/HEAD", "clone/farewell.txt", "index/lines.db"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("the folder lacks %s: %v", name, err)
		}
	}
}

func TestDemoGoesOnServing(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	dir := t.TempDir()
	go func() {
		ended <- Run(ctx, Options{Dir: dir, Serve: true, Out: w})
		_ = w.Close()
	}()
	serving := regexp.MustCompile(`^Still serving on (http://\S+),`)
	var story strings.Builder
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		story.WriteString(lines.Text() + "\n")
		if m := serving.FindStringSubmatch(lines.Text()); m != nil {
			resp, err := http.Get(m[1] + "/v1/pulls")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("it answers %d", resp.StatusCode)
			}
			stop()
		}
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%v\n%s", err, story.String())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	for _, want := range []string{"MERGE_FAILED", "index: answered 500", "the index is back", "git log of main has 2 merges",
		"ann approves it", "CI says that ci of", "approved by rita, rob", "who let \"Raise the quota again\" pass: ann; rita, rob", `the live file says "limit: 300"`, "Everything ended as it should", dir} {
		if !strings.Contains(story.String(), want) {
			t.Errorf("the story doesn't say %q:\n%s", want, story.String())
		}
	}
	if strings.Contains(story.String(), "WRONG") {
		t.Errorf("something is wrong:\n%s", story.String())
	}
}

func TestUsedFolderIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := Run(t.Context(), Options{Dir: dir, Out: &out})
	if err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("answered %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("it wrote into the folder: %v", entries)
	}
}

// A demo that can't go wrong shows nothing: one check that fails is enough.
func TestOneWrongCheckIsEnough(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		v := &voice{out: &out, json: asJSON}
		v.must(true, "one merge")
		v.must(false, "two watchers told")
		if v.result("/dir", nil, nil) {
			t.Error("a wrong check passes for right")
		}
		want := `"ok":false`
		if !asJSON {
			want = "WRONG  two watchers told"
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("it says %q", out.String())
		}
	}
}

// A story that breaks off says so to programs too.
func TestBrokenOffStory(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	dir := t.TempDir()
	if err := Run(ctx, Options{JSON: true, Dir: dir, Out: &out}); err == nil {
		t.Error("it answers no error")
	}
	var r result
	if err := json.Unmarshal(bytes.TrimSpace(out.Bytes()), &r); err != nil {
		t.Fatalf("%s: %v", out.String(), err)
	}
	if r.Type != "result" || r.OK || r.Dir != dir || r.Error == "" || r.Operations == nil {
		t.Errorf("the last line is %+v", r)
	}
}
