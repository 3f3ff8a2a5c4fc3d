package networkpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
)

// A node speaks for the addresses that are routed to it, and for no others.
func TestNodesSpeakForTheirOwn(t *testing.T) {
	routes := func(text string) *plan.Plan {
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	says := func(name string, addresses ...string) *node {
		n := &node{Node: &policy.Node{Name: name, Pods: []policy.TaggedAddresses{{Tag: 17}}}}
		for _, a := range addresses {
			n.Pods[0].Addresses = append(n.Pods[0].Addresses, netip.MustParseAddr(a))
		}
		return n
	}
	said := []*node{says("n2", "10.1.2.2", "10.1.2.3"), says("n3", "10.1.3.2", "10.1.2.2", "198.51.100.7", "172.30.0.2")}
	both := `peer n2 ends vxlan@172.30.0.2@0a:58:ac:1e:00:02
route default 10.1.2.0/24 tunnel n2
route default 172.30.0.2/32 tunnel n2 endpoints-only
peer n3 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 10.1.3.0/24 tunnel n3
route default 0.0.0.0/0 gateway
`
	var p placed
	p.update(said, nil, nil, routes(both), true)
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
	p.update(said, nil, nil, routes(both), false)
	if &p.list[0] != &before[0] {
		t.Error("the list was made anew though nothing changed")
	}
	// The node that a subnet is taken from speaks for it no more, though
	// nothing of what it says has changed.
	p.update(said, nil, nil, routes(strings.Replace(both, "10.1.2.0/24 tunnel n2", "10.1.9.0/24 tunnel n2", 1)), false)
	if got := kept(); got != "n2 n3 10.1.3.2" {
		t.Errorf("kept when the subnet is gone: %s", got)
	}
	// A flat network leads nowhere in particular.
	p.update(said, nil, nil, routes("route default 0.0.0.0/0 gateway"), false)
	if got := kept(); got != "n2 10.1.2.2 10.1.2.3 n3 10.1.3.2 10.1.2.2 198.51.100.7 172.30.0.2" {
		t.Errorf("kept where no route leads to nodes: %s", got)
	}
	// A node that has a subnet is in no flat network, though no other can be
	// reached: nobody speaks for anything then.
	p.update(said, nil, nil, routes("node n1 addresses 172.30.0.1\npool default 10.1.1.0/24 gateway 10.1.1.1\nroute default 0.0.0.0/0 gateway"), false)
	if got := kept(); got != "n2 n3" {
		t.Errorf("kept where only this node has a subnet: %s", got)
	}
}

// A Node has the addresses that routes say are its own, or that they say nothing
// of, and no others'.
func TestMachinesHaveTheirOwn(t *testing.T) {
	base, err := plan.Parse(`node n1 addresses 172.30.0.1
pool default 10.1.1.0/24 gateway 10.1.1.1
route default 0.0.0.0/0 gateway
route default 10.1.0.0/16 drop
route default 10.1.1.0/24 drop
route default 10.1.1.1/32 host
route default 10.1.1.2/32 endpoint weft0
peer n2 addresses 172.30.0.2 ends vxlan@172.30.0.2@0a:58:ac:1e:00:02
route default 10.1.2.0/24 tunnel n2
peer n3 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 10.1.3.0/24 tunnel n3
route default 172.30.0.1/32 host
route default 172.30.0.2/32 tunnel n2 endpoints-only
route default 172.30.0.3/32 tunnel n3 endpoints-only
`)
	if err != nil {
		t.Fatal(err)
	}
	lists := func(name string, addresses ...string) *listing {
		l := &listing{Machine: &policy.Machine{Name: name}}
		for _, a := range addresses {
			l.Addresses = append(l.Addresses, netip.MustParseAddr(a))
		}
		return l
	}
	listed := []*listing{lists("n1", "172.30.0.1"), lists("n2", "172.30.0.2", "198.51.100.2"),
		lists("n3", "172.30.0.3", "172.30.0.1", "172.30.0.2", "10.1.1.1", "10.1.1.2", "10.1.1.9", "10.1.2.2", "10.1.3.2", "10.1.9.9", "198.51.100.3")}
	others := []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.255")}
	var p placed
	p.update(nil, listed, others, base, true)
	if got := fmt.Sprint(p.machines[0].Addresses, p.machines[0].Prefixes); got != "[10.1.1.0 10.1.1.1 172.30.0.1 198.51.100.1 198.51.100.255] "+fmt.Sprint(plan.NodeOnly) {
		t.Errorf("n1 has %s", got)
	}
	if got := fmt.Sprint(p.machines[1].Addresses, p.machines[1].Prefixes); got != "[10.1.2.0 10.1.2.1 172.30.0.2 198.51.100.2] []" {
		t.Errorf("n2 has %s", got)
	}
	// 10.1.3.2 is in the subnet that is routed to n3, who speaks for it.
	if got := fmt.Sprint(p.machines[2].Addresses); got != "[10.1.3.0 10.1.3.1 10.1.3.2 172.30.0.3 198.51.100.3]" {
		t.Errorf("n3 has %s", got)
	}
	if err := p.unbelieved["n3"]; err == nil || !strings.Contains(err.Error(), "172.30.0.1") || p.unbelieved["n2"] != nil {
		t.Errorf("problems %v", p.unbelieved)
	}
	before := p.machines
	p.update(nil, slices.Clone(listed), others, base, false)
	if &p.machines[0] != &before[0] {
		t.Error("the list was made anew though nothing changed")
	}
	n3 := p.machines[2]
	p.update(nil, []*listing{lists("n1", "172.30.0.1", "fd00::1"), listed[1], listed[2]}, others, base, false)
	if p.machines[2] != n3 || len(p.machines[0].Addresses) != 6 {
		t.Errorf("after a change of n1: %v", p.machines)
	}
}

// Nodes are placed anew when the base plan leads to them in another way, and not
// because a pod of this node came.
func TestNodesArePlacedWhenRoutesToThemChange(t *testing.T) {
	const before = `node n1 addresses 172.30.0.1
pool default 10.1.1.0/24 gateway 10.1.1.1
route default 0.0.0.0/0 gateway
route default 10.1.0.0/16 drop
route default 10.1.1.0/24 drop
route default 10.1.1.1/32 host
peer n2 ends vxlan@172.30.0.2@0a:58:ac:1e:00:02
route default 10.1.2.0/24 tunnel n2
route default 172.30.0.1/32 host
route default 172.30.0.2/32 tunnel n2 endpoints-only
`
	pod := "route default 10.1.1.2/32 endpoint weft0\n"
	for what, x := range map[string]struct {
		from, to string
		placed   bool
		// n2 are the addresses of that node then.
		n2 string
	}{
		"nothing":                   {before, before, false, "10.1.2.0 10.1.2.1 172.30.0.2 198.51.100.2"},
		"a pod comes":               {before, before + pod, false, "10.1.2.0 10.1.2.1 172.30.0.2 198.51.100.2"},
		"a pod goes":                {before + pod, before, false, "10.1.2.0 10.1.2.1 172.30.0.2 198.51.100.2"},
		"another subnet":            {before, strings.Replace(before, "10.1.2.0/24 tunnel", "10.1.7.0/24 tunnel", 1), true, "10.1.7.0 10.1.7.1 172.30.0.2 198.51.100.2"},
		"one of one address":        {before, before + "route default 10.1.9.9/32 nexthop n2\n", true, "10.1.2.0 10.1.2.1 172.30.0.2 198.51.100.2"},
		"no subnet":                 {before, strings.Replace(before, "route default 10.1.2.0/24 tunnel n2\n", "", 1), true, "172.30.0.2 198.51.100.2"},
		"an own address":            {before, strings.Replace(before, "n1 addresses 172.30.0.1", "n1 addresses 172.30.0.1,172.30.0.9", 1), true, "10.1.2.0 10.1.2.1 172.30.0.2 198.51.100.2"},
		"a pod gets the address":    {before, before + "route default 198.51.100.2/32 endpoint weft0\n", true, "10.1.2.0 10.1.2.1 172.30.0.2"},
		"a prefix around it is not": {before, before + "route default 198.51.100.0/24 drop\n", true, "10.1.2.0 10.1.2.1 172.30.0.2"},
	} {
		var plans [2]*plan.Plan
		for i, text := range []string{x.from, x.to} {
			p, err := plan.Parse(text)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			plans[i] = p
		}
		listed := []*listing{{Machine: &policy.Machine{Name: "n2", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.2"), netip.MustParseAddr("198.51.100.2")}}}}
		var p placed
		p.update(nil, listed, nil, plans[0], true)
		// Who is not asked about is forgotten when machines are placed.
		mark := &listing{}
		p.kept[mark] = &policy.Machine{}
		p.update(nil, listed, nil, plans[1], false)
		if placed := p.kept[mark] == nil; placed != x.placed {
			t.Errorf("%s: placed anew: %t, want %t", what, placed, x.placed)
		}
		if got := strings.Trim(fmt.Sprint(p.machines[0].Addresses), "[]"); got != x.n2 {
			t.Errorf("%s: n2 has %s, want %s", what, got, x.n2)
		}
	}
}

// TestTooManyAddressesOfNodes tries a Node that lists more addresses than are believed of
// one: what is left out is no node's for policies, and it is said.
func TestTooManyAddressesOfNodes(t *testing.T) {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	types := []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP}
	list := func(last int) *listing {
		o.Status.Addresses = nil
		for i := range last {
			o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: types[i%2], Address: fmt.Sprintf("198.51.100.%d", i+1)})
		}
		return readListing(o, nil)
	}
	if l := list(api.MaxNodeAddresses); len(l.Addresses) != api.MaxNodeAddresses || l.problem != "" {
		t.Errorf("as many as there may be: %v, problem %q", l.Addresses, l.problem)
	}
	fine := list(api.MaxNodeAddresses)
	l := list(200)
	if !slices.Equal(l.Addresses, fine.Addresses) || !strings.Contains(l.problem, "198.51.100.17") {
		t.Errorf("of 200 addresses %v are believed, problem %q", l.Addresses, l.problem)
	}
	if again := readListing(o, l); again != l {
		t.Error("what means the same is not the same pointer")
	}
	if again := readListing(o, fine); again == fine {
		t.Error("that there are more is not told where there were not")
	}
}

// TestTooManyAddressesOfPods tries a NodePods that tells of more than a node can
// have.
func TestTooManyAddressesOfPods(t *testing.T) {
	o := &api.NodePods{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	a := netip.MustParseAddr("fd01::")
	for range 100 {
		p := api.TaggedPods{Tag: api.MinTag}
		for range 300 {
			a = a.Next()
			p.Addresses = append(p.Addresses, a.String())
		}
		o.Pods = append(o.Pods, p)
	}
	n := readNodePods(o, nil)
	known := 0
	for _, p := range n.Pods {
		known += len(p.Addresses)
	}
	if known == 0 || known > maxPodAddresses || n.problem == nil || !strings.Contains(n.problem.Error(), "8192") {
		t.Errorf("of 30000 addresses %d are known; problem %v", known, n.problem)
	}
}
