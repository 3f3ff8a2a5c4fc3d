package cluster

import (
	"fmt"
	"os"
)

// What this program is called when it is to be part of a cluster.
const (
	supervisorName = "weft-kubernetes-supervisor"
	initName       = "weft-kubernetes-init"
)

// A program that uses this package is the supervisor and the first process of
// nodes as well, so that tests need no other program. That is decided before
// main, so that no program can forget it; and here it is the main thread, whose
// namespaces are the process's for others.
func init() {
	var err error
	switch os.Args[0] {
	case supervisorName:
		err = runSupervisor(os.Args[1])
	case initName:
		err = runInit()
	default:
		return
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
