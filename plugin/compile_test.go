package plugin

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weftnet/weft/plan"
)

// TestEndpointsOfTwoNetworks has two networks with the very same addresses: only
// within one do endpoints get into each other's way.
func TestEndpointsOfTwoNetworks(t *testing.T) {
	pool := netip.MustParsePrefix("10.1.0.0/24")
	at := func(iface, network, pod, address string) Endpoint {
		a := netip.MustParseAddr(address)
		return Endpoint{Interface: iface, Network: network, Namespace: "shop", Pod: pod, Addresses: []netip.Addr{a}, MAC: plan.MACOf(a)}
	}
	n := Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.2")}, Endpoints: []Endpoint{
		at("weft1", plan.DefaultNetwork, "web", "10.1.0.2"),
		at("weft2", "red", "web", "10.1.0.2"),
		at("weft3", "red", "db", "10.1.0.2"),
		at("weft4", "red", "node", "172.30.0.2"),
		at("weft5", "blue", "gateway", "10.1.0.1"),
		at("weft6", "red", "gateway", "10.1.0.1"),
	}}
	b := plan.NewBuilder(nil)
	PutNode(b, n)
	PutPool(b, pool, "", "")
	b.Local.Pools = append(b.Local.Pools, plan.Pool{Network: "red", Prefix: pool, Gateway: plan.GatewayOf(pool)})
	problems := PutEndpoints(b, n)
	p := b.Build()
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	for iface, network := range map[string]string{"weft1": plan.DefaultNetwork, "weft2": "red", "weft4": "red", "weft5": "blue"} {
		e, _ := p.Endpoints.Get(plan.EndpointKey{Interface: iface})
		if e.Network != network {
			t.Errorf("%s is in network %q, want %s", iface, e.Network, network)
		}
		for _, a := range e.Addresses {
			if _, r, _ := p.Route(network, a, true); r.Way != plan.ToEndpoint || r.Interface != iface {
				t.Errorf("in network %s, %s is behind %v", network, a, r)
			}
		}
	}
	want := []string{
		"pod shop/db has address 10.1.0.2 in network red, which is that of pod shop/web; delete the pod",
		"pod shop/gateway has address 10.1.0.1 in network red, which is that of the gateway of 10.1.0.0/24; delete the pod",
		"pods with addresses outside the node's subnets 10.1.0.0/24, 10.1.0.0/24 of network red, to which other nodes have no way: " +
			"shop/gateway 10.1.0.1 in network blue, shop/node 172.30.0.2 in network red; delete them, so that they are made anew",
	}
	for i, problem := range problems {
		if i >= len(want) || problem.Message != want[i] {
			t.Errorf("problem %d is %q", i, problem.Message)
		}
	}
	if len(problems) != len(want) {
		t.Errorf("problems are %v", fmt.Sprint(problems))
	}
}
