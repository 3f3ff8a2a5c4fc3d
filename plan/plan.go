// Package plan holds the five tables that say what one node does with packets,
// and two that say what words in them mean, Networks and Peers: Endpoints, Routes (with Tags, who an address is, beside the ways there),
// Verdicts (with Classes, what policies take an address for, and Within, what wider
// class a class is within), Services (with Backends, the sets that they choose from, and
// Sources, who may use them) and Egress.
//
// Every plug-in compiles what its users asked for into a Plan, every data
// plane loads one, and the interpreter in this package explains one. The
// package knows neither of them: a Plan is an immutable value, made with a
// Builder, compared with Plan.Diff, checked with Plan.Validate, written and
// read as text with Plan.String and Parse, and asked with Explain. A line of
// the text form is an entry, what follows its # where the entry comes from:
//
//	node node1 addresses 172.30.0.2 mtu 1450
//	pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
//	tunnel vxlan port 4789 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
//	network default in vxlan vni 0 # ClusterNetwork default
//	peer node2 addresses 172.30.0.3 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03 # HostSubnet node2
//	endpoint weft1 network default addresses 10.1.1.2 name default/web # Pod default/web
//	route default 10.1.1.2/32 endpoint weft1 # Pod default/web
//	route default 10.1.2.0/24 tunnel node2 # HostSubnet node2
//	route default 10.1.0.0/16 drop # ClusterNetwork default
//	tag default 10.1.2.7/32 5 # NodePods node2
//	class default 10.1.2.7/32 c3 # NodePods node2
//	within c3 c9
//	verdict p ingress from 5 tcp 80 allow # NetworkPolicy default/p ingress[0]
//	service default 10.3.0.1 tcp 443 to default/web:https masquerade strangers # Service default/web
//	backend default default/web:https 10.1.1.2:8443@node1 # EndpointSlice default/web-x7k2p
//	egress default any 0.0.0.0/0 masquerade # ClusterNetwork default
//
// Start reading at Plan; each table's key and value types are in a file of
// the table's name.
package plan

import (
	"net/netip"
	"slices"
)

// DefaultNetwork is the name of the network that node and pods share in a
// plug-in that has no notion of several networks. The node itself takes part
// in this network only.
const DefaultNetwork = "default"

// Plan is what one node must do with packets. It never changes once built:
// two plans that were built from one another share what is equal in them, so
// that Diff costs in proportion to what differs.
type Plan struct {
	// Local describes the node itself.
	Local     Local
	Networks  Table[NetworkKey, Network]
	Peers     Table[PeerKey, Peer]
	Endpoints Table[EndpointKey, Endpoint]
	Routes    Table[RouteKey, Route]
	Tags      Table[TagKey, Tagging]
	Classes   Table[ClassKey, Membership]
	Within    Table[WithinKey, Within]
	Verdicts  Table[VerdictKey, Verdict]
	Services  Table[ServiceKey, Service]
	Backends  Table[BackendKey, Backend]
	Sources   Table[SourceKey, Source]
	Egress    Table[EgressKey, Egress]
}

// Local describes the node that a plan is for.
type Local struct {
	// Node is the node's name.
	Node string
	// Addresses are the node's own addresses in the underlay, the primary
	// one first.
	Addresses []netip.Addr
	// ReachedAt are those of Addresses, at most one of each family, that other nodes'
	// endpoints send to by the way on which they send to the node's endpoints. So what
	// the node itself sends to these from there is answered.
	ReachedAt []netip.Addr
	// MTU is what the interfaces of pods get, in bytes; 0 where not known.
	MTU int
	// ServicesLeft says that others do Services on the node, so that a connection goes on which
	// the node gave its backend while it did them, though that frontend is gone.
	ServicesLeft bool
	// Pools are the prefixes from which this node gives addresses to pods.
	Pools []Pool
	// Tunnels are the node's own ends of tunnels to other nodes. Of those that it has
	// in common with a peer, packets take the first that carries their family.
	Tunnels []Tunnel
}

// Pool is a prefix from which a node gives addresses to the pods of a network.
type Pool struct {
	Network string
	Prefix  netip.Prefix
	// Gateway is the node's own address in the prefix. Pods use it as their
	// next hop, and the node uses it as its source towards pods where a
	// tunnel is in between.
	Gateway netip.Addr
	// Tunnel is the name of the tunnel at whose end the node has an address of the
	// pool, see TunnelAddress; empty for none.
	Tunnel string
	// Closed says that no pod gets an address of it any more. Those that have one keep
	// it.
	Closed bool
}

// GatewayOf returns the address that plug-ins make the gateway of a pool with
// a prefix: the second. In a prefix of one address it is none of the prefix.
func GatewayOf(prefix netip.Prefix) netip.Addr { return prefix.Masked().Addr().Next() }

// NodeAddressesIn returns the addresses in a prefix that are, as plug-ins make
// pools, those of the node whose pods get the others: that of its end of the
// tunnel (see Pool.TunnelAddress), and the gateway. So it says also of another
// node's prefix, of which routes tell no more than the prefix, who is no pod. A
// node without tunnels does not use the first of them, and no pod has it either.
func NodeAddressesIn(prefix netip.Prefix) []netip.Addr {
	own := []netip.Addr{tunnelAddressIn(prefix), GatewayOf(prefix)}
	return slices.DeleteFunc(own, func(a netip.Addr) bool { return !prefix.Contains(a) })
}

// tunnelAddressIn returns the first address of a prefix, the zero Addr where
// the prefix has fewer than four.
func tunnelAddressIn(prefix netip.Prefix) netip.Addr {
	first := prefix.Masked().Addr()
	if first.BitLen()-prefix.Bits() < 2 {
		return netip.Addr{}
	}
	return first
}

