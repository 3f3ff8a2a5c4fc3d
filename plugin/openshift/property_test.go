package openshift

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// TestReachability makes a cluster through the controller and asks the
// interpreter about all pairs: pods and nodes reach each other under their own
// addresses, the outside sees the node's, and what nobody has is unreachable.
func TestReachability(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		layout := rapid.SampledFrom([][]string{
			{"10.1.0.0/16 8"}, {"10.1.0.0/24 6", "10.2.0.0/22 7"}, {"fd01::/48 64"}, {"10.1.0.0/16 9", "fd01::/48 64"}, {"fd01::/48 64", "10.1.0.0/16 6"},
		}).Draw(t, "CIDRs")
		w.network(layout...)
		underlay := rapid.SampledFrom([][]string{{"192.168.7.%d"}, {"fd00::%d"}, {"192.168.7.%d", "fd00::%d"}, {"fd00::%d", "192.168.7.%d"}}).Draw(t, "underlay")
		nodes := make([]plugin.Node, rapid.IntRange(1, 4).Draw(t, "nodes"))
		for i := range nodes {
			n := plugin.Node{Name: fmt.Sprintf("node%d", i+1), MTU: 1500}
			var addresses []string
			for _, format := range underlay {
				addresses = append(addresses, fmt.Sprintf(format, i+1))
				n.Addresses = append(n.Addresses, netip.MustParseAddr(addresses[len(addresses)-1]))
			}
			w.node(n.Name, addresses...)
			nodes[i] = n
		}
		w.ghost("appliance", "192.168.7.250")
		if d := w.settle(); len(d.problems) > 0 {
			t.Fatal(d.problems)
		}
		all := map[*registry.Kind][]registry.Object{}
		for _, k := range (Subnet{}).Kinds() {
			list, _, err := w.registry.List(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			all[k] = list
		}
		plans := map[string]*plan.Plan{}
		type end struct {
			address netip.Addr
			node    string
		}
		var pods []end
		for _, n := range nodes {
			p, _ := compile(registry.NewSnapshot(all), n, nil)
			for i := range rapid.IntRange(0, 2).Draw(t, "pods") {
				e := plugin.Endpoint{Interface: fmt.Sprintf("weft%d", i), Network: plan.DefaultNetwork, Namespace: "default", Pod: fmt.Sprintf("pod%d", i)}
				for _, pool := range p.Local.Pools {
					a := pool.Gateway
					for range i + 1 {
						a = a.Next()
					}
					e.Addresses = append(e.Addresses, a)
					pods = append(pods, end{a, n.Name})
				}
				e.MAC = plan.MACOf(e.Addresses[0])
				n.Endpoints = append(n.Endpoints, e)
			}
			if len(p.Local.Pools) != len(familiesOf(layout)) {
				t.Fatalf("%s has the pools %v", n.Name, p.Local.Pools)
			}
			p, _ = compile(registry.NewSnapshot(all), n, p)
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			plans[n.Name] = p
		}
		ask := func(from, to, seen netip.Addr, allowed bool) {
			x := plan.Explain(plans, plan.Flow{Source: from, Destination: to, Protocol: plan.TCP, Port: 80})
			if x.Allowed != allowed || allowed && (x.SeenSource != seen || x.SeenDestination != to) {
				t.Fatalf("%s to %s: want allowed %v, seen %s; got %+v\n%s", from, to, allowed, seen, x, plan.FormatAll(plans))
			}
		}
		for _, from := range pods {
			for _, to := range pods {
				if from.address.Is4() == to.address.Is4() {
					ask(from.address, to.address, from.address, true)
				}
			}
			for _, n := range nodes {
				for _, a := range n.Addresses {
					if a.Is4() != from.address.Is4() {
						continue
					}
					// But for its first address of a family, a node is as the world is.
					seen := from.address
					if n.Name != from.node && a != first(n.Addresses, a) {
						seen = outsideAs(nodes, from.node, a)
					}
					ask(from.address, a, seen, true)
					if n.Name == from.node {
						ask(from.address, outside(a), a, true)
					}
				}
			}
			// The next address that nobody has.
			free := from.address
			for slices.ContainsFunc(pods, func(e end) bool { return e.address == free }) {
				free = free.Next()
			}
			ask(from.address, free, netip.Addr{}, false)
		}
	})
}

