// Package bench measures what mergeflow's core costs and how that cost grows:
// with what is stored, with what waits, with the number of processes, under an
// old snapshot and over time. Every figure is a ratio of two measurements of
// one run, or a count that the database itself keeps, so that it says something
// on any machine.
//
// The engine under test is the real one over the real stores; only its steps do
// nothing. It runs in a process of its own (process_test.go): this test binary
// again, told what to do over its standard input. The sagas it works on are
// written in bulk beside it (feed_test.go), in the shape that the product's own
// decisions give them (shape_test.go).
//
// `make bench` runs everything at full size and writes the results into
// docs/performance.md. BENCH_SCALE=0.02, the default, is a quick look.
package bench