// TunnelAddress is the node's own address on its end of the tunnel. Where
// others masquerade what goes into the tunnel, the kernel takes this one, and
// peers know that it is behind this node. It is the first address of the pool,
// which no pod gets: the network's own (RFC 1122, section 3.2.1.3), or that of
// any router in the subnet (RFC 4291, section 2.6.1). The zero Addr stands for
// none: where the pool names no tunnel, or the gateway has that address, or the
// pool has fewer than four.
func (p Pool) TunnelAddress() netip.Addr {
	first := tunnelAddressIn(p.Prefix)
	if p.Tunnel == "" || first == p.Gateway {
		return netip.Addr{}
	}
	return first
}

// PoolAddresses returns the node's own addresses in its pools: gateways, and
// those on its end of the tunnel.
func (l Local) PoolAddresses() []netip.Addr {
	var all []netip.Addr
	for _, p := range l.Pools {
		for _, a := range []netip.Addr{p.Gateway, p.TunnelAddress()} {
			if a.IsValid() {
				all = append(all, a)
			}
		}
	}
	return all
}

// Tunnel is the local end of a VXLAN overlay (RFC 7348).
type Tunnel struct {
	// Name tells it from the node's others, and is what all nodes call the overlay: 1
	// to MaxTunnelName of the characters a to z, 0 to 9 and -.
	Name string
	// VTEP is the underlay address that packets to other nodes carry as
	// their outer source.
	VTEP netip.Addr
	// MAC is the address by which peers reach this VTEP in the overlay.
	MAC MAC
	// Port is the UDP port, the same on all nodes.
	Port uint16
	// CarriesTags says that what the node sends through it carries the tags of
	// endpoints; see Network. Else it carries tag 0.
	CarriesTags bool
	// Only is the family of all that it carries; BothFamilies where it carries
	// either.
	Only Family
}

// MaxTunnelName is the length of the longest name of a tunnel: data planes name a
// device after it.
const MaxTunnelName = 10

// Carries reports whether packets from and to addresses of a's family may be in the
// tunnel.
func (t Tunnel) Carries(a netip.Addr) bool {
	return t.Only == BothFamilies || (t.Only == IPv4) == a.Is4()
}

// Family is an IP version, or both.
type Family string

// The families.
const (
	BothFamilies Family = ""
	IPv4         Family = "ipv4"
	IPv6         Family = "ipv6"
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Tunnel returns the node's end of the tunnel of a name.
func (l Local) Tunnel(name string) (Tunnel, bool) {
	i := slices.IndexFunc(l.Tunnels, func(t Tunnel) bool { return t.Name == name })
	if i < 0 {
		return Tunnel{}, false
	}
	return l.Tunnels[i], true
}

// Equal reports whether both describe the same node in the same way.
func (l Local) Equal(o Local) bool {
	return l.Node == o.Node && l.MTU == o.MTU && l.ServicesLeft == o.ServicesLeft && slices.Equal(l.Tunnels, o.Tunnels) &&
		slices.Equal(l.Addresses, o.Addresses) && slices.Equal(l.ReachedAt, o.ReachedAt) && slices.Equal(l.Pools, o.Pools)
}

// Equal reports whether both plans hold the same entries.
func (p *Plan) Equal(o *Plan) bool {
	d := p.Diff(o)
	return d.Empty()
}

// Diff is what must be done to get from one plan to another.
type Diff struct {
	// Local is set when the node's own description changed; then From and To
	// hold it whole.
	Local    bool
	From, To Local

	Networks  []Change[NetworkKey, Network]
	Peers     []Change[PeerKey, Peer]
	Endpoints []Change[EndpointKey, Endpoint]
	Routes    []Change[RouteKey, Route]
	Tags      []Change[TagKey, Tagging]
	Classes   []Change[ClassKey, Membership]
	Within    []Change[WithinKey, Within]
	Verdicts  []Change[VerdictKey, Verdict]
	Services  []Change[ServiceKey, Service]
	Backends  []Change[BackendKey, Backend]
	Sources   []Change[SourceKey, Source]
	Egress    []Change[EgressKey, Egress]
}

// Empty reports whether there is nothing to do.
func (d Diff) Empty() bool { return !d.Local && d.Len() == 0 }

// Len is the number of changed entries.
func (d Diff) Len() int {
	return len(d.Networks) + len(d.Peers) + len(d.Endpoints) + len(d.Routes) + len(d.Tags) + len(d.Classes) + len(d.Within) + len(d.Verdicts) +
		len(d.Services) + len(d.Backends) + len(d.Sources) + len(d.Egress)
}

// Diff returns what leads from p to next, each table's changes in key order.
// It costs in proportion to the number of changes (times the logarithm of the
// tables' sizes) where next was built from p. A nil plan is an empty one.
func (p *Plan) Diff(next *Plan) Diff {
	if p == nil {
		p = &Plan{}
	}
	if next == nil {
		next = &Plan{}
	}
	d := Diff{
		Local:     !p.Local.Equal(next.Local),
		Networks:  p.Networks.Diff(next.Networks),
		Peers:     p.Peers.Diff(next.Peers),
		Endpoints: p.Endpoints.Diff(next.Endpoints),
		Routes:    p.Routes.Diff(next.Routes),
		Tags:      p.Tags.Diff(next.Tags),
		Classes:   p.Classes.Diff(next.Classes),
		Within:    p.Within.Diff(next.Within),
		Verdicts:  p.Verdicts.Diff(next.Verdicts),
		Services:  p.Services.Diff(next.Services),
		Backends:  p.Backends.Diff(next.Backends),
		Sources:   p.Sources.Diff(next.Sources),
		Egress:    p.Egress.Diff(next.Egress),
	}
	if d.Local {
		d.From, d.To = p.Local, next.Local
	}
	return d
}
