// Command weft-agent networks the pods of the node it runs on.
package main

import (
	"os"

	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/daemon/node"
	"github.com/weftnet/weft/datapath/dataplanes"
)

func main() { os.Exit(daemon.Main(node.New(dataplanes.All()), os.Args[1:])) }
