package flannel

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// What an attacker's agent may say: what is its own, what is others', and
// nonsense.
var (
	attackAddresses = []string{"172.30.0.9", "172.30.0.1", "172.30.0.2", "172.30.0.3", "10.5.1.2", "10.5.2.7", "10.5.3.1", "10.5.9.9", "192.0.2.1", "", "elephant",
		"fe80::1%eth0", "::ffff:172.30.0.2", "0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1"}
	attackAddresses6 = []string{"fd00:30::9", "fd00:30::1", "fd00:30::2", "fd00:30::3", "fd00:5:0:1::2", "fd00:5:0:2::7", "fd00:5:0:9::9", "2001:db8::1", "", "elephant",
		alikeNode2, alikeNode3, "172.30.0.2", "::", "ff02::1", "::1"}
	attackMACs  = []string{"0a:58:ac:1e:00:09", "0a:58:ac:1e:00:01", "0a:58:ac:1e:00:02", "02:00:00:00:00:03", "02:00:00:00:00:99", "elephant"}
	attackMACs6 = []string{"0e:8d:0c:af:32:83", "0a:58:ac:1e:00:09", "0e:8d:0c:af:40:1b", "0e:8d:0c:af:41:ce", "0a:58:ac:1e:00:01", "0a:58:ac:1e:00:02", macOfNode3, "02:00:00:00:00:99", "elephant"}
	attackNames = []string{"", "attacker", "node1", "node2", "node3"}
)

// An attacker may look for addresses whose MAC addresses are others'.
const (
	alikeNode2 = "fd00:30::7939:7a08:f869:937e"
	alikeNode3 = "fd00:30::abcd"
)

// macOfNode3 is what flanneld made up for its tunnel over IPv6.
var macOfNode3 = plan.MACOf(netip.MustParseAddr(alikeNode3)).String()

func TestAddressesAlike(t *testing.T) {
	if a, b := plan.MACOf(netip.MustParseAddr(alikeNode2)), plan.MACOf(netip.MustParseAddr("fd00:30::2")); a != b {
		t.Errorf("the MAC address of %s is %s, and not that of node2, %s: find another address", alikeNode2, a, b)
	}
}

// withoutFlannelds leaves out the MAC addresses of node3, which flanneld made up:
// whose such an address is, nothing tells but the leases' age.
func withoutFlannelds(macs []string) []string {
	return slices.DeleteFunc(slices.Clone(macs), func(m string) bool { return m == "02:00:00:00:00:03" || m == macOfNode3 })
}

// victims are node1 and node2, which run Weft, and node3, which runs flanneld.
type victim struct{ address, address6, mac, mac6 string }

// drawVictims returns them by their numbers. node2 may run a Weft that had one tunnel
// for both families.
func drawVictims(t *rapid.T) map[int]victim {
	return map[int]victim{
		1: {"172.30.0.1", "fd00:30::1", "0a:58:ac:1e:00:01", "0e:8d:0c:af:40:1b"},
		2: {"172.30.0.2", "fd00:30::2", "0a:58:ac:1e:00:02", rapid.SampledFrom([]string{"0e:8d:0c:af:41:ce", "0a:58:ac:1e:00:02"}).Draw(t, "MAC of node2")},
		3: {"172.30.0.3", "fd00:30::3", "02:00:00:00:00:03", macOfNode3},
	}
}

// harmless holds two plans of a node against each other: with what an attacker
// says, each entry that comes of others' objects must be as it is without. believed says
// which addresses the attacker may have, and unnamed which nodes' leases name no node.
func harmless(t *rapid.T, node, attacker string, unnamed map[string]victim, believed func(netip.Addr) bool, without, with *plan.Plan) {
	if !slices.Equal(without.Local.Pools, with.Local.Pools) || !slices.Equal(without.Local.Tunnels, with.Local.Tunnels) {
		t.Fatalf("%s: the attacker changed what is the node's own:\n%s\nwith it:\n%s", node, without, with)
	}
	keepsWays(t, node, unnamed, without, with)
	// Of machines that are nobody's it gets no packets: at most those for an address where
	// they come anyway, as its tunnel ends there.
	for k, e := range with.Egress.All() {
		if _, had := without.Egress.Get(k); had || e.Origin != attacker || !k.Destination.IsSingleIP() || believed(k.Destination.Addr()) {
			continue
		}
		t.Fatalf("%s: the attacker had packets to %v keep pods' addresses:\n%s\nwith it:\n%s", node, k, without, with)
	}
	for k, r := range with.Routes.All() {
		_, had := without.Routes.Get(k)
		if end, _ := how(with, k, r); !had && r.Origin == attacker && k.Prefix.IsSingleIP() && (end.VTEP != k.Prefix.Addr() || !believed(end.VTEP)) {
			t.Fatalf("%s: the attacker drew what is for %v:\n%s\nwith it:\n%s", node, k, without, with)
		}
		if had || r.Origin == attacker {
			continue
		}
		if end, _ := how(with, k, r); r.Way != plan.ToTunnel || end.VTEP == netip.MustParseAddr("172.30.0.9") || end.VTEP == netip.MustParseAddr("fd00:30::9") {
			t.Fatalf("%s: the attacker made a route of %s: %v %v", node, r.Origin, k, r)
		}
	}
}

