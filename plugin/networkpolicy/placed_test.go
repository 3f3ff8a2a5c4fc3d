package networkpolicy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
)

// A node speaks for the addresses that are routed to it, and for no others.
func TestNodesSpeakForTheirOwn(t *testing.T) {
	routes := func(text string) plan.Table[plan.RouteKey, plan.Route] {
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return p.Routes
	}
	says := func(name string, addresses ...string) *node {
		n := &node{Node: &policy.Node{Name: name, Pods: []policy.TaggedAddresses{{Tag: 17}}}}
		for _, a := range addresses {
			n.Pods[0].Addresses = append(n.Pods[0].Addresses, netip.MustParseAddr(a))
		}
		return n
	}
	said := []*node{says("n2", "10.1.2.2", "10.1.2.3"), says("n3", "10.1.3.2", "10.1.2.2", "198.51.100.7", "172.30.0.2")}
	both := `route default 10.1.2.0/24 tunnel n2 via 172.30.0.2 mac 0a:58:ac:1e:00:02
route default 172.30.0.2/32 tunnel n2 via 172.30.0.2 mac 0a:58:ac:1e:00:02 endpoints-only
route default 10.1.3.0/24 tunnel n3 via 172.30.0.3 mac 0a:58:ac:1e:00:03
route default 0.0.0.0/0 gateway
`
	var p placed
	p.update(said, routes(both), true)
	kept := func() string {
		var words []string
		for _, n := range p.list {
			words = append(words, n.Name)
			for _, a := range n.Pods[0].Addresses {
				words = append(words, a.String())
			}
		}
		return strings.Join(words, " ")
	}
	if got := kept(); got != "n2 10.1.2.2 10.1.2.3 n3 10.1.3.2" {
		t.Errorf("kept: %s", got)
	}
	if p.list[0] != said[0].Node {
		t.Error("a node all of whose word is kept is not the same pointer")
	}
	if err := p.nodes["n3"].problem; err == nil || !strings.Contains(err.Error(), "10.1.2.2") {
		t.Errorf("problem of n3: %v", err)
	}

	before := p.list
	p.update(said, routes(both), false)
	if &p.list[0] != &before[0] {
		t.Error("the list was made anew though nothing changed")
	}
	// The node that a subnet is taken from speaks for it no more, though
	// nothing of what it says has changed.
	p.update(said, routes(strings.Replace(both, "10.1.2.0/24 tunnel n2", "10.1.9.0/24 tunnel n2", 1)), false)
	if got := kept(); got != "n2 n3 10.1.3.2" {
		t.Errorf("kept when the subnet is gone: %s", got)
	}
	// A flat network leads nowhere in particular.
	p.update(said, routes("route default 0.0.0.0/0 gateway"), false)
	if got := kept(); got != "n2 10.1.2.2 10.1.2.3 n3 10.1.3.2 10.1.2.2 198.51.100.7 172.30.0.2" {
		t.Errorf("kept where no route leads to nodes: %s", got)
	}
}
