// Command weft-agent networks the pods of the node it runs on.
package main

import (
	"os"

	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/daemon/node"
)

func main() { os.Exit(daemon.Main(node.New(), os.Args[1:])) }
