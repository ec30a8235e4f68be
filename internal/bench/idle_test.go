package bench

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// idleCost measures an instance with production's options over waiting sagas of
// which none is due.
func idleCost(b *testing.B, d *database) {
	const title = "Idle"
	n := sized(100_000)
	d.load(waitingChange(b), n)
	o := options{}
	if d.driver == onPostgres {
		// The server writes down each statement of this instance.
		o.DSN = d.dsn + "&log_statement=all&log_min_messages=log"
	}
	p := start(b, d, o)
	defer p.stop()
	time.Sleep(2 * time.Second) // what it does once is done
	statements, server, began := d.statements(), d.serverTime(), time.Now()
	cpu := p.ask("report").CPU
	time.Sleep(lasting(time.Minute))
	took := time.Since(began)
	cpu, statements, server = p.ask("report").CPU-cpu, d.statements()-statements, d.serverTime()-server
	name := fmt.Sprintf("%s waiting, nothing due: ", thousands(n))
	measurements.add(title, d.driver, name+"processor, share of one core", cpu.Seconds()/took.Seconds(), percent, atMost(0.01))
	if d.driver == onPostgres {
		measurements.add(title, d.driver, name+"the server's processes for it, share of one core", server.Seconds()/took.Seconds(), percent, bound{})
		measurements.add(title, d.driver, name+"statements, BEGIN and COMMIT included", float64(statements)/took.Seconds(), perSecond, atMost(5))
	}
}

// logged is the first line of each statement in the server's log.
var logged = regexp.MustCompile(`(?m)LOG:  (statement|execute [^:]*): `)

// statements is how many statements the server has logged.
func (d *database) statements() int {
	if d.driver != onPostgres {
		return 0
	}
	u, err := url.Parse(d.dsn)
	if err != nil {
		d.tb.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(u.Query().Get("host"), "log"))
	if err != nil {
		d.tb.Fatal(err)
	}
	return len(logged.FindAllIndex(bytes.ToValidUTF8(log, nil), -1))
}

// serverTime is the processor time of the server's processes that serve
// instances.
func (d *database) serverTime() (sum time.Duration) {
	if d.driver != onPostgres {
		return 0
	}
	rows, err := d.pg.Query(d.tb.Context(), "SELECT pid FROM pg_stat_activity WHERE application_name = 'mergeflow'")
	if err != nil {
		d.tb.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			d.tb.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue // it has just ended
		}
		_, rest, _ := strings.Cut(string(b), ") ") // the name may hold anything
		f := strings.Fields(rest)
		for _, field := range f[11:13] { // user and system time, in ticks of 10 ms
			ticks, _ := strconv.ParseInt(field, 10, 64)
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}