// outsideAs is the address of a node by which the world sees its pods, of a's family.
func outsideAs(nodes []plugin.Node, name string, a netip.Addr) netip.Addr {
	i := slices.IndexFunc(nodes, func(n plugin.Node) bool { return n.Name == name })
	return first(nodes[i].Addresses, a)
}

// first returns the first of the addresses that is of a's family, the zero Addr for none.
func first(addresses []netip.Addr, a netip.Addr) netip.Addr {
	i := slices.IndexFunc(addresses, func(own netip.Addr) bool { return own.Is4() == a.Is4() })
	if i < 0 {
		return netip.Addr{}
	}
	return addresses[i]
}

func familiesOf(layout []string) map[bool]bool {
	out := map[bool]bool{}
	for _, l := range layout {
		var cidr string
		fmt.Sscan(l, &cidr)
		out[netip.MustParsePrefix(cidr).Addr().Is4()] = true
	}
	return out
}

func outside(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.MustParseAddr("203.0.113.9")
	}
	return netip.MustParseAddr("2001:db8::9")
}

// anyHostSubnet generates HostSubnets that contradict each other and
// themselves.
func anyHostSubnet(i int) *rapid.Generator[registry.Object] {
	return rapid.Custom(func(t *rapid.T) registry.Object {
		pick := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
		h := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i), Annotations: map[string]string{}}}
		h.CreationTimestamp = metav1.NewTime(time.Unix(int64(rapid.IntRange(0, 2).Draw(t, "created")), 0))
		h.Host = pick("host", h.Name, h.Name, "", "other")
		h.HostIP = pick("hostIP", "192.168.7.1", "192.168.7.2", "192.168.7.3", "192.168.7.4", "fd00::1", "10.1.0.7", "", "nonsense", "224.0.0.1")
		h.Subnet = pick("subnet", "10.1.0.0/24", "10.1.1.0/24", "10.1.2.0/23", "10.1.0.0/16", "10.1.3.128/25", "10.9.0.0/24", "0.0.0.0/0", "192.168.7.0/24", "", "fd01::/64", "10.1.0.1/24")
		setAnnotation(h, api.AdditionalSubnets, pick("more subnets", "", "fd01::/64", "fd01:0:0:1::/64", "10.1.3.0/24", "nonsense"))
		setAnnotation(h, api.AdditionalHostIPs, pick("more addresses", "", "fd00::1", "fd00::2", "192.168.7.1", "nonsense"))
		setAnnotation(h, NodeUID, pick("uid", "", "uid"))
		return h
	})
}

