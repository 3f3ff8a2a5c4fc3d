//go:build programs

// Package programs names the program that is built from this module, so that
// go.mod and go.sum hold what it needs and nothing else.
package programs

import _ "go.etcd.io/etcd/server/v3"
