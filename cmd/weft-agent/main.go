// Command weft-agent networks the pods of the node it runs on.
package main

import (
	"os"
	"runtime/debug"

	"github.com/weftnet/weft/daemon"
)

func main() {
	// The agent's heap is a few MiB and rarely changes: half of Go's usual
	// room for garbage costs little time and saves every node memory.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	os.Exit(daemon.Main(daemon.NewAgent(), os.Args[1:]))
}
