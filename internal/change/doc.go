// Package change is flow `change`: it carries a configuration change from
// request to live. This stage holds its table, so that the checks over tables,
// the diagrams and the configuration know every state; its steps come next, and
// until then nothing starts a saga of this flow.
package change
