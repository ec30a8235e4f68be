package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mergeflow/mergeflow/internal/httpapi"
)

func TestForeignPagesCantWrite(t *testing.T) {
	t.Parallel()
	f := start(t)
	host := strings.TrimPrefix(f.url, "http://")
	for _, h := range [][]string{
		{"Origin", "https://evil.example"},
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Origin", "null"},
	} {
		f.do("POST", "/v1/repos", `{"name":"evil"}`, h...).refused(t, http.StatusForbidden, "cross-origin")
		f.do("POST", "/git/a.git/git-receive-pack", `x`, h...).refused(t, http.StatusForbidden, "cross-origin")
	}
	for _, h := range [][]string{{"Host", "evil.example"}, {"Host", "127.0.0.1.evil.example"}, {"Host", "evil.example:80"}, {"Host", "0.0.0.0"}} {
		f.do("GET", "/v1/repos", "", h...).refused(t, http.StatusForbidden, "host-not-allowed")
		f.do("POST", "/v1/repos", `{"name":"evil"}`, h...).refused(t, http.StatusForbidden, "host-not-allowed")
	}
	for i, h := range [][]string{
		{}, {"Sec-Fetch-Site", "same-origin"}, {"Origin", f.url}, {"Host", "localhost:1"}, {"Host", "LOCALHOST."}, {"Host", "[::1]:8080"}, {"Host", host},
		{"Origin", f.url, "Host", "localhost:7"}, // the page came by its public address
	} {
		if a := f.do("POST", "/v1/repos", fmt.Sprintf(`{"name":"own%d"}`, i), h...); a.status != http.StatusCreated {
			t.Errorf("%v: %d %s", h, a.status, a.body)
		}
	}
	if a := f.do("GET", "/v1/repos", ""); strings.Contains(a.body, "evil") || a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("X-Request-Id") == "" {
		t.Errorf("%v %s", a.header, a.body)
	}
}

func TestHostMattersOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		local, host, public string
		want                bool
	}{
		{"127.0.0.1", "mergeflow.example", "mergeflow.example", true}, // a proxy on the same machine
		{"127.0.0.1", "mergeflow.example:443", "Mergeflow.Example", true},
		{"127.0.0.1", "other.example", "mergeflow.example", false},
		{"::1", "other.example", "", false},
		{"::1", "app.localhost", "", true},
		{"127.0.0.1", "", "", true},
		{"127.0.0.1", ".", "", false},
		{"10.0.0.4", "other.example", "", true},
	} {
		r, _ := http.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(c.local)}), "GET", "/", nil)
		r.Host = c.host
		if got := httpapi.HostAllowed(r, c.public); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestBodiesAreBoundedAndTyped(t *testing.T) {
	t.Parallel()
	f := start(t)
	large := `{"name":"` + strings.Repeat("x", 10<<20) + `"}`
	f.do("POST", "/v1/repos", large).refused(t, http.StatusRequestEntityTooLarge, "body-too-large")
	req, _ := http.NewRequestWithContext(t.Context(), "POST", f.url+"/v1/repos", io.NopCloser(strings.NewReader(large))) // no length: chunked
	f.send(req).refused(t, http.StatusRequestEntityTooLarge, "body-too-large")
	f.do("POST", "/v1/repos", large, "Expect", "100-continue").refused(t, http.StatusRequestEntityTooLarge, "body-too-large")
	if a := f.do("POST", "/v1/repos", `{"name":"fits"`+strings.Repeat(" ", 1<<20-20)+`}`); a.status != http.StatusCreated {
		t.Errorf("just under the limit: %d %s", a.status, a.body)
	}

	for _, ct := range []string{"text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "multipart/form-data; boundary=x", ";"} {
		f.do("POST", "/v1/repos", `{"name":"a"}`, "Content-Type", ct).refused(t, http.StatusUnsupportedMediaType, "unsupported-media-type")
	}
	if a := f.do("POST", "/v1/repos", `{"name":"typed"}`, "Content-Type", "application/json; charset=UTF-8"); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, body := range []string{`{`, `{"name":}`, `{"name":"a"} {}`, `{"name":"a"}x`, `{'name':'a'}`, ` `} {
		f.do("POST", "/v1/repos", body).refused(t, http.StatusBadRequest, "bad-request")
	}
	if a := f.do("GET", "/v1/repos", ""); strings.Count(a.body, `"name"`) != 2 {
		t.Errorf("written: %s", a.body)
	}
}

func TestBodyThatEndsEarly(t *testing.T) {
	t.Parallel()
	f := start(t)
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "POST /v1/repos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"name\":")
	_ = c.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("answered %d", resp.StatusCode)
	}
}

func TestTheWalkNamesThePlace(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"a":{"b":[1,{"c":"\u0000"}]}}`:      "a.b[1].c",
		`{"a":[[],[[],"` + "\xc3" + `"]]}`:    "a[1][1]",
		`{"a":{"b":1,"b":2}}`:                 "a.b",
		`{"a":{"\u0000":1}}`:                  "a",
		`{"a":{},"b":[{}],"c":{"":"\u0000"}}`: "c.",
		`{"":1,"":2}`:                         "",
		`"a"`:                                 "",
	} {
		e := httpapi.CheckJSON([]byte(body))
		if e == nil || len(e.Errors) != 1 || e.Errors[0].Location != want {
			t.Errorf("%s: %v, want a refusal of %q", body, e, want)
		}
	}
	for _, body := range []string{`{}`, `{"a":[1,2,{"a":null}],"b":{"a":true}}`, `{"a":"\ufffd ü \\u0000"}`, `{"a":[` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `]}`} {
		if e := httpapi.CheckJSON([]byte(body)); e != nil {
			t.Errorf("%s: %v", body, e)
		}
	}
	if e := httpapi.CheckJSON([]byte(`{"a":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`)); e == nil {
		t.Error("nesting has no bound")
	}
}

func FuzzCheckJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":"c"}]}`))
	f.Add([]byte("{\"\xff\":0}"))
	f.Add([]byte(`{"a":"\u0000"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if httpapi.CheckJSON(body) != nil {
			return
		}
		var v map[string]any
		if err := json.Unmarshal(body, &v); err != nil || !utf8.Valid(body) {
			t.Fatalf("%q passed: %v", body, err)
		}
		if b, _ := json.Marshal(v); bytes.Contains(b, []byte(`\u0000`)) && !bytes.Contains(b, []byte(`\\u0000`)) {
			t.Errorf("NUL in %q", body)
		}
	})
}
