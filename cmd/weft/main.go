// Command weft is Weft's command line, its controller and its lab. Under the
// name kubectl-weft it is a plug-in of kubectl.
package main

import (
	"os"

	"github.com/weftnet/weft/cli"
)

func main() { os.Exit(cli.Main(os.Args)) }
