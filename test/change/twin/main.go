// Command twin is weft-agent with one more data plane, "twin", which is linux with
// stamps of its own. As long as Weft has one data plane, this is how a running node
// changes to another and back in tests.
package main

import (
	"log/slog"
	"os"

	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/daemon/node"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/dataplanes"
	"github.com/weftnet/weft/datapath/linux"
)

// stamps have nothing in common with those of linux.
var stamps = linux.Stamps{Bridge: "weftt0", TunnelPrefix: "weftt-", Table: "weft-twin", PolicyTable: "weft-twin-policy", ServiceTable: "weft-twin-services", Protocol: 89, RoutingTable: 89,
	Metric: 20, Priority: 8720, Group: 0x77656679, LogGroup: 89}

func main() {
	planes := dataplanes.All()
	planes["twin"] = func(log *slog.Logger) (datapath.DataPlane, error) {
		return linux.New(linux.Config{Log: log, Stamps: stamps})
	}
	os.Exit(daemon.Main(node.New(planes), os.Args[1:]))
}
