// Package plantest generates plans for property tests: whole clusters whose
// plans fit together, which a data plane can load and the interpreter can
// follow, and plans of arbitrary entries.
//
// Start at Cluster, or at Shape to ask for a cluster of certain features.
package plantest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
	"pgregory.net/rapid"
)

// Shape is what the plans of a cluster are made from. Nodes are numbered from
// 1: node i is "node<i>", has the addresses 172.30.0.<i+1> and fd01::<i+1>,
// and the pools 10.1.<i>.0/24 and fd00:<i>::/64. Its endpoint j, from 1, has
// the interface "weft<ii><jj>" in hexadecimal and host j+1 of each pool, whose
// host 1 is the gateway.
type Shape struct {
	// Endpoints holds the number of endpoints on each node.
	Endpoints []int
	// IPv4 and IPv6 are the families of underlay and pools; at least one.
	IPv4, IPv6 bool
	// Tunnel makes nodes reach each other's pools through VXLAN, with IPv4
	// between VTEPs where there is IPv4; else by next hops.
	Tunnel bool
	// PerFamily gives each family a tunnel of its own, of its own underlay, as flannel
	// does, where there are both.
	PerFamily bool
	// Preferring has, where it is not nil, a second tunnel for all, and says of the first
	// nodes whether each prefers that, as while nodes change from one tunnel to the
	// other.
	Preferring []bool
	// Plainly has, where it is not nil and there is a tunnel, all nodes take from each
	// other what comes without it, too, and says of the first nodes whether each sends so.
	Plainly []bool
	// FirstVNI is how much higher the first network identifier of each tunnel is than
	// the tunnel's own, and Room how many there are beside it, for tags.
	FirstVNI, Room uint32
	// Carrying says of the first nodes whether what they send through tunnels carries
	// tags.
	Carrying []bool
	// Believing are pairs of nodes of which the first believes the tags of what the
	// second sends.
	Believing [][2]int
	// NodesThroughTunnel makes endpoints reach other nodes' own addresses
	// through the tunnel, too.
	NodesThroughTunnel bool
	// Drop makes the cluster's unassigned addresses unreachable.
	Drop bool
	// Gateway lets traffic leave the cluster, masqueraded if Masquerade.
	Gateway, Masquerade bool
	// Ghost leaves out the last node's plan.
	Ghost bool
	// Strangers are pairs of nodes of which the first has no routes to the
	// second.
	Strangers [][2]int
	// Banned are pairs of nodes of which the first drops what goes to the
	// second's first endpoint.
	Banned [][2]int
	// Tags, Classes, Within and Verdicts are those of every node; Policed says what they
	// make of endpoints, by interface.
	Tags     map[netip.Prefix]plan.Tag
	Classes  map[netip.Prefix]plan.Class
	Within   map[plan.Class]plan.Class
	Verdicts map[plan.VerdictKey]plan.Verdict
	Policed  map[string]Policing
}

// Complete reports whether every endpoint can reach every other.
func (s Shape) Complete() bool {
	return !s.Ghost && len(s.Strangers) == 0 && len(s.Banned) == 0 && len(s.Policed) == 0
}

// Outside lists addresses that belong to nobody in a cluster, one of each
// family (RFC 5737, RFC 3849).
var Outside = []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")}

var clusterPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/16")}

var everything = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// families lists which of the two families the cluster has: 0 for IPv4, 1 for
// IPv6.
func (s Shape) families() []int {
	switch {
	case s.IPv4 && s.IPv6:
		return []int{0, 1}
	case s.IPv6:
		return []int{1}
	default:
		return []int{0}
	}
}

// NodeName returns the name of node i.
func NodeName(i int) string { return fmt.Sprintf("node%d", i) }

