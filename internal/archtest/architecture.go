package archtest

import "strings"

// interfaces are the narrow packages through which the flows see the outside.
var interfaces = Set{
	"./internal/store", "./internal/forge", "./internal/search",
	"./internal/notify", "./internal/approval", "./internal/deploy",
}

// forTests recognises packages that exist for tests alone although they are no _test
// files: other packages' tests share them.
func forTests(p string) bool {
	return Set{"./internal/testkit/..."}.Has(p) || conformance(p) || strings.HasSuffix(p, "fake")
}

// conformance recognises the suites that every driver of an interface runs:
// storetest, forgetest and their like.
func conformance(p string) bool {
	for _, i := range interfaces {
		if strings.HasPrefix(p, i+"/") && strings.HasSuffix(p, "test") {
			return true
		}
	}
	return false
}

// driver names the driver that a package belongs to: whatever lies below a
// narrow interface and is no conformance suite. A new driver is bound by the
// rules from its first file.
func driver(p string) string {
	for _, i := range interfaces {
		rest, ok := strings.CutPrefix(p, i+"/")
		if !ok || conformance(p) {
			continue
		}
		name, _, _ := strings.Cut(rest, "/")
		return i + "/" + name
	}
	return ""
}

func isDriver(p string) bool { return driver(p) != "" }

// everything may be wired together here and nowhere else.
var wiring = Set{"./internal/app/...", "./internal/testkit/..."}

// Architecture is the list for mergeflow. docs/architecture.md tells it in
// prose; where the two differ, this one is right.
func Architecture() []Rule {
	flows := Set{"./internal/change/...", "./internal/pull/..."}
	outer := Set{"./internal/httpapi/...", "./internal/webui/..."}
	return []Rule{
		{
			Name:  "the core stands alone",
			Why:   "what a flow does must be readable and testable without anything running",
			Check: Only(Set{"./internal/saga/..."}, nil),
		},
		{
			Name:  "interfaces are narrow",
			Why:   "a flow that imports one must not get a driver's dependencies with it",
			Check: Only(interfaces, Set{"./internal/saga"}),
		},
		{
			Name: "flows see interfaces",
			Why:  "a flow knows what it asks for, never who answers, and no other flow",
			// Of the engine they use what a step is made of; it knows no flow and
			// reaches no driver, so nothing comes with it.
			Check: onlyItself(flows, append(Set{"./internal/saga", "./internal/engine", "./internal/fault", "github.com/google/uuid"}, interfaces...)),
		},
		{
			Name:  "the engine knows rows and tables",
			Why:   "it performs whatever a flow declares and must not learn one flow's words",
			Check: Only(Set{"./internal/engine/..."}, Set{"./internal/engine/...", "./internal/saga", "./internal/store", "./internal/fault", Outside}),
		},
		{
			Name:  "no way to a driver",
			Why:   "flows, engine, API and pages work with every driver alike",
			Check: NeverReach(append(append(Set{"./internal/engine/..."}, flows...), outer...), isDriver),
		},
		{
			Name:  "drivers are chosen in one place",
			Why:   "which database and which forge it is, is the wiring's business",
			Check: importsOfDrivers(append(Set{"./internal/demo"}, wiring...)),
		},
		{
			Name:  "drivers never import each other",
			Why:   "each is replaceable by itself",
			Check: Apart(driver),
		},
		{
			Name:  "nothing imports the wiring but what starts it",
			Why:   "an import back into it would let any package reach any other",
			Check: Never(Set{"./..."}, Set{"./internal/app/...", "./internal/cli/...", "./internal/demo/...", "./internal/testkit/...", "./cmd/..."}, Set{"./internal/app/..."}),
		},
		{
			Name:  "the command line is the outermost layer",
			Why:   "programs use the API",
			Check: Never(Set{"./..."}, Set{"./internal/cli/...", "./internal/testkit/...", "./cmd/..."}, Set{"./internal/cli/..."}),
		},
		{
			Name: "database libraries stay in database drivers",
			Why:  "SQL in two places becomes two behaviours",
			Check: Never(Set{"./..."}, Set{"./internal/store/*", "./internal/search/embedded/...", "./internal/testkit/..."},
				Set{"database/sql/...", "github.com/jackc/pgx/...", "github.com/jackc/pgx/v5/...", "modernc.org/sqlite/...", "github.com/pressly/goose/..."}),
		},
		{
			Name: "one package runs the git program",
			Why:  "arguments, environment and cancellation are made safe once",
			// The demo plays a user, with a user's git client.
			Check: Never(Set{"./..."}, Set{"./internal/git/...", "./internal/demo/...", "./internal/testkit/..."}, Set{"os/exec"}),
		},
		{
			Name:  "no test code in the product",
			Why:   "the binary must not carry test hooks, flags or fakes",
			Check: noTestCode,
		},
		{
			Name:  "names say what is inside",
			Why:   "a package called util is where things go to be forgotten",
			Check: NotNamed("util", "utils", "common", "models", "pkg", "helpers", "misc", "shared"),
		},
		{
			Name:  "files are named after one thing",
			Why:   "a file over 700 lines holds more than one",
			Check: Shorter(700),
		},
		{
			Name:  "packages explain themselves",
			Why:   "the package comment is the design page that can't get lost",
			Check: Documented(),
		},
	}
}

// onlyItself is Only for several packages that may import their own parts but
// not one another.
func onlyItself(from, may Set) func(*Tree) []string {
	return func(t *Tree) []string {
		var out []string
		for _, one := range from {
			out = append(out, Only(Set{one}, append(Set{one}, may...))(t)...)
		}
		return out
	}
}

// importsOfDrivers forbids the import of a driver to everybody but its own
// parts and who.
func importsOfDrivers(who Set) func(*Tree) []string {
	return func(t *Tree) []string {
		return imports(t, func(p Package, to string) bool {
			return isDriver(to) && driver(p.Path) != driver(to) && !who.Has(p.Path)
		})
	}
}

// demoServers are the programs of testkit that the demo runs: it shows an index
// that fails and a receiver that is told, so it has to bring both.
var demoServers = Set{"./internal/testkit/indexer", "./internal/testkit/receiver", "./internal/testkit/proxy"}

func noTestCode(t *Tree) []string {
	return imports(t, func(p Package, to string) bool {
		if forTests(p.Path) || p.Path == "./internal/demo" && demoServers.Has(to) {
			return false
		}
		return to == "testing" || strings.HasPrefix(to, "testing/") || forTests(to)
	})
}
