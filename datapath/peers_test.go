package datapath

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weftnet/weft/plan"
)

// TestSeveralPeers says what becomes of a way by several peers where a data plane can
// share nothing among them: all goes by way of the first, and nothing is taken from the
// others, as nothing goes there.
func TestSeveralPeers(t *testing.T) {
	const text = `node node1 addresses 172.30.0.2
tunnel vxlan port 4789 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 0
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
peer node3 ends vxlan@172.30.0.4@0a:58:ac:1e:00:04
route default 10.9.0.0/24 tunnel node2,node3 # Network machines
`
	asked, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	able := Capabilities{IPv6: true, Tunnels: true, Tags: true, Verdicts: true, AntiSpoof: true}
	for _, c := range []struct {
		multipath     bool
		first, second bool
		refused       []Refusal
	}{{true, true, true, nil}, {false, true, false, []Refusal{{Origin: "Network machines",
		Message: "this data plane shares nothing among peers: all for 10.9.0.0/24 goes by way of node2, and what the others send from there is dropped"}}}} {
		able.Multipath = c.multipath
		p, refusals := Possible(asked, able)
		if !slices.Equal(refusals, c.refused) {
			t.Errorf("multipath is %t, and refused is %v; expected %v", c.multipath, refusals, c.refused)
		}
		machine := netip.MustParseAddr("10.9.0.5")
		if _, r, _ := p.Route(plan.DefaultNetwork, machine, true); r.Peer() != "node2" {
			t.Errorf("multipath is %t, and %s is reached by way of %q; expected node2", c.multipath, machine, r.Peer())
		}
		for vtep, want := range map[string]bool{"172.30.0.3": c.first, "172.30.0.4": c.second, "172.30.0.5": false} {
			if got := p.TakesFromPeer("vxlan", plan.DefaultNetwork, netip.MustParseAddr(vtep), machine); got != want {
				t.Errorf("multipath is %t, and what VTEP %s sends of %s is taken is %t; expected %t", c.multipath, vtep, machine, got, want)
			}
		}
	}
}