// how returns in which way the peer of a route is reached.
func how(p *plan.Plan, k plan.RouteKey, r plan.Route) (plan.TunnelEnd, netip.Addr) {
	peer := p.Peer(r.Peer())
	end, _, _ := p.Local.EndOf(peer, k.Prefix.Addr())
	return end, peer.NextHop(k.Prefix.Addr())
}

// keepsWays holds to it that what goes somewhere without the attacker goes the same way with it.
func keepsWays(t *rapid.T, node string, unnamed map[string]victim, without, with *plan.Plan) {
	for k, r := range without.Routes.All() {
		got, ok := with.Routes.Get(k)
		end, via := how(without, k, r)
		gotEnd, gotVia := how(with, k, got)
		same := end == gotEnd && via == gotVia
		if v, ok := unnamed[r.Peer()]; ok && (got.Peer() == v.address || got.Peer() == v.address6) {
			got.Peers = r.Peers // two say that they are it
		}
		if !ok || !same || !got.Equal(r) {
			t.Fatalf("%s: the attacker changed the route to %v from %v to %v:\n%s\nwith it:\n%s", node, k, r, got, without, with)
		}
	}
	for k, e := range without.Egress.All() {
		if got, ok := with.Egress.Get(k); !ok || got.Action != e.Action {
			t.Fatalf("%s: the attacker changed the way out %v from %v to %v:\n%s\nwith it:\n%s", node, k, e, got, without, with)
		}
	}
}

// outside reports whether an address is in no network of pods.
func outside(a netip.Addr) bool {
	return !netip.MustParsePrefix("10.5.0.0/16").Contains(a) && !netip.MustParsePrefix("fd00:5::/48").Contains(a)
}

func factsOf(i int, dual bool) plugin.Node {
	own := netip.AddrFrom4([4]byte{172, 30, 0, byte(i)})
	pod := netip.AddrFrom4([4]byte{10, 5, byte(i), 2})
	n := plugin.Node{Name: fmt.Sprintf("node%d", i), MTU: 1500, Addresses: []netip.Addr{own}, Prefixes: []netip.Prefix{netip.PrefixFrom(own, 24).Masked()},
		Endpoints: []plugin.Endpoint{{Interface: "weft0", Network: plan.DefaultNetwork, Addresses: []netip.Addr{pod}, MAC: plan.MACOf(pod)}}}
	if dual {
		own6 := netip.MustParseAddr(fmt.Sprintf("fd00:30::%d", i))
		n.Addresses, n.Prefixes = append(n.Addresses, own6), append(n.Prefixes, netip.PrefixFrom(own6, 64).Masked())
		n.Endpoints[0].Addresses = append(n.Endpoints[0].Addresses, netip.MustParseAddr(fmt.Sprintf("fd00:5:0:%d::2", i)))
	}
	return n
}

// harmConfig is a configuration of one family or of both.
func harmConfig(backend string, dual bool) string {
	v6 := ""
	if dual {
		v6 = `"EnableIPv6":true,"IPv6Network":"fd00:5::/48",`
	}
	return `{"Network":"10.5.0.0/16",` + v6 + `"Backend":{"Type":` + backend + `}}`
}

