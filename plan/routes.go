package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// RouteKey is a destination in a network. Prefix is masked.
type RouteKey struct {
	Network string
	Prefix  netip.Prefix
}

// Compare orders by network, then family, then address, then length.
func (k RouteKey) Compare(o RouteKey) int {
	if c := strings.Compare(k.Network, o.Network); c != 0 {
		return c
	}
	return comparePrefix(k.Prefix, o.Prefix)
}

// comparePrefix orders by family, then address, then length, so that a prefix
// comes before all that it contains.
func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return cmp.Compare(a.Bits(), b.Bits())
}

// Way is how packets get to a route's prefix.
type Way string

// The ways.
const (
	// ToEndpoint: the local endpoint behind Route.Interface.
	ToEndpoint Way = "endpoint"
	// ToTunnel: through the tunnel to one of Route.Peers.
	ToTunnel Way = "tunnel"
	// ToNextHop: by plain routing to one of Route.Peers, which is on a link of
	// the node.
	ToNextHop Way = "nexthop"
	// ToHost: the node itself.
	ToHost Way = "host"
	// ToGateway: out of the cluster, as the node's own routing table says.
	ToGateway Way = "gateway"
	// ToDrop: nowhere; the sender gets an ICMP unreachable.
	ToDrop Way = "drop"
)

// Route says how to get to a prefix. The longest prefix wins (RFC 4632, section 5.1).
type Route struct {
	Way Way
	// Interface is the key of the local endpoint of ToEndpoint.
	Interface string
	// Peers are the names of those to whom ToTunnel and ToNextHop hand packets.
	// Of several, each connection goes to one (RFC 2992).
	Peers []string
	// EndpointsOnly makes the route hold for what endpoints send and not for
	// what the node itself sends: the way to another node's own address is
	// the tunnel for a pod, and the underlay for the node, whose tunnel
	// packets would otherwise go into the tunnel.
	EndpointsOnly bool
	// Origin says where the entry comes from, as "Kind name", for people.
	Origin string
}

// Equal reports whether both are the same in every field.
func (r Route) Equal(o Route) bool {
	return r.Way == o.Way && r.Interface == o.Interface && r.EndpointsOnly == o.EndpointsOnly && r.Origin == o.Origin &&
		slices.Equal(r.Peers, o.Peers)
}

// Peer is the peer that the route leads to, the first of several; empty for
// routes that lead to none.
func (r Route) Peer() string {
	if len(r.Peers) == 0 {
		return ""
	}
	return r.Peers[0]
}
