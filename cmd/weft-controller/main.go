// Command weft-controller does what is done once for the cluster's network.
package main

import (
	"os"

	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/daemon/control"
)

func main() { os.Exit(daemon.Main(control.New(&daemon.Connection{}, nil), os.Args[1:])) }
