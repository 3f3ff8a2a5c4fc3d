//go:build programs

// Package programs names the standard CNI plug-ins that are built from this
// module, so that go.mod and go.sum hold what they need and nothing else.
package programs

import (
	_ "github.com/containernetworking/plugins/plugins/meta/bandwidth"
)