// An agent that has a lease, younger than those of others or reserved as those of
// others are, and a Node of its own, and writes whatever it likes into these, takes
// nothing from any other node: not its subnet, nor its address, nor its tunnel.
func TestLeaseCannotHarmOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backend := rapid.SampledFrom([]string{`"vxlan"`, `"vxlan","DirectRouting":true`, `"host-gw"`}).Draw(t, "backend")
		dual := rapid.Bool().Draw(t, "dual")
		config := decode(nothing{}, ConfigKind, ConfigName, []byte(harmConfig(backend, dual)), false)
		victims := drawVictims(t)
		reserved := rapid.Bool().Draw(t, "reserved")
		objects := map[*registry.Kind][]registry.Object{ConfigKind: {config}}
		add := func(k *registry.Kind, name, value string, created int64) {
			objects[k] = append(objects[k], decodeCreated(nothing{}, k, name, []byte(value), true, created))
		}
		kind := backend[1:6] == "vxlan"
		name := "host-gw"
		if kind {
			name = "vxlan"
		}
		// Others than node3 may have run flanneld until now, and one may have no lease.
		flannelds := rapid.Bool().Draw(t, "all leases of flanneld's")
		leaseless := rapid.IntRange(0, 2).Draw(t, "leaseless")
		unnamed := map[string]victim{"node3": victims[3]}
		for i := 1; i <= 3; i++ {
			stamp := fmt.Sprintf(`,"Weft":{"Node":"node%d","Config":{}}`, i)
			if i == 3 || flannelds {
				stamp, unnamed[fmt.Sprintf("node%d", i)] = "", victims[i]
			}
			subnet, v, second, reserved6, addresses := fmt.Sprintf("10.5.%d.0-24", i), victims[i], "", "", []string{victims[i].address}
			if dual {
				subnet += fmt.Sprintf("&fd00:5:0:%d::-64", i)
				second = fmt.Sprintf(`,"PublicIPv6":%q,"BackendV6Data":{"VNI":1,"VtepMAC":%q}`, v.address6, v.mac6)
				reserved6, addresses = fmt.Sprintf(`,"publicIPv6":%q`, v.address6), append(addresses, v.address6)
			}
			if i != leaseless {
				add(LeaseKind, subnet, fmt.Sprintf(`{"PublicIP":%q,"BackendType":%q,"BackendData":{"VNI":1,"VtepMAC":%q}%s%s}`, v.address, name, v.mac, second, stamp), int64(10+i))
			}
			objects[api.Node] = append(objects[api.Node], coreNode(append([]string{fmt.Sprintf("node%d", i)}, addresses...)...))
			if reserved {
				add(ReservationKind, subnet, fmt.Sprintf(`{"node":"node%d","publicIP":%q%s}`, i, v.address, reserved6), int64(i))
			}
		}
		without := registry.NewSnapshot(objects)

		address, said, said6 := rapid.SampledFrom(attackAddresses), attackMACs, attackMACs6
		address6 := rapid.SampledFrom(attackAddresses6)
		created := int64(rapid.IntRange(14, 20).Draw(t, "created"))
		subnets := []string{"10.5.0.0-24", "10.5.9.0-24", "10.5.10.0-24"} // the last is the first by its key
		if reserved {
			created = int64(rapid.IntRange(1, 20).Draw(t, "reserved created")) // it may be the oldest
		} else {
			// The key, too, is the attacker's to choose.
			subnets = append(subnets, "10.5.2.0-25", "10.5.0.0-17", "10.5.3.128-25", "172.30.0.0-24", "172.30.0.2-31")
		}
		subnet, second := rapid.SampledFrom(subnets).Draw(t, "subnet"), ""
		if created <= 13 {
			said, said6 = withoutFlannelds(attackMACs), withoutFlannelds(attackMACs6)
		}
		if dual {
			subnets := []string{"", "&fd00:5:0:9::-64"}
			if !reserved {
				subnets = append(subnets, "&fd00:5:0:3::-64", "&fd00:5:0:2::-80", "&fd00:5::-49", "&fd00:5:0:3:8000::-65", "&fd00:30::-64", "&fd00:30::2-127")
			}
			subnet += rapid.SampledFrom(subnets).Draw(t, "IPv6 subnet")
			second = fmt.Sprintf(`,"PublicIPv6":%q,"BackendV6Data":{"VNI":1,"VtepMAC":%q}`, address6.Draw(t, "PublicIPv6"), rapid.SampledFrom(said6).Draw(t, "IPv6 MAC"))
		}
		weft := ""
		if n := rapid.SampledFrom(attackNames).Draw(t, "stamp"); n != "" {
			weft = fmt.Sprintf(`,"Weft":{"Node":%q,"Config":{}}`, n)
		}
		lease := fmt.Sprintf(`{"PublicIP":%q,"BackendType":%q,"BackendData":{"VNI":1,"VtepMAC":%q}%s%s}`,
			address.Draw(t, "PublicIP"), rapid.SampledFrom([]string{"vxlan", "host-gw", ""}).Draw(t, "type"), rapid.SampledFrom(said).Draw(t, "MAC"), second, weft)
		objects[LeaseKind] = append(objects[LeaseKind], decodeCreated(nothing{}, LeaseKind, subnet, []byte(lease), rapid.Bool().Draw(t, "expires"), created))
		if reserved {
			// What it leaves out, nobody vouches for.
			reserved6 := rapid.SampledFrom([]string{"", `,"publicIPv6":"fd00:30::9"`}).Draw(t, "reserved IPv6")
			add(ReservationKind, subnet, `{"node":"attacker","publicIP":"172.30.0.9"`+reserved6+`}`, 4)
		}
		attacker := coreNode(append([]string{"attacker"}, rapid.SliceOfN(rapid.OneOf(address, address6), 0, 4).Draw(t, "addresses")...)...)
		at := rapid.IntRange(0, 3).Draw(t, "place")
		objects[api.Node] = slices.Insert(slices.Clone(objects[api.Node]), at, registry.Object(attacker))
		slices.SortFunc(objects[LeaseKind], func(a, b registry.Object) int { return registry.KeyOf(a).Compare(registry.KeyOf(b)) })
		with := registry.NewSnapshot(objects)
		pods := rapid.Bool().Draw(t, "pods")
		for i := 1; i <= 3; i++ {
			in := plugin.Input{Config: &api.ClusterConfig{}, Node: factsOf(i, dual), Objects: without}
			if (!pods || i == leaseless) && i < 3 {
				in.Node.Endpoints = nil
			}
			before, _ := Plugin{}.Compile(in)
			in.Objects = with
			after, _ := Plugin{}.Compile(in)
			if err := after.Validate(); err != nil {
				t.Fatal(err)
			}
			if i == leaseless && !reserved {
				// It may take what says that it is its own. Then it has a subnet as it might have
				// chosen itself, and the ways to the others.
				in.Objects = settled(t, in, with)
				after, _ = Plugin{}.Compile(in)
				for _, pool := range after.Local.Pools {
					if p := pool.Prefix; pool.Closed || outside(p.Addr()) || p.Bits() != 24 && p.Bits() != 64 {
						t.Fatalf("node%d takes %s:\n%s", i, p, after)
					}
				}
				keepsWays(t, in.Node.Name, unnamed, before, after)
				continue
			}
			harmless(t, in.Node.Name, "FlannelLease "+subnet, unnamed, outside, before, after)
		}
	})
}

