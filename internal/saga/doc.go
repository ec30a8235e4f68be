// Package saga is the vocabulary and the pure core of mergeflow: flows as
// tables, and Decide, the one function that says what an event does to a saga.
//
// A flow is a literal that reads like its diagram (Flow, Spec, Edge). Everything
// else is derived from it: what Decide allows, the checks that no state can be
// stuck (Check), the state × event matrix, the diagrams, docs/states.md, the
// buttons on a page and the sentence that explains a state.
//
// The package imports the standard library only, opens nothing, reads no clock
// and keeps no state: the caller hands in the row, the event and the settings,
// and writes what comes back. All of it is safe for concurrent use.
package saga
