// Package outside holds the two drivers that deploy nothing here: Pipeline,
// where a pipeline outside deploys and calls back, and None, where merged is live.
package outside

import (
	"context"

	"github.com/mergeflow/mergeflow/internal/deploy"
)

// Pipeline is deploy.kind callback: live is what the callback says. The zero value works.
type Pipeline struct{}

// None is deploy.kind none: what is merged is live. The zero value works.
type None struct{}

var (
	_ deploy.Deployer = Pipeline{}
	_ deploy.Deployer = None{}
)

// Look can't ask.
func (Pipeline) Look(context.Context, deploy.Release) (deploy.State, error) {
	return deploy.Unknown, nil
}

// Deploy does nothing: the pipeline outside does.
func (Pipeline) Deploy(context.Context, deploy.Release) error { return nil }

// Immediate is false: the pipeline takes its time.
func (Pipeline) Immediate() bool { return false }

// Look says live.
func (None) Look(context.Context, deploy.Release) (deploy.State, error) { return deploy.Live, nil }

// Deploy does nothing.
func (None) Deploy(context.Context, deploy.Release) error { return nil }

// Immediate is true.
func (None) Immediate() bool { return true }
