//go:build programs

// Package programs names the program that is built from this module, so that
// go.mod and go.sum hold what it needs and nothing else.
package programs

import _ "helm.sh/helm/v4/cmd/helm"
