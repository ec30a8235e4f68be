// Package proof holds the tests that take whole processes, over real databases
// and real git. What they show is what mergeflow promises: nothing lost, nothing
// doubled, nothing stuck.
//
// The fault matrix (matrix_test.go) is every fault point of the binary × every
// kind of fault × both databases. It knows no flow: a scenario
// (scenario_test.go) says which points a flow passes, how an operation begins,
// what people do meanwhile, and what must be true of it in the end. A lane is a
// row of cells over one database; in each cell a new operation begins, and a
// trap (trap_test.go) catches the first process that passes the cell's point.
// The process dies, freezes, fails or loses its connection there, which is
// asserted, not assumed. After each lane the product's own audit is asked.
//
// Loads (load_test.go, processes_test.go) are many operations over several
// processes that are killed, frozen and replaced, or whose PostgreSQL crashes.
//
// The package has tests only. `make proof` runs all of them, with all kinds of
// fault, and writes docs/proof.md (package report).
package proof