// settled returns what is in the registry once a node has done all that it has to do for
// its lease, or cannot go on.
func settled(t *rapid.T, in plugin.Input, objects registry.Snapshot) registry.Snapshot {
	for range 5 {
		v, err := (&runner{Plugin: Plugin{}.withDefaults(), now: time.Now}).view(plugin.Input{Objects: objects, Node: in.Node})
		if err != nil {
			t.Fatal(err)
		}
		v.due = false
		s, err := v.decide()
		if err != nil || s.verb == keep {
			return objects
		}
		objects = maps.Clone(objects)
		objects[LeaseKind] = slices.DeleteFunc(slices.Clone(objects[LeaseKind]), func(o registry.Object) bool { return o.GetName() == s.subnet.String() })
		if s.verb != release {
			s.object.Created = cmp.Or(s.object.Created, 100)
			objects[LeaseKind] = append(objects[LeaseKind], s.object)
		}
		objects = registry.NewSnapshot(objects)
	}
	t.Fatalf("%s does not come to rest", in.Node.Name)
	return nil
}

// The same on Kubernetes: an agent writes the annotations of its own Node, which
// may be the oldest of all, and a kubelet that of a younger one its addresses, too.
func TestAnnotationsCannotHarmOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backend := rapid.SampledFrom([]string{`"vxlan"`, `"vxlan","DirectRouting":true`, `"host-gw"`, ""}).Draw(t, "backend")
		name := "vxlan"
		if backend == `"host-gw"` {
			name = "host-gw"
		}
		dual := rapid.Bool().Draw(t, "dual")
		objects := map[*registry.Kind][]registry.Object{}
		if backend != "" {
			objects[ConfigMap] = []registry.Object{configMap(map[string]string{NetConf: harmConfig(backend, dual)})}
		}
		node := func(name string, i int, age int64, addresses ...string) *corev1.Node {
			n := coreNode(append([]string{name}, addresses...)...)
			n.CreationTimestamp = metav1.NewTime(time.Unix(age, 0))
			n.Spec.PodCIDRs = []string{fmt.Sprintf("10.5.%d.0/24", i)}
			if dual {
				n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, fmt.Sprintf("fd00:5:0:%d::/64", i))
			}
			return n
		}
		tell := func(n *corev1.Node, backend string, v victim) {
			n.Annotations = map[string]string{managedAnnotation: managed, backendTypeAnnotation: backend, publicIPAnnotation: v.address,
				backendDataAnnotation: fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, v.mac)}
			if dual {
				n.Annotations[publicIPv6Annotation], n.Annotations[backendV6Annotation] = v.address6, fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, v.mac6)
			}
		}
		victims := drawVictims(t)
		for i := 1; i <= 3; i++ {
			addresses := []string{victims[i].address}
			if dual {
				addresses = append(addresses, victims[i].address6)
			}
			n := node(fmt.Sprintf("node%d", i), i, int64(10+i), addresses...)
			tell(n, name, victims[i])
			objects[api.Node] = append(objects[api.Node], n)
		}
		without := registry.NewSnapshot(objects)
		address, address6 := rapid.SampledFrom(attackAddresses), rapid.SampledFrom(attackAddresses6)
		addresses, age, macs, macs6 := []string{"172.30.0.9", "fd00:30::9"}, int64(rapid.IntRange(1, 20).Draw(t, "age")), attackMACs, attackMACs6
		if rapid.Bool().Draw(t, "kubelet") {
			addresses, age = rapid.SliceOfN(rapid.OneOf(address, address6), 0, 4).Draw(t, "addresses"), 20
			// Whoever gives a node an address which leads to the MAC address that
			// another's flanneld made up can have that.
			addresses = slices.DeleteFunc(addresses, func(a string) bool { return a == alikeNode3 })
		}
		if age <= 13 {
			macs, macs6 = withoutFlannelds(attackMACs), withoutFlannelds(attackMACs6)
		}
		attacker := node("attacker", 9, age, addresses...)
		tell(attacker, rapid.SampledFrom([]string{"vxlan", "host-gw", ""}).Draw(t, "type"), victim{address.Draw(t, "public-ip"), address6.Draw(t, "public-ipv6"),
			rapid.SampledFrom(macs).Draw(t, "MAC"), rapid.SampledFrom(macs6).Draw(t, "IPv6 MAC")})
		at := rapid.IntRange(0, 3).Draw(t, "place")
		objects[api.Node] = slices.Insert(slices.Clone(objects[api.Node]), at, registry.Object(attacker))
		with := registry.NewSnapshot(objects)
		for i := 1; i <= 3; i++ {
			in := plugin.Input{Config: &api.ClusterConfig{}, Node: factsOf(i, dual), Objects: without}
			before, _ := Kubernetes{}.Compile(in)
			in.Objects = with
			after, _ := Kubernetes{}.Compile(in)
			if err := after.Validate(); err != nil {
				t.Fatal(err)
			}
			harmless(t, in.Node.Name, "Node attacker", nil, func(a netip.Addr) bool { return outside(a) && slices.Contains(addresses, a.String()) }, before, after)
		}
	})
}

