package agent

import (
	"fmt"
	"testing"

	"github.com/weftnet/weft/plan"
)

func TestNetworksOfAPlan(t *testing.T) {
	p, err := plan.Parse(`
node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1
pool red 10.1.1.0/24 gateway 10.1.1.1
network blue in vxlan vni 7
route default 0.0.0.0/0 gateway
route default 10.1.0.0/16 drop
route default 10.1.1.0/24 drop
route default 172.30.0.2/32 host
route red 10.1.1.0/24 drop
route red 10.1.1.2/32 drop
route red 10.1.2.0/24 drop
route red 10.2.0.0/16 gateway
route red fd00::/64 drop
`)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(networksOf(p)), "[blue default red]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for network, want := range map[string]string{
		// Whatever has a way, and the widest of what is within another.
		plan.DefaultNetwork: "[10.1.0.0/16 172.30.0.2/32]",
		"red":               "[10.1.1.0/24 10.1.2.0/24 fd00::/64]",
		"blue":              "[]",
	} {
		if got := fmt.Sprint(prefixesOf(p, network)); got != want {
			t.Errorf("%s: got %s, want %s", network, got, want)
		}
	}
	// Before there is a plan.
	if got := fmt.Sprint(networksOf(nil), prefixesOf(nil, plan.DefaultNetwork)); got != "[default] []" {
		t.Errorf("got %s", got)
	}
}