func nodeAddress(family, i int) netip.Addr {
	if family == 0 {
		return netip.AddrFrom4([4]byte{172, 30, 0, byte(i + 1)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x01, 15: byte(i + 1)})
}

func podAddress(family, i, host int) netip.Addr {
	if family == 0 {
		return netip.AddrFrom4([4]byte{10, 1, byte(i), byte(host)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: byte(i), 15: byte(host)})
}

func poolPrefix(family, i int) netip.Prefix {
	p, _ := podAddress(family, i, 0).Prefix([]int{24, 64}[family])
	return p
}

func interfaceName(node, number int) string { return fmt.Sprintf("weft%02x%02x", node, number) }

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// overlay is a tunnel of all nodes.
type overlay struct {
	plan.Tunnel
	vni uint32
	// family is that of VTEPs.
	family int
}

// overlays returns the tunnels of a node in the order of its preference.
func (s Shape) overlays(node int) []overlay {
	first := s.families()[0]
	if s.PerFamily && s.IPv4 && s.IPv6 {
		return []overlay{
			{plan.Tunnel{Name: "flannel", Port: 8472, Only: plan.IPv4}, 1, 0},
			{plan.Tunnel{Name: "flannel6", Port: 8472, Only: plan.IPv6}, 1, 1},
		}
	}
	all := []overlay{{plan.Tunnel{Name: "vxlan", Port: 4789}, 0, first}}
	if s.Preferring != nil {
		all = append(all, overlay{plan.Tunnel{Name: "flannel", Port: 8472}, 1, first})
		if node <= len(s.Preferring) && s.Preferring[node-1] {
			slices.Reverse(all)
		}
	}
	return all
}

// tunnels returns the names of the tunnels that carry a family, in the order of a
// node's preference; none where the nodes have no tunnels.
func (s Shape) tunnels(node, family int) []string {
	var names []string
	for _, o := range s.overlays(node) {
		if s.Tunnel && o.Carries(nodeAddress(family, node)) {
			names = append(names, o.Name)
		}
	}
	return names
}

// macOf returns the MAC address of a node's end of a tunnel.
func (o overlay) macOf(node int) plan.MAC {
	mac := plan.MACOf(nodeAddress(o.family, node))
	mac[1] += byte(o.vni) // an overlay is known by more than its MAC addresses
	return mac
}

// keyOf returns the public key of a node's end of a tunnel. Every other node has one.
func (o overlay) keyOf(node int) plan.PublicKey {
	if node%2 == 0 {
		return plan.PublicKey{0: byte(node), 1: byte(o.vni), 2: byte(o.family), 31: 1}
	}
	return plan.PublicKey{}
}

// Plans returns the plan of each node by its name.
func (s Shape) Plans() map[string]*plan.Plan {
	plans := make(map[string]*plan.Plan, len(s.Endpoints))
	for i := range s.Endpoints {
		if !s.Ghost || i+1 < len(s.Endpoints) {
			plans[NodeName(i+1)] = s.plan(i + 1)
		}
	}
	return plans
}

func (s Shape) plan(self int) *plan.Plan {
	b := plan.NewBuilder(nil)
	b.Local = plan.Local{Node: NodeName(self), MTU: 1400}
	for _, o := range s.overlays(self) {
		if !s.Tunnel {
			break
		}
		o.VTEP, o.MAC = nodeAddress(o.family, self), o.macOf(self)
		o.CarriesTags = self <= len(s.Carrying) && s.Carrying[self-1]
		b.Local.Tunnels = append(b.Local.Tunnels, o.Tunnel)
		b.PutNetwork(plan.NetworkKey{Name: plan.DefaultNetwork, Tunnel: o.Name},
			plan.Network{FirstVNI: o.vni + s.FirstVNI, LastVNI: o.vni + s.FirstVNI + s.Room, Origin: "ClusterNetwork default"})
	}
	for _, f := range s.families() {
		b.Local.Addresses = append(b.Local.Addresses, nodeAddress(f, self))
		pool := plan.Pool{Network: plan.DefaultNetwork, Prefix: poolPrefix(f, self), Gateway: podAddress(f, self, 1)}
		if tunnels := s.tunnels(self, f); len(tunnels) > 0 {
			pool.Tunnel = tunnels[0]
		}
		b.Local.Pools = append(b.Local.Pools, pool)
	}
	if !s.Tunnel || s.NodesThroughTunnel {
		b.Local.ReachedAt = slices.Clone(b.Local.Addresses)
	}
	for j := range s.Endpoints[self-1] {
		s.putEndpoint(b, self, j+1)
	}
	for _, f := range s.families() {
		s.putCluster(b, f)
		for peer := range len(s.Endpoints) {
			if peer++; peer != self {
				s.putPeer(b, f, self, peer)
			}
		}
	}
	s.putPolicies(b)
	return b.Build()
}

func (s Shape) putEndpoint(b *plan.Builder, node, number int) {
	k := plan.EndpointKey{Interface: interfaceName(node, number)}
	policing := s.Policed[k.Interface]
	e := plan.Endpoint{Name: fmt.Sprintf("default/pod%d-%d", node, number), Network: plan.DefaultNetwork,
		Tag: policing.Tag, IngressPolicy: policing.Ingress, EgressPolicy: policing.Egress}
	e.Origin = "Pod " + e.Name
	for _, f := range s.families() {
		a := podAddress(f, node, number+1)
		e.Addresses = append(e.Addresses, a)
		b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: hostPrefix(a)},
			plan.Route{Way: plan.ToEndpoint, Interface: k.Interface, Origin: e.Origin})
	}
	e.MAC = plan.MACOf(e.Addresses[0])
	b.PutEndpoint(k, e)
}