// An address among a node's own pods is no node's, whether the network is known or not, and
// whether nodes are in it or beside it: nothing ends there, and no packets for it keep pods'
// addresses. What else the node lists is its own.
func TestAddressAmongItsOwnPodsIsNoNodes(t *testing.T) {
	const inSubnet, beside = "10.5.9.9", "172.30.0.9"
	kubernetes := func(public string, networks ...string) registry.Objects {
		n1, n9 := coreNode("node1", "172.30.0.1"), coreNode("node9", inSubnet, beside)
		n1.Spec.PodCIDRs, n9.Spec.PodCIDRs = []string{"10.5.1.0/24"}, []string{"10.5.9.0/24"}
		n9.Annotations = map[string]string{managedAnnotation: managed, backendTypeAnnotation: BackendVXLAN, publicIPAnnotation: public,
			backendDataAnnotation: `{"VNI":1,"VtepMAC":"02:00:00:00:00:09"}`}
		objects := map[*registry.Kind][]registry.Object{api.Node: {n1, n9}}
		for _, network := range networks {
			objects[ConfigMap] = append(objects[ConfigMap], configMap(map[string]string{NetConf: fmt.Sprintf(`{"Network":%q,"Backend":{"Type":"vxlan"}}`, network)}))
		}
		return registry.NewSnapshot(objects)
	}
	etcd := func(public, network string) registry.Objects {
		lease := func(name, address string) registry.Object {
			return decode(t, LeaseKind, name, fmt.Appendf(nil, `{"PublicIP":%q,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, address, plan.MACOf(netip.MustParseAddr(address))), true)
		}
		return registry.NewSnapshot(map[*registry.Kind][]registry.Object{
			ConfigKind: {decode(t, ConfigKind, ConfigName, fmt.Appendf(nil, `{"Network":%q,"Backend":{"Type":"vxlan"}}`, network), false)},
			LeaseKind:  {lease("10.5.1.0-24", "172.30.0.1"), lease("10.5.9.0-24", public)},
			api.Node:   {coreNode("node1", "172.30.0.1"), coreNode("node9", inSubnet, beside)},
		})
	}
	for what, c := range map[string]struct {
		plugin  plugin.Plugin
		objects func(public string) registry.Objects
	}{
		"nobody has told the network": {Kubernetes{}, func(public string) registry.Objects { return kubernetes(public) }},
		"a ConfigMap tells it":        {Kubernetes{}, func(public string) registry.Objects { return kubernetes(public, "10.5.0.0/16") }},
		"nodes are in it":             {Kubernetes{}, func(public string) registry.Objects { return kubernetes(public, "10.0.0.0/8") }},
		"leases are in etcd":          {Plugin{}, func(public string) registry.Objects { return etcd(public, "10.5.0.0/16") }},
		"and nodes in the network":    {Plugin{}, func(public string) registry.Objects { return etcd(public, "10.0.0.0/8") }},
		"and pods outside of it":      {Plugin{}, func(public string) registry.Objects { return etcd(public, "10.6.0.0/16") }},
	} {
		for _, public := range []string{inSubnet, beside} {
			in := plugin.Input{Config: &api.ClusterConfig{}, Node: factsOf(1, false), Objects: c.objects(public)}
			if strings.Contains(what, "nodes") { // as if others were where the node is
				in.Node.Addresses, in.Node.Prefixes = append(in.Node.Addresses, netip.MustParseAddr("10.7.0.1")), nil
			}
			p, problems := c.plugin.Compile(in)
			if err := p.Validate(); err != nil {
				t.Fatalf("%s, %s: %v", what, public, err)
			}
			for _, a := range []string{inSubnet, beside} {
				host := netip.MustParsePrefix(a + "/32")
				r, led := p.Routes.Get(key(host))
				_, direct := p.Egress.Get(plan.EgressKey{Network: plan.DefaultNetwork, Destination: host})
				if want := a == public && a == beside; led != want || direct != want {
					t.Errorf("%s, %s: to %s it goes by %v (%t), and with pods' own addresses %t:\n%s", what, public, a, r, led, direct, p)
				}
			}
			r, led := p.Routes.Get(key(netip.MustParsePrefix("10.5.9.0/24")))
			if through := led && r.Way == plan.ToTunnel; through != (public == beside) {
				t.Errorf("%s, %s: to the pods it goes by %v:\n%s", what, public, r, p)
			}
			if !slices.ContainsFunc(problems, func(p plugin.Problem) bool {
				return strings.HasPrefix(p.Message, "its address "+inSubnet+" is in the ") && strings.HasSuffix(p.Message, "and is not used; give its node an address of the nodes' network")
			}) {
				t.Errorf("%s, %s: of %s nothing is said: %v", what, public, inSubnet, problems)
			}
		}
	}
}

// Each end of a tunnel stays with the lease whose it is, whatever an older lease says, or
// one at an address that was chosen for it. What is wrong in one tunnel leaves the other.
func TestTunnelEndsStayWithTheirNodes(t *testing.T) {
	weft := victim{"172.30.0.2", "fd00:30::2", "0a:58:ac:1e:00:02", "0e:8d:0c:af:41:ce"}
	former := victim{"172.30.0.2", "fd00:30::2", "0a:58:ac:1e:00:02", "0a:58:ac:1e:00:02"}
	flanneld := victim{"172.30.0.2", "fd00:30::2", "02:00:00:00:00:02", macOfNode3}
	for what, c := range map[string]struct {
		victim, attacker victim
		// born is when the victim's lease was made, the attacker's at 10.
		born int64
		// reserved is what the attacker's reservation says; where it is empty, there
		// are none.
		reserved string
		// v6 says that it is of the IPv6 end.
		v6 bool
	}{
		"a MAC address made of an IPv4 address":     {weft, victim{"172.30.0.9", "fd00:30::9", weft.mac, "02:00:00:00:06:09"}, 20, "", false},
		"the same, over IPv6":                       {former, victim{"172.30.0.9", "fd00:30::9", "02:00:00:00:00:09", former.mac6}, 20, "", true},
		"made of an IPv4 address that is another's": {former, victim{"172.30.0.2", "fd00:30::9", former.mac, former.mac6}, 20, `,"publicIPv6":"fd00:30::9"`, true},
		"made of an IPv6 address that is known":     {weft, victim{"172.30.0.9", "fd00:30::9", "02:00:00:00:00:09", weft.mac6}, 20, `,"publicIPv6":"fd00:30::9"`, true},
		"at an address with that MAC address":       {weft, victim{"172.30.0.9", alikeNode2, "02:00:00:00:00:09", weft.mac6}, 20, `,"publicIP":"172.30.0.9"`, true},
		"at an address with flanneld's":             {flanneld, victim{"172.30.0.9", alikeNode3, "02:00:00:00:00:09", macOfNode3}, 1, "", true},
		"at an address that nobody vouches for":     {flanneld, victim{"172.30.0.9", "fd00:30::99", "02:00:00:00:00:09", macOfNode3}, 20, `,"publicIP":"172.30.0.9"`, true},
		"with an address that nobody vouches for":   {weft, victim{"172.30.0.9", "fd00:30::2", "02:00:00:00:00:09", "02:00:00:00:06:09"}, 20, `,"publicIP":"172.30.0.9"`, true},
	} {
		objects := map[*registry.Kind][]registry.Object{ConfigKind: {decode(t, ConfigKind, ConfigName, []byte(harmConfig(`"vxlan"`, true)), false)}}
		add := func(i int, v victim, born int64, reserved string) {
			subnet := fmt.Sprintf("10.5.%d.0-24&fd00:5:0:%d::-64", i, i)
			objects[LeaseKind] = append(objects[LeaseKind], decodeCreated(t, LeaseKind, subnet, fmt.Appendf(nil,
				`{"PublicIP":%q,"PublicIPv6":%q,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q},"BackendV6Data":{"VNI":1,"VtepMAC":%q}}`,
				v.address, v.address6, v.mac, v.mac6), true, born))
			if c.reserved != "" {
				objects[ReservationKind] = append(objects[ReservationKind], decode(t, ReservationKind, subnet, fmt.Appendf(nil, `{"node":"node%d"%s}`, i, reserved), false))
			}
		}
		add(2, c.victim, c.born, `,"publicIP":"172.30.0.2","publicIPv6":"fd00:30::2"`)
		add(9, c.attacker, 10, c.reserved)
		p, problems := Plugin{}.Compile(plugin.Input{Config: &api.ClusterConfig{}, Node: factsOf(1, true), Objects: registry.NewSnapshot(objects)})
		if err := p.Validate(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, want := range []struct {
			prefix, tunnel, vtep, mac string
			ok                        bool
		}{
			{"10.5.2.0/24", Name, c.victim.address, c.victim.mac, true},
			{"fd00:5:0:2::/64", nameV6, c.victim.address6, c.victim.mac6, true},
			{"10.5.9.0/24", Name, c.attacker.address, c.attacker.mac, c.v6},
			{"fd00:5:0:9::/64", nameV6, c.attacker.address6, c.attacker.mac6, !c.v6},
		} {
			r, ok := p.Routes.Get(key(netip.MustParsePrefix(want.prefix)))
			end, _ := p.Peer(r.Peer()).End(want.tunnel)
			if ok != want.ok || ok && (end.VTEP.String() != want.vtep || end.MAC.String() != want.mac) {
				t.Errorf("%s: %s is behind %v (%t):\n%s%v", what, want.prefix, end, ok, p, problems)
			}
		}
	}
}

// nothing is a testing.TB for helpers that cannot fail here.
type nothing struct{ testing.TB }

func (nothing) Helper() {}

// Whose pods are behind a machine follows from what is proven of its address. Nobody
// gets another node's name, or gives his own to another's pods, whatever his lease,
// his Node and their age say; and the leases that a node had before are its own.
func TestPeersAreNamedByProof(t *testing.T) {
	type lease struct {
		subnet, address, address6, node string
		created                         int64
	}
	nodes := []*corev1.Node{coreNode("node1", "172.30.0.1", "fd00:30::1"), coreNode("node2", "172.30.0.2", "172.30.0.22", "fd00:30::2"),
		coreNode("172.30.0.7", "172.30.0.8"), coreNode("attacker", "172.30.0.9", "172.30.0.2", "fd00:30::9", "fd00:30::2")}
	own := lease{"10.5.1.0-24", "172.30.0.1", "fd00:30::1", "node1", 1}
	victim := lease{"10.5.2.0-24", "172.30.0.2", "fd00:30::2", "node2", 10}
	for what, c := range map[string]struct {
		leases []lease
		want   map[string]string // subnet to peer
	}{
		"what it says of itself": {[]lease{victim, {"10.5.0.0-24", "172.30.0.9", "fd00:30::9", "node2", 5}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.9", "fd00:5:0:2::/64": "node2", "fd00:5::/64": "fd00:30::9"}},
		"two of one node": {[]lease{victim, {"10.5.3.0-24", "172.30.0.2", "fd00:30::2", "node2", 3}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.3.0/24": "node2", "fd00:5:0:2::/64": "node2", "fd00:5:0:3::/64": "node2"}},
		"another's addresses": {[]lease{victim, {"10.5.0.0-24", "172.30.0.2", "fd00:30::2", "attacker", 20}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.2", "fd00:5:0:2::/64": "node2", "fd00:5::/64": "fd00:30::2"}},
		"the same, and older": {[]lease{victim, {"10.5.0.0-24", "172.30.0.2", "fd00:30::2", "attacker", 5}},
			map[string]string{"10.5.2.0/24": "172.30.0.2", "10.5.0.0/24": "attacker", "fd00:5:0:2::/64": "fd00:30::2", "fd00:5::/64": "attacker"}},
		"another's IPv4 address alone": {[]lease{victim, {"10.5.0.0-24", "172.30.0.2", "fd00:30::9", "attacker", 20}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.2", "fd00:5:0:2::/64": "node2", "fd00:5::/64": "fd00:30::9"}},
		"another's IPv6 address alone": {[]lease{victim, {"10.5.0.0-24", "172.30.0.9", "fd00:30::2", "attacker", 20}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.9", "fd00:5:0:2::/64": "node2", "fd00:5::/64": "fd00:30::2"}},
		"another's second address": {[]lease{victim, {"10.5.0.0-24", "172.30.0.22", "fd00:30::2", "node2", 20}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.22", "fd00:5:0:2::/64": "node2", "fd00:5::/64": "fd00:30::2"}},
		"an address of the other family": {[]lease{{"10.5.2.0-24", "172.30.0.2", "", "node2", 10}, {"10.5.0.0-24", "172.30.0.9", "fd00:30::2", "node2", 5}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.9", "fd00:5::/64": "fd00:30::2"}},
		"an address that is a Node's name": {[]lease{victim, {"10.5.7.0-24", "172.30.0.7", "fd00:30::7", "gone", 4}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.7.0/24": "machine at 172.30.0.7", "fd00:5:0:2::/64": "node2", "fd00:5:0:7::/64": "fd00:30::7"}},
		"the node's own name": {[]lease{victim, {"10.5.7.0-24", "172.30.0.77", "fd00:30::77", "node1", 4}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.7.0/24": "172.30.0.77", "fd00:5:0:2::/64": "node2", "fd00:5:0:7::/64": "fd00:30::77"}},
	} {
		for _, dual := range []bool{false, true} {
			for _, backend := range []string{"host-gw", "vxlan"} {
				how := fmt.Sprintf("%s, %s, both families %t", what, backend, dual)
				objects := map[*registry.Kind][]registry.Object{
					ConfigKind: {decode(t, ConfigKind, ConfigName, []byte(harmConfig(fmt.Sprintf("%q", backend), dual)), false)}}
				for _, n := range nodes {
					objects[api.Node] = append(objects[api.Node], n)
				}
				all := append([]lease{own}, c.leases...)
				slices.SortFunc(all, func(a, b lease) int { return strings.Compare(a.subnet, b.subnet) })
				for _, l := range all {
					a := Attributes{PublicIP: netip.MustParseAddr(l.address), BackendType: backend, Weft: &Stamp{Node: l.node, Config: []byte("{}")}}
					subnet := Subnet{V4: netip.MustParsePrefix(strings.ReplaceAll(l.subnet, "-", "/"))}
					if backend == BackendVXLAN {
						a.Tunnel = &TunnelEnd{VNI: 1, MAC: plan.MACOf(a.PublicIP)}
					}
					if l.address6 != "" {
						a.PublicIPv6 = netip.MustParseAddr(l.address6)
					}
					if dual {
						subnet.V6 = netip.MustParsePrefix(fmt.Sprintf("fd00:5:0:%d::/64", subnet.V4.Addr().As4()[2]))
						if backend == BackendVXLAN && l.address6 != "" {
							a.TunnelV6 = &TunnelEnd{VNI: 1, MAC: plan.MACOf(a.PublicIPv6)}
						}
					}
					objects[LeaseKind] = append(objects[LeaseKind], decodeCreated(t, LeaseKind, subnet.String(), a.Merge(nil), true, l.created))
				}
				p, _ := Plugin{}.Compile(plugin.Input{Config: &api.ClusterConfig{}, Node: factsOf(1, dual), Objects: registry.NewSnapshot(objects)})
				if err := p.Validate(); err != nil {
					t.Fatalf("%s: %v", how, err)
				}
				for prefix, want := range c.want {
					r, ok := p.Routes.Get(key(netip.MustParsePrefix(prefix)))
					if ok && r.Way != plan.ToDrop && r.Peer() != want {
						t.Errorf("%s: %s is behind %q, not %q:\n%s", how, prefix, r.Peer(), want, p)
					}
				}
				if r, ok := p.Routes.Get(key(netip.MustParsePrefix("10.5.2.0/24"))); !ok || r.Way == plan.ToDrop {
					t.Errorf("%s: there is no way to node2:\n%s", how, p)
				}
				// What is behind a name is at addresses of its Node alone.
				for _, n := range nodes {
					peer := p.Peer(n.Name)
					at := slices.Clone(peer.Addresses)
					for _, end := range peer.Ends {
						at = append(at, end.VTEP)
					}
					for _, a := range at {
						if !slices.Contains(api.NodeAddresses(n), a) {
							t.Errorf("%s: %s is at %s:\n%s", how, n.Name, a, p)
						}
					}
				}
			}
		}
	}
}
