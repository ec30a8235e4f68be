package httpapi

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// List is one page: next is the cursor of the page after it, empty on the last.
type List[T any] struct {
	Items []T    `json:"items" nullable:"false"`
	Next  string `json:"next,omitempty" doc:"Cursor of the next page; absent on the last"`
}

// Operation is one run of a flow, as it stands and why.
type Operation struct {
	ID           string        `json:"id" format:"uuid"`
	Flow         string        `json:"flow"`
	Order        string        `json:"order,omitempty"`
	Subject      string        `json:"subject,omitempty"`
	Target       string        `json:"target,omitempty"`
	Project      string        `json:"project"`
	Title        string        `json:"title"`
	Status       string        `json:"status" doc:"Coarse, for users"`
	State        string        `json:"state" doc:"Fine, for operators"`
	Code         int           `json:"code" doc:"The state as a number; its prefix is the phase"`
	Phase        string        `json:"phase"`
	Explain      Explain       `json:"explain"`
	MergeRequest *MergeRequest `json:"mergeRequest,omitempty"`
	Failure      *Failure      `json:"failure,omitempty" doc:"Stays until a retry has succeeded"`
	Actions      []string      `json:"actions" nullable:"false" doc:"What an operator may do now"`
	Links        Links         `json:"links"`
	CreatedAt    time.Time     `json:"createdAt"`
	UpdatedAt    time.Time     `json:"updatedAt"`
}

// Failed says that the operation stands in a failed state: nothing goes on by
// itself, a retry is possible.
func (o Operation) Failed() bool { return slices.Contains(o.Actions, "retry") }

// Final says that the operation has ended for good.
func (o Operation) Final() bool { return o.Explain.WaitingFor == "" && !o.Failed() }

// Explain is a state in words. Running and waiting states fill everything up to
// OnDeadline; times that don't apply are absent.
type Explain struct {
	Summary      string    `json:"summary"`
	WaitingFor   string    `json:"waitingFor,omitempty"`
	Who          string    `json:"who,omitempty" doc:"Who has to act"`
	Since        time.Time `json:"since,omitzero"`
	Deadline     time.Time `json:"deadline,omitzero"`
	OnDeadline   string    `json:"onDeadline,omitempty" doc:"The state that the deadline leads to"`
	NextCheck    time.Time `json:"nextCheck,omitzero"`
	LastEvidence string    `json:"lastEvidence,omitempty"`
	Attempt      string    `json:"attempt,omitempty" example:"2 of 10"`
}

// MergeRequest is what an operation knows of its merge request.
type MergeRequest struct {
	IID         int64  `json:"iid"`
	URL         string `json:"url,omitempty"`
	Branch      string `json:"branch"`
	HeadSHA     string `json:"headSha"`
	MergeCommit string `json:"mergeCommit,omitempty" doc:"There as soon as git has it"`
}

