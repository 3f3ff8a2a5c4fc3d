package flannel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// A node takes the subnet that it has by another plug-in and keeps it, the first of the
// network, too; and none in which it or another has a part by one.
func TestSubnetOfAnotherPlugin(t *testing.T) {
	const config = `{"Network":"10.1.0.0/20","SubnetLen":24,"Backend":{"Type":"host-gw"}}`
	settings, err := ParseSettings([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	prefixes := func(all ...string) (out []netip.Prefix) {
		for _, p := range all {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	for name, test := range map[string]struct {
		kept, taken []netip.Prefix
		former      string
		pod         string // the address of one
		want        string
	}{
		"its own":                         {kept: prefixes("10.1.3.0/24"), taken: prefixes("10.1.1.0/24"), want: "10.1.3.0-24"},
		"the first of the network":        {kept: prefixes("10.1.0.0/24"), want: "10.1.0.0-24"},
		"its own rather than its former":  {kept: prefixes("10.1.3.0/24"), former: "10.1.7.0-24", want: "10.1.3.0-24"},
		"where its pods live, rather":     {kept: prefixes("10.1.3.0/24"), former: "10.1.7.0-24", pod: "10.1.7.2", want: "10.1.7.0-24"},
		"also if the file is lost":        {kept: prefixes("10.1.3.0/24"), pod: "10.1.7.2", want: "10.1.7.0-24"},
		"not for pods on what it keeps":   {kept: prefixes("10.1.3.0/24"), former: "10.1.7.0-24", pod: "10.1.3.2", want: "10.1.3.0-24"},
		"nor where another has that":      {kept: prefixes("10.1.3.0/24"), taken: prefixes("10.1.7.0/24"), former: "10.1.7.0-24", pod: "10.1.7.2", want: "10.1.3.0-24"},
		"of another length":               {kept: prefixes("10.1.0.0/22"), taken: prefixes("10.1.4.0/22"), want: "10.1.8.0-24"},
		"of another range":                {kept: prefixes("10.9.1.0/24"), taken: prefixes("10.9.2.0/24"), want: "10.1.1.0-24"},
		"what others have is not for it":  {taken: prefixes("10.1.1.0/24", "10.1.2.0/25"), want: "10.1.3.0-24"},
		"nor is what was its own earlier": {taken: prefixes("10.1.5.0/24"), former: "10.1.5.0-24", want: "10.1.1.0-24"},
	} {
		t.Run(name, func(t *testing.T) {
			node := plugin.Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1")}, Kept: test.kept, Taken: plugin.Holdings{}}
			for _, p := range test.taken {
				node.Taken[p] = "another"
			}
			v := view{settings: settings, config: []byte(config), node: node, owner: owner{name: node.Name, addresses: node.Addresses}, pick: func(int) int { return 0 }}
			if test.pod != "" {
				v.node.Endpoints = []plugin.Endpoint{{Pod: "pod", Addresses: []netip.Addr{netip.MustParseAddr(test.pod)}}}
			}
			if test.former != "" {
				if v.former, err = ParseSubnet(test.former); err != nil {
					t.Fatal(err)
				}
			}
			s, err := v.decide()
			if err != nil || s.verb != create || s.object.Name != test.want {
				t.Fatalf("it is to %s %s, %v, and not to take %s", s.verb, s.subnet, err, test.want)
			}
			a, err := ParseAttributes(s.object.Spec)
			if err != nil {
				t.Fatal(err)
			}
			v.leases = []*lease{{subnet: s.subnet, Attributes: a, Lease: s.object}}
			if s, err = v.decide(); err != nil || s.verb != keep {
				t.Errorf("then it is to %s %s, %v", s.verb, s.subnet, err)
			}
			// Who gives subnets by another plug-in may have given it to somebody else at
			// the same moment.
			v.node.Taken[s.subnet.V4], v.node.Endpoints = "another", nil
			if s, err = v.decide(); err != nil || s.verb != release {
				t.Errorf("another node got it, too, and it is to %s %s, %v", s.verb, s.subnet, err)
			}
			v.node.Endpoints = []plugin.Endpoint{{Pod: "pod", Addresses: []netip.Addr{s.subnet.V4.Addr().Next()}}}
			if s, err = v.decide(); err != nil || s.verb != keep {
				t.Errorf("a pod lives on it, and it is to %s %s, %v", s.verb, s.subnet, err)
			}
		})
	}
}

// A lease of an earlier configuration is kept for pods that live on it alone. Where they are
// reached by another plug-in as well, the node gives it back, and takes one of the network.
func TestLeaseOfAnEarlierNetwork(t *testing.T) {
	own, subnet := netip.MustParseAddr("172.30.0.1"), netip.MustParsePrefix("10.1.3.0/24")
	decide := func(network string, n plugin.Node, leases ...*lease) step {
		t.Helper()
		config := fmt.Appendf(nil, `{"Network":%q,"Backend":{"Type":"vxlan"}}`, network)
		settings, err := ParseSettings(config)
		if err != nil {
			t.Fatal(err)
		}
		n.Name, n.Addresses = "node1", []netip.Addr{own}
		s, err := view{settings: settings, config: config, node: n, owner: owner{name: n.Name, addresses: n.Addresses}, leases: leases, pick: func(int) int { return 0 }}.decide()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	node := plugin.Node{Kept: []netip.Prefix{subnet}, Beside: true}
	first := decide("10.1.0.0/16", node)
	a, err := ParseAttributes(first.object.Spec)
	if err != nil || first.subnet.V4 != subnet {
		t.Fatalf("first it takes %s, %v", first.subnet, err)
	}
	lease := &lease{subnet: first.subnet, Attributes: a, Lease: first.object}
	node.Endpoints = []plugin.Endpoint{{Pod: "pod", Addresses: []netip.Addr{netip.MustParseAddr("10.1.3.2")}}}
	if s := decide("10.1.0.0/16", node, lease); s.verb != keep {
		t.Errorf("the configuration is the same, and it is to %s %s", s.verb, s.subnet)
	}
	if s := decide("10.5.0.0/16", node, lease); s.verb != release {
		t.Errorf("its pods are reached by another plug-in, and it is to %s %s", s.verb, s.subnet)
	}
	if s := decide("10.5.0.0/16", node); s.verb != create || !netip.MustParsePrefix("10.5.0.0/16").Contains(s.subnet.V4.Addr()) {
		t.Errorf("then it is to %s %s", s.verb, s.subnet)
	}
	node.Kept = nil
	if s := decide("10.5.0.0/16", node, lease); s.verb == release {
		t.Error("its pods are reached by nothing else, and it gives their subnet back")
	}
}

// A network that holds addresses of nodes is none from which a node takes a subnet that
// uses another plug-in; so it gets ready for none. Where nodes use flannel, or are forced to,
// there are subnets in it.
func TestNetworkOverNodes(t *testing.T) {
	settings, err := ParseSettings([]byte(`{"Network":"172.30.0.0/16","Backend":{"Type":"vxlan"}}`))
	if err != nil {
		t.Fatal(err)
	}
	own, other := netip.MustParseAddr("172.31.0.2"), netip.MustParseAddr("172.30.0.1")
	for name, test := range map[string]struct{ beside, forced, able bool }{
		"nodes use another":         {beside: true},
		"another, and it is forced": {beside: true, forced: true, able: true},
		"nodes use flannel":         {able: true},
	} {
		v := view{settings: settings, node: plugin.Node{Name: "node2", Addresses: []netip.Addr{own}, Beside: test.beside}, forced: test.forced, pick: func(int) int { return 0 },
			owner: owner{name: "node2", addresses: []netip.Addr{own}, nodes: map[string][]netip.Addr{"node1": {other}, "node2": {own}}}}
		s, err := v.decide()
		if test.able && (err != nil || s.verb != create) {
			t.Errorf("%s: it is to %s, %v", name, s.verb, err)
		}
		in := plugin.Input{Config: &api.ClusterConfig{}, Node: v.node, Objects: registry.NewSnapshot(map[*registry.Kind][]registry.Object{
			ConfigKind: {decode(t, ConfigKind, ConfigName, []byte(`{"Network":"172.30.0.0/16","Backend":{"Type":"vxlan"}}`), false)},
			api.Node:   {coreNode("node1", "172.30.0.1"), coreNode("node2", "172.30.0.2")}})}
		in.Node.Addresses = []netip.Addr{netip.MustParseAddr("172.30.0.2")}
		if _, problems := (Plugin{}).Compile(in); !test.able && (len(problems) != 1 || problems[0].String() != "FlannelConfig config: the network 172.30.0.0/16 holds addresses of nodes (172.30.0.1 of node1); use one that is free") {
			t.Errorf("%s: it is said %v", name, problems)
		}
		if !test.able && (err == nil || err.Error() != "the network 172.30.0.0/16 holds addresses of nodes (172.30.0.1 of node1)") {
			t.Errorf("%s: it is to %s %s, %v", name, s.verb, s.subnet, err)
		}
	}
}

// Pods live on where the node has a subnet of theirs, by whichever plug-in.
func TestStrandedPods(t *testing.T) {
	node := plugin.Node{Name: "node1", Kept: []netip.Prefix{netip.MustParsePrefix("10.1.3.0/24")}}
	for pod, address := range map[string]string{"flannel's": "10.5.7.2", "another plug-in's": "10.1.3.2", "nobody's": "10.1.4.2"} {
		node.Endpoints = append(node.Endpoints, plugin.Endpoint{Pod: pod, Addresses: []netip.Addr{netip.MustParseAddr(address)}})
	}
	to, err := ParseSubnet("10.5.7.0-24")
	if err != nil {
		t.Fatal(err)
	}
	if all := stranded(node, to); len(all) != 1 || all[0].Pod != "nobody's" {
		t.Errorf("stranded are %v", all)
	}
	node.Kept = nil
	if all := stranded(node, to); len(all) != 2 {
		t.Errorf("without another plug-in, stranded are %v", all)
	}
}

// What nodes have by another plug-in no lease takes from them, but a lease of the very
// node has the same.
func TestLeasesOnWhatAnotherPluginGave(t *testing.T) {
	lease := func(name, address, mac, node string) registry.Object {
		return decode(t, LeaseKind, name, fmt.Appendf(nil, `{"PublicIP":%q,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q},"Weft":{"Node":%q}}`, address, mac, node), true)
	}
	in := plugin.Input{Config: api.Effective(nil), Node: plugin.Node{
		Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1")}, MTU: 1500,
		Kept:  []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24")},
		Taken: plugin.Holdings{netip.MustParsePrefix("10.1.2.0/24"): "node2", netip.MustParsePrefix("10.1.3.0/24"): "node3"}},
		Objects: registry.NewSnapshot(map[*registry.Kind][]registry.Object{
			ConfigKind: {decode(t, ConfigKind, ConfigName, []byte(`{"Network":"10.1.0.0/20","Backend":{"Type":"vxlan"}}`), false)},
			LeaseKind: {
				lease("10.1.1.128-25", "172.30.0.9", "0a:58:ac:1e:00:09", "attacker"),
				lease("10.1.2.0-24", "172.30.0.2", "0a:58:ac:1e:00:02", "node2"),
				lease("10.1.3.0-24", "172.30.0.9", "0a:58:ac:1e:00:09", "attacker"),
				lease("10.1.4.0-24", "172.30.0.1", "0a:58:ac:1e:00:01", "node1"),
			},
			api.Node: {coreNode("attacker", "172.30.0.9"), coreNode("node1", "172.30.0.1"), coreNode("node2", "172.30.0.2"), coreNode("node3", "172.30.0.3")},
		})}
	p, problems := Plugin{}.Compile(in)
	for prefix, want := range map[string]string{"10.1.1.128/25": "", "10.1.2.0/24": "node2", "10.1.3.0/24": ""} {
		r, _ := p.Routes.Get(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix(prefix)})
		if r.Peer() != want {
			t.Errorf("%s leads to %q, and not to %q", prefix, r.Peer(), want)
		}
	}
	var said []string
	for _, p := range problems {
		said = append(said, p.String())
	}
	want := []string{
		"FlannelLease 10.1.1.128-25: 10.1.1.128/25 holds addresses that node1 has by another plug-in of the cluster; delete the lease",
		"FlannelLease 10.1.3.0-24: 10.1.3.0/24 holds addresses that node3 has by another plug-in of the cluster; delete the lease",
	}
	if !slices.Equal(said, want) {
		t.Errorf("it is said\n%s\nand not\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
}
