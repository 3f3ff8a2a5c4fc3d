// Command weft is Weft's command line, its controller and its lab.
package main

import (
	"os"

	"github.com/weftnet/weft/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