// TestAnyObjects holds, for any objects at all, that plans are valid and do
// not depend on the order of objects, that a plan compiled again is the same,
// and that no prefix leads to two nodes.
func TestAnyObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cn := &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
		for range rapid.IntRange(0, 3).Draw(t, "CIDRs") {
			cn.ClusterNetworks = append(cn.ClusterNetworks, networkv1.ClusterNetworkEntry{
				CIDR:             rapid.SampledFrom([]string{"10.1.0.0/16", "10.1.0.0/24", "fd01::/48", "192.168.0.0/16", "0.0.0.0/0", "nonsense"}).Draw(t, "CIDR"),
				HostSubnetLength: rapid.SampledFrom([]uint32{0, 1, 8, 64, 200}).Draw(t, "host bits"),
			})
		}
		cn.ServiceNetwork = rapid.SampledFrom([]string{"", "172.30.0.0/16", "10.1.0.0/16", "nonsense"}).Draw(t, "service network")
		var hosts []registry.Object
		for i := range rapid.IntRange(0, 6).Draw(t, "HostSubnets") {
			hosts = append(hosts, anyHostSubnet(i+1).Draw(t, "HostSubnet"))
		}
		n := plugin.Node{Name: "node1", MTU: rapid.SampledFrom([]int{0, 500, 1280, 1500}).Draw(t, "MTU")}
		for _, a := range rapid.SampledFrom([][]string{{"192.168.7.1"}, {"192.168.7.9", "fd00::1"}, {"fd00::1"}, {}}).Draw(t, "addresses") {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
		}
		for i, a := range []string{"10.1.0.1", "10.1.0.2", "192.168.7.1", "10.1.0.2"}[:rapid.IntRange(0, 4).Draw(t, "endpoints")] {
			n.Endpoints = append(n.Endpoints, plugin.Endpoint{Interface: fmt.Sprintf("weft%d", i), Network: plan.DefaultNetwork, Addresses: []netip.Addr{netip.MustParseAddr(a)}})
		}
		objects := map[*registry.Kind][]registry.Object{api.ClusterNetwork: {cn}, api.HostSubnet: hosts}
		p, problems := compile(registry.NewSnapshot(objects), n, nil)
		if err := p.Validate(); err != nil {
			t.Fatalf("%v\n%s", err, p)
		}
		shuffled := unordered{map[*registry.Kind][]registry.Object{api.ClusterNetwork: {cn}, api.HostSubnet: rapid.Permutation(hosts).Draw(t, "order")}}
		n.Endpoints = rapid.Permutation(n.Endpoints).Draw(t, "order of endpoints")
		again, problemsAgain := Subnet{}.Compile(plugin.Input{Previous: p, Config: &api.ClusterConfig{}, Objects: shuffled, Node: n})
		if d := p.Diff(again); !d.Empty() {
			t.Fatalf("in another order:\n%s", d)
		}
		if d := cmp.Diff(lines(problems), lines(problemsAgain)); d != "" {
			t.Fatalf("in another order: -before +after\n%s", d)
		}
		// Also the controller has to bear them.
		reconcile(registry.NewSnapshot(objects), plugin.Elsewhere{}, time.Unix(0, 0), time.Minute)
	})
}

// unordered is a snapshot that keeps the order in which it was made.
type unordered struct {
	objects map[*registry.Kind][]registry.Object
}

func (u unordered) All(k *registry.Kind) iter.Seq[registry.Object] {
	return slices.Values(u.objects[k])
}

func (u unordered) Get(k *registry.Kind, key registry.Key) registry.Object {
	return registry.NewSnapshot(u.objects).Get(k, key)
}

// BenchmarkCompile compiles the plan of one of 2,000 nodes, with 100 pods, as
// it is done when a pod comes.
func BenchmarkCompile(b *testing.B) {
	cn := &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName},
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/13", HostSubnetLength: 8}}}
	var hosts []registry.Object
	for i := range 2000 {
		name := fmt.Sprintf("node%04d", i)
		hosts = append(hosts, &networkv1.HostSubnet{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{NodeUID: name}},
			Host:       name, HostIP: fmt.Sprintf("192.168.%d.%d", i/250, i%250+1),
			Subnet: fmt.Sprintf("10.%d.%d.0/24", 128+i/256, i%256),
		})
	}
	objects := registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.ClusterNetwork: {cn}, api.HostSubnet: hosts})
	n := plugin.Node{Name: "node0000", MTU: 1500, Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")}}
	for i := range 100 {
		a := netip.AddrFrom4([4]byte{10, 128, 0, byte(i + 2)})
		n.Endpoints = append(n.Endpoints, plugin.Endpoint{Interface: fmt.Sprintf("weft%d", i), Network: plan.DefaultNetwork, Addresses: []netip.Addr{a}, MAC: plan.MACOf(a)})
	}
	p, problems := compile(objects, n, nil)
	if len(problems) > 0 {
		b.Fatal(problems)
	}
	b.ReportAllocs()
	for b.Loop() {
		compile(objects, n, p)
	}
}