// putCluster states what holds for the cluster as a whole.
func (s Shape) putCluster(b *plan.Builder, f int) {
	const origin = "ClusterNetwork default"
	if s.Drop {
		b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: clusterPrefixes[f]},
			plan.Route{Way: plan.ToDrop, Origin: origin})
	}
	if s.Gateway {
		b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: everything[f]},
			plan.Route{Way: plan.ToGateway, Origin: origin})
	}
	if s.Masquerade {
		b.PutEgress(plan.EgressKey{Network: plan.DefaultNetwork, Destination: everything[f]},
			plan.Egress{Action: plan.Masquerade, Origin: origin})
		b.PutEgress(plan.EgressKey{Network: plan.DefaultNetwork, Destination: clusterPrefixes[f]},
			plan.Egress{Action: plan.Direct, Origin: origin})
	}
}

// putPeer states how one node reaches another and what that one has.
func (s Shape) putPeer(b *plan.Builder, f, self, peer int) {
	origin := "HostSubnet " + NodeName(peer)
	own := hostPrefix(nodeAddress(f, peer))
	if s.Masquerade {
		b.PutEgress(plan.EgressKey{Network: plan.DefaultNetwork, Destination: own},
			plan.Egress{Action: plan.Direct, Origin: origin})
	}
	for _, pair := range s.Banned {
		if pair == [2]int{self, peer} {
			b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: hostPrefix(podAddress(f, peer, 2))},
				plan.Route{Way: plan.ToDrop, Origin: "ban"})
		}
	}
	for _, pair := range s.Strangers {
		if pair == [2]int{self, peer} {
			return
		}
	}
	way := plan.Route{Way: plan.ToNextHop, Peers: []string{NodeName(peer)}, Origin: origin}
	known := plan.Peer{Origin: origin, CarriesTags: slices.Contains(s.Believing, [2]int{self, peer})}
	for _, f := range s.families() {
		known.Addresses = append(known.Addresses, nodeAddress(f, peer))
		if s.Tunnel && s.Plainly != nil {
			known.Plain = append(known.Plain, plan.FamilyOf(nodeAddress(f, peer)))
		}
	}
	if s.Tunnel {
		way.Way = plan.ToTunnel
		for _, o := range s.overlays(peer) {
			known.Ends = append(known.Ends, plan.TunnelEnd{Tunnel: o.Name, VTEP: nodeAddress(o.family, peer), MAC: o.macOf(peer), Key: o.keyOf(peer)})
		}
	}
	b.PutPeer(plan.PeerKey{Name: NodeName(peer)}, known)
	if s.Tunnel && self <= len(s.Plainly) && s.Plainly[self-1] {
		way.Way = plan.ToNextHop
	}
	b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: poolPrefix(f, peer)}, way)
	if s.Tunnel && s.NodesThroughTunnel {
		way.Way, way.EndpointsOnly = plan.ToTunnel, true
		b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: own}, way)
	}
}

// Shapes generates the shapes of small clusters, of up to four nodes with up
// to three endpoints each. Half of them have policies.
func Shapes() *rapid.Generator[Shape] { return rapid.OneOf(unpoliced(), Policed(unpoliced())) }

func unpoliced() *rapid.Generator[Shape] {
	return rapid.Custom(func(t *rapid.T) Shape {
		flip := rapid.Bool()
		s := Shape{
			Endpoints:          rapid.SliceOfN(rapid.IntRange(0, 3), 1, 4).Draw(t, "endpoints"),
			IPv4:               flip.Draw(t, "IPv4"),
			Tunnel:             flip.Draw(t, "tunnel"),
			NodesThroughTunnel: flip.Draw(t, "nodes through tunnel"),
			Drop:               flip.Draw(t, "drop"),
			Gateway:            flip.Draw(t, "gateway"),
			Masquerade:         flip.Draw(t, "masquerade"),
		}
		s.IPv6 = !s.IPv4 || flip.Draw(t, "IPv6")
		nodes := len(s.Endpoints)
		switch rapid.IntRange(0, 5).Draw(t, "tunnels") {
		case 4:
			s.PerFamily = true
		case 3:
			s.Plainly = rapid.SliceOfN(flip, nodes, nodes).Draw(t, "plainly")
		case 5:
			s.Preferring = rapid.SliceOfN(flip, nodes, nodes).Draw(t, "preferring")
		}
		if nodes == 1 {
			return s
		}
		// One in four each: a cluster is whole more often than not.
		rarely := rapid.IntRange(0, 3)
		pair := rapid.Custom(func(t *rapid.T) [2]int {
			a := rapid.IntRange(1, nodes).Draw(t, "a")
			b := rapid.IntRange(1, nodes-1).Draw(t, "b")
			if b >= a {
				b++
			}
			return [2]int{a, b}
		})
		s.Ghost = rarely.Draw(t, "ghost") == 3
		if rarely.Draw(t, "has strangers") == 3 {
			s.Strangers = rapid.SliceOfN(pair, 1, 2).Draw(t, "strangers")
		}
		if rarely.Draw(t, "has banned") == 3 {
			s.Banned = rapid.SliceOfN(pair, 1, 2).Draw(t, "banned")
		}
		if s.Tunnel && flip.Draw(t, "tags in tunnels") {
			s = s.carrying(t)
		}
		return s
	})
}

