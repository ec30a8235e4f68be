package git

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Service is one of the two conversations of Git's smart HTTP protocol.
type Service string

// Fetching and pushing.
const (
	UploadPack  Service = "git-upload-pack"
	ReceivePack Service = "git-receive-pack"
)

// Exchange is one HTTP request of a git client, already allowed.
type Exchange struct {
	Service Service
	// Advertise is the first request, GET info/refs; otherwise it is the POST.
	Advertise bool
	// User goes into the environment of hooks and reflogs; may be empty.
	User string
	// MaxBody bounds a push's pack in bytes, and a body as sent to little more; 0: no bound.
	MaxBody int64
}

// stall is how long a client may take for the next piece of a body.
const stall = 5 * time.Minute

// commands is what a body may have beside its pack, so that a pack over the
// bound is refused by git, whose words reach the client, and not cut off.
const commands = 1 << 20

// protocolPattern is what a client may say about the protocol version.
var protocolPattern = regexp.MustCompile(`^[a-z0-9=:._-]{1,100}$`)

// ServeHTTP answers with git http-backend. Bodies are streamed both ways,
// whatever their size and encoding: the standard library's CGI host refuses
// chunked ones, which is how git sends every larger push, hands credentials to
// the program and ends it by SIGKILL. The error is for the log; where nothing
// was answered yet, the client got a plain 500.
func (r Repo) ServeHTTP(w http.ResponseWriter, req *http.Request, x Exchange) error {
	c := call{
		op: "http-backend", dir: r.Dir, findsDir: true,
		env: []string{
			"GIT_PROJECT_ROOT=" + r.Dir,
			"GIT_HTTP_EXPORT_ALL=1",
			"REQUEST_METHOD=" + req.Method,
			"CONTENT_TYPE=" + req.Header.Get("Content-Type"),
			"HTTP_CONTENT_ENCODING=" + req.Header.Get("Content-Encoding"),
			"REMOTE_USER=" + person(x.User, ""),
			"SERVER_PROTOCOL=HTTP/1.1",
			"GATEWAY_INTERFACE=CGI/1.1",
		},
		config: []string{
			"http.getanyfile", "false",
			"http.uploadpack", strconv.FormatBool(x.Service == UploadPack),
			"http.receivepack", strconv.FormatBool(x.Service == ReceivePack),
		},
	}
	if p := req.Header.Get("Git-Protocol"); protocolPattern.MatchString(p) {
		c.env = append(c.env, "GIT_PROTOCOL="+p)
	}
	wire := http.NewResponseController(w)
	// Not every writer can do these; the exchange works without them.
	_ = wire.EnableFullDuplex()
	patient := func() {
		_ = wire.SetReadDeadline(time.Now().Add(stall))
		_ = wire.SetWriteDeadline(time.Now().Add(stall))
	}
	patient()
	// The server sets a write deadline per request only where it is configured to.
	defer func() { _ = wire.SetWriteDeadline(time.Time{}) }()
	if x.Advertise {
		c.env = append(c.env, "PATH_INFO=/info/refs", "QUERY_STRING=service="+string(x.Service))
	} else {
		c.env = append(c.env, "PATH_INFO=/"+string(x.Service))
		body := req.Body
		if x.MaxBody > 0 {
			// Without the writer: it would be told from the goroutine that feeds
			// git, while this one may be writing git's answer to it.
			body = http.MaxBytesReader(nil, body, x.MaxBody+commands)
			c.config = append(c.config, "receive.maxInputSize", strconv.FormatInt(x.MaxBody, 10))
		}
		// No CONTENT_LENGTH: with one, http-backend spins for ever on a body that
		// ends before it; without, the end of the body is its end.
		c.stdin = &patientReader{body, patient}
	}
	if x.Service == ReceivePack && !x.Advertise {
		push, err := r.acquire(req.Context(), pushFile, syscall.LOCK_SH)
		if err != nil {
			http.Error(w, "the repository can't be written now", http.StatusServiceUnavailable)
			return err
		}
		defer push.Close()
		c.held = []*os.File{push}
	}
	answered := false
	err := c.stream(req.Context(), func(out *bufio.Reader) error {
		status, err := readHeader(out, w.Header())
		if err != nil {
			return err
		}
		answered = true
		w.WriteHeader(status)
		return pour(w, wire, out, patient)
	})
	if err != nil && !answered {
		http.Error(w, "git could not answer", http.StatusInternalServerError)
	}
	return err
}

// readHeader reads what a CGI program says before its body.
func readHeader(out *bufio.Reader, h http.Header) (status int, err error) {
	fields, err := textproto.NewReader(out).ReadMIMEHeader()
	if err != nil {
		return 0, fmt.Errorf("git http-backend answered no header: %w", err)
	}
	status = http.StatusOK
	if s := fields.Get("Status"); s != "" {
		code, _, _ := strings.Cut(s, " ")
		if status, err = strconv.Atoi(code); err != nil || status < 200 || status > 599 {
			return 0, fmt.Errorf("git http-backend answered the status %.40q", s)
		}
		fields.Del("Status")
	}
	for name, values := range fields {
		h[name] = values
	}
	return status, nil
}

// pour copies git's answer and sends each piece at once: a client shows
// progress, and a push waits for a first byte before it goes on.
func pour(w io.Writer, wire *http.ResponseController, out *bufio.Reader, patient func()) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := out.Read(buf)
		if n > 0 {
			patient()
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := wire.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// patientReader moves the connection's deadlines along with what it reads.
type patientReader struct {
	io.Reader
	patient func()
}

func (p *patientReader) Read(b []byte) (int, error) {
	p.patient()
	return p.Reader.Read(b)
}