// Failure is why an operation failed.
type Failure struct {
	Step  string `json:"step" doc:"The state that failed; retry re-enters it"`
	Kind  string `json:"kind" enum:"transient,deterministic,needs_human,unknown_outcome"`
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

// Links are addresses of an operation.
type Links struct {
	Self string `json:"self"`
	Page string `json:"page"`
}

// Accepted answers what was begun and goes on by itself.
type Accepted struct {
	OperationID string `json:"operationId" format:"uuid"`
	Status      string `json:"status"`
	State       string `json:"state"`
}

// HistoryEntry is one transition, or a note of something that moved nothing.
type HistoryEntry struct {
	Seq    int64     `json:"seq" doc:"The operation's version; a note has that of the transition before it"`
	Kind   string    `json:"kind" enum:"transition,note"`
	Event  string    `json:"event"`
	From   string    `json:"from,omitempty"`
	To     string    `json:"to,omitempty"`
	Actor  string    `json:"actor"`
	At     time.Time `json:"at"`
	Detail string    `json:"detail,omitempty"`
}

// Repository is a local repository.
type Repository struct {
	Name            string    `json:"name"`
	DefaultBranch   string    `json:"defaultBranch"`
	RequiredChecks  []string  `json:"requiredChecks" nullable:"false"`
	MergeStyle      string    `json:"mergeStyle" enum:"merge,squash"`
	RequireUpToDate bool      `json:"requireUpToDate"`
	Reviewers       []string  `json:"reviewers" nullable:"false"`
	CloneURL        string    `json:"cloneUrl"`
	CreatedAt       time.Time `json:"createdAt"`
}

// NewRepository asks for a local repository. Only the name is required.
type NewRepository struct {
	Name            string   `json:"name" minLength:"1" maxLength:"200" doc:"May hold /"`
	DefaultBranch   string   `json:"defaultBranch,omitempty" maxLength:"250" doc:"main where it isn't given"`
	RequiredChecks  []string `json:"requiredChecks,omitempty" maxItems:"50" doc:"Contexts that must be green for a head before it is merged"`
	MergeStyle      string   `json:"mergeStyle,omitempty" enum:"merge,squash" doc:"merge where it isn't given"`
	RequireUpToDate bool     `json:"requireUpToDate,omitempty"`
	Reviewers       []string `json:"reviewers,omitempty" maxItems:"50"`
}

// NewStatus is a commit status as CI reports it.
type NewStatus struct {
	Context     string `json:"context" minLength:"1" maxLength:"255"`
	State       string `json:"state" enum:"pending,success,failure,error"`
	Description string `json:"description,omitempty" maxLength:"1000"`
	TargetURL   string `json:"targetUrl,omitempty" maxLength:"2000" doc:"http or https"`
}

// CommitStatus is a status that was stored.
type CommitStatus struct {
	Repo string `json:"repo"`
	SHA  string `json:"sha"`
	NewStatus
}

// Pull is a pull request.
type Pull struct {
	ID          string    `json:"id" format:"uuid"`
	IID         int64     `json:"iid" doc:"The number within its repository"`
	Repo        string    `json:"repo"`
	Source      string    `json:"source"`
	Target      string    `json:"target"`
	Title       string    `json:"title"`
	Description string    `json:"description,omitempty"`
	Status      string    `json:"status" enum:"open,merging,merged,merge-failed,closed"`
	HeadSHA     string    `json:"headSha,omitempty" doc:"Absent where the source branch is gone"`
	MergeCommit string    `json:"mergeCommit,omitempty" doc:"There as soon as git has it"`
	OperationID string    `json:"operationId,omitempty" format:"uuid" doc:"The newest operation"`
	Checks      []Check   `json:"checks" nullable:"false" doc:"Of the head; the required ones first"`
	Watchers    []string  `json:"watchers" nullable:"false"`
	URL         string    `json:"url,omitempty"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
}

// Check is one check of a pull request's head.
type Check struct {
	Context     string `json:"context"`
	State       string `json:"state" enum:"pending,success,failure,error,missing"`
	Required    bool   `json:"required"`
	Description string `json:"description,omitempty"`
	TargetURL   string `json:"targetUrl,omitempty"`
}

// NewPull asks for a pull request.
type NewPull struct {
	Repo        string   `json:"repo"`
	Source      string   `json:"source"`
	Target      string   `json:"target"`
	Title       string   `json:"title"`
	Description string   `json:"description,omitempty"`
	Watchers    []string `json:"watchers,omitempty"`
}

// Hit is one line of what was merged.
type Hit struct {
	Repo   string `json:"repo"`
	Commit string `json:"commit"`
	Path   string `json:"path"`
	Line   int    `json:"line"`
	Text   string `json:"text"`
}

// Stats counts operations, four ways, and says how the queue stands.
type Stats struct {
	Flows    []FlowCount   `json:"flows" nullable:"false"`
	Phases   []PhaseCount  `json:"phases" nullable:"false"`
	States   []StateCount  `json:"states" nullable:"false"`
	Statuses []StatusCount `json:"statuses" nullable:"false"`
	Queue    Queue         `json:"queue"`
}

// FlowCount counts a flow's operations.
type FlowCount struct {
	Flow  string `json:"flow"`
	Open  int64  `json:"open"`
	Count int64  `json:"count"`
}

// PhaseCount counts by phase, which is the states' common code prefix.
type PhaseCount struct {
	Flow  string `json:"flow"`
	Phase string `json:"phase"`
	Code  int    `json:"code" doc:"The first three digits of the states' codes"`
	Count int64  `json:"count"`
}

// StateCount counts by state.
type StateCount struct {
	Flow  string `json:"flow"`
	State string `json:"state"`
	Code  int    `json:"code"`
	Count int64  `json:"count"`
}

// StatusCount counts by outward status.
type StatusCount struct {
	Flow   string `json:"flow"`
	Status string `json:"status"`
	Count  int64  `json:"count"`
}

// Queue is the outbox now.
type Queue struct {
	Due    int       `json:"due" doc:"Due and not leased"`
	Leased int       `json:"leased"`
	Parked int       `json:"parked" doc:"Due, of a kind that this instance doesn't know"`
	Oldest time.Time `json:"oldest,omitzero" doc:"Since when the oldest due command waits"`
}

// Error is every answer that is no success (RFC 9457), on both sides of the
// call: what a handler answers, and what a Client's method returns.
type Error struct {
	Title       string       `json:"title"`
	Status      int          `json:"status"`
	Code        string       `json:"code" doc:"Stable, for programs"`
	Detail      string       `json:"detail,omitempty"`
	Errors      []FieldError `json:"errors,omitempty" nullable:"false" doc:"For bad input: each bad field"`
	OperationID string       `json:"operationId,omitempty" doc:"The operation that stands in the way"`
	Allowed     []string     `json:"allowed,omitempty" nullable:"false" doc:"What is allowed now"`
	RequestID   string       `json:"requestId,omitempty" doc:"Where the log tells more"`

	retryAfter time.Duration
}

// FieldError is one bad field of the input.
type FieldError struct {
	Location string `json:"location" doc:"The field's path, such as files[0].path; empty: the whole body"`
	Message  string `json:"message"`
}

// Error says code, detail and the bad fields in one line.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", e.Status, e.Code)
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	for _, f := range e.Errors {
		fmt.Fprintf(&b, "; %s: %s", f.Location, f.Message)
	}
	return b.String()
}

// RetryAfter is how long the server asks to wait before the next try; 0 where
// it doesn't say.
func (e *Error) RetryAfter() time.Duration { return e.retryAfter }

// GetStatus is the HTTP status.
func (e *Error) GetStatus() int { return e.Status }

// ContentType turns the type of a success into that of a problem.
func (e *Error) ContentType(string) string { return problemType }

const problemType = "application/problem+json"

// MergeInput asks for a merge.
type MergeInput struct {
	SHA string `json:"sha,omitempty" doc:"Merge this head or nothing"`
}

// Reason says why.
type Reason struct {
	Reason string `json:"reason,omitempty" maxLength:"1000" doc:"For the history"`
}

// WatchersInput names watchers to add.
type WatchersInput struct {
	Watchers []string `json:"watchers"`
}

// Health answers /livez and /readyz.
type Health struct {
	Status string `json:"status" enum:"ok"`
}