// carrying returns the shape with tags in its tunnels: some nodes send them, and some
// believe some.
func (s Shape) carrying(t *rapid.T) Shape {
	nodes := len(s.Endpoints)
	s.FirstVNI = rapid.SampledFrom([]uint32{0, 7, 1 << 20}).Draw(t, "first VNI")
	s.Room = rapid.SampledFrom(rooms).Draw(t, "room")
	s.Carrying = rapid.SliceOfN(rapid.SampledFrom([]bool{true, true, false}), nodes, nodes).Draw(t, "carrying")
	s.Believing = nil
	for believer := range nodes {
		for peer := range nodes {
			if believer != peer && rapid.IntRange(0, 3).Draw(t, "believes") > 0 {
				s.Believing = append(s.Believing, [2]int{believer + 1, peer + 1})
			}
		}
	}
	return s
}

// Tagged generates shapes of two or three nodes with policies and tags in tunnels.
func Tagged() *rapid.Generator[Shape] {
	return Policed(rapid.Custom(func(t *rapid.T) Shape {
		s := unpoliced().Draw(t, "shape")
		s.Tunnel, s.Ghost, s.Strangers, s.Banned = true, false, nil, nil
		s.Endpoints = rapid.SliceOfN(rapid.IntRange(1, 3), 2, 3).Draw(t, "tagged endpoints")
		// What no route of a plan covers is not what these are about.
		s.Drop = s.Drop || s.Plainly != nil
		return s.carrying(t)
	}))
}

// Recarried generates shapes that differ from one in which identifiers there are for
// tags, and in who sends tags and who believes them.
func (s Shape) Recarried() *rapid.Generator[Shape] {
	return rapid.Custom(func(t *rapid.T) Shape { return s.carrying(t) })
}

// Cluster generates the plans of small clusters, by the nodes' names. They are
// valid, and fit together but for what a Shape's Strangers leave out.
func Cluster() *rapid.Generator[map[string]*plan.Plan] {
	return rapid.Map(Shapes(), Shape.Plans)
}

// Flows generates flows for the plans of a cluster: from an endpoint or node
// to an endpoint, node, gateway, an address that nobody has, or the outside.
func Flows(plans map[string]*plan.Plan) *rapid.Generator[plan.Flow] {
	var sources, destinations []netip.Addr
	for i := range len(plans) {
		p := plans[NodeName(i+1)]
		for _, e := range p.Endpoints.All() {
			sources = append(sources, e.Addresses...)
			// What endpoints get is what says most.
			destinations = append(append(destinations, e.Addresses...), e.Addresses...)
		}
		sources = append(sources, p.Local.Addresses...)
		destinations = append(destinations, p.Local.PoolAddresses()...)
		for _, pool := range p.Local.Pools {
			destinations = append(destinations, nobody(pool.Prefix))
		}
		for k := range p.Routes.All() {
			if k.Prefix.Bits() > 16 && !k.Prefix.IsSingleIP() {
				destinations = append(destinations, nobody(k.Prefix))
			}
		}
	}
	destinations = append(append(destinations, sources...), Outside...)
	destinations = append(destinations, podAddress(0, 200, 9), podAddress(1, 200, 9))
	return rapid.Custom(func(t *rapid.T) plan.Flow {
		f := plan.Flow{Source: rapid.SampledFrom(sources).Draw(t, "source")}
		f.Destination = rapid.SampledFrom(destinations).Filter(func(a netip.Addr) bool {
			return a.Is4() == f.Source.Is4()
		}).Draw(t, "destination")
		f.Protocol = rapid.SampledFrom([]plan.Protocol{plan.TCP, plan.UDP}).Draw(t, "protocol")
		f.Port = rapid.SampledFrom(ports).Draw(t, "port")
		if served := slices.DeleteFunc(slices.Collect(frontends(plans)), func(k plan.ServiceKey) bool { return k.Address.Is4() != f.Source.Is4() }); len(served) > 0 && rapid.Bool().Draw(t, "to a service") {
			k := rapid.SampledFrom(served).Draw(t, "frontend")
			if f.Destination = k.Address; k.Port != 0 {
				f.Protocol, f.Port = k.Protocol, k.Port
			}
		}
		return f
	})
}

// nobody returns an address that no endpoint has: host 99 of a pool.
func nobody(pool netip.Prefix) netip.Addr {
	a := pool.Addr().AsSlice()
	a[len(a)-1] = 99
	addr, _ := netip.AddrFromSlice(a)
	return addr
}
