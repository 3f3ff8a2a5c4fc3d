package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weftnet/weft/datapath/dataplanes"

	"github.com/spf13/cobra"
)

// The addresses come one by one or as the downward API lists them, and what
// cannot be is refused by name.
func TestFlags(t *testing.T) {
	for _, test := range []struct{ flags, want string }{
		{"--node-ip 10.0.0.11 --node-ip fd00::11", "node1 [10.0.0.11 fd00::11]"},
		{"--node-ip 10.0.0.11,fd00::11", "node1 [10.0.0.11 fd00::11]"},
		{"--node-ip ::ffff:10.0.0.11", "node1 [10.0.0.11]"},
		{"--node-ip=", "node1 []"},
		{"--node-ip 10.0.0.11,nonsense", `--node-ip "nonsense" is no IP address`},
		{"--node-ip 0.0.0.0", "--node-ip 0.0.0.0 is no address that other nodes can send to"},
		{"--node-ip 224.0.0.1", "--node-ip 224.0.0.1 is no address that other nodes can send to"},
		{"--node-name ../x", `--node-name "../x" is no name of a Node`},
		{"--repair-every 1ms", "--repair-every 1ms must be at least a second"},
	} {
		var f flags
		cmd := &cobra.Command{}
		f.add(cmd)
		if err := cmd.ParseFlags(append([]string{"--node-name=node1", "--cni-bin-dir="}, strings.Fields(test.flags)...)); err != nil {
			t.Fatal(err)
		}
		config, err := f.config(dataplanes.All())
		got := fmt.Sprint(config.Node, " ", config.NodeIPs)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: got %s, want %s", test.flags, got, test.want)
		}
	}
}
