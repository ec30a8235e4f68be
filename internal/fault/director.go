//go:build fault

package fault

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// A director is a test that is told of each passing and decides what happens:
// it can wait for something first, and needs no new process for each fault. A
// passing is one connection:
//
//	→ <process id> <name>\n
//	← go|kill|stop|error\n
//
// A process that has lost its director goes on: the test has ended.
var director = os.Getenv("MERGEFLOW_FAULT_DIRECTOR")

// ask answers what the director wants; empty: go on.
func ask(name string) string {
	if director == "" {
		return ""
	}
	c, err := net.DialTimeout("tcp", director, 10*time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%d %s\n", os.Getpid(), name); err != nil {
		return ""
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if do := strings.TrimSpace(answer); err == nil && do != "go" {
		return do
	}
	return ""
}
