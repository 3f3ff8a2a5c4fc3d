//go:build programs

// Package programs names the programs that are built from this module, so that
// go.mod and go.sum hold what they need and nothing else.
package programs

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
