// Package pull is flow `pull`: it carries one pull request through validate →
// merge → notify → index. table.go is the flow as a diagram, steps_*.go are its
// steps, service.go is what the API and the command line ask.
//
// The merge is the point of no return. Before it, a pull request can be closed;
// after it, whatever fails is marked, shown and retried alone.
package pull
