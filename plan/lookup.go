package plan

import (
	"math/bits"
	"net/netip"
	"slices"
)

// Route returns the longest of a network's prefixes that contains a. It leaves
// out routes that hold for endpoints only unless fromEndpoint is set.
func (p *Plan) Route(network string, a netip.Addr, fromEndpoint bool) (RouteKey, Route, bool) {
	return p.RouteAround(network, netip.PrefixFrom(a, a.BitLen()), fromEndpoint)
}

// RouteAround is Route for all addresses of a prefix that no longer one has: it returns
// the longest that contains the whole.
func (p *Plan) RouteAround(network string, all netip.Prefix, fromEndpoint bool) (RouteKey, Route, bool) {
	return around(p.Routes, all,
		func(prefix netip.Prefix) RouteKey { return RouteKey{network, prefix} },
		func(k RouteKey) (netip.Prefix, bool) { return k.Prefix, k.Network == network },
		func(r Route) bool { return fromEndpoint || !r.EndpointsOnly })
}

// EgressOf returns the egress rule for what the endpoint of that interface
// and tag, in that network, sends to a. An empty interface stands for an
// endpoint of another node.
func (p *Plan) EgressOf(network, iface string, tag Tag, a netip.Addr) (EgressKey, Egress, bool) {
	sources := []EgressKey{{Network: network, Tagged: true, Tag: tag}, {Network: network}}
	if iface != "" {
		sources = slices.Insert(sources, 0, EgressKey{Network: network, Interface: iface})
	}
	for _, source := range sources {
		source.Destination = netip.PrefixFrom(a, a.BitLen())
		if k, e, ok := p.EgressAround(source); ok {
			return k, e, true
		}
	}
	return EgressKey{}, Egress{}, false
}

// EgressAround returns, of the rules for the sources that a key selects, the one for the
// longest destination prefix that contains all of the key's.
func (p *Plan) EgressAround(of EgressKey) (EgressKey, Egress, bool) {
	sources := of.Sources()
	return around(p.Egress, of.Destination,
		func(prefix netip.Prefix) EgressKey { k := sources; k.Destination = prefix; return k },
		func(k EgressKey) (netip.Prefix, bool) { return k.Destination, k.Sources() == sources },
		func(Egress) bool { return true })
}

// Verdict returns the entry that decides about a connection under a policy;
// none means that it is denied. peer is the class of the other side.
func (p *Plan) Verdict(policy string, d Direction, peer Class, protocol Protocol, port uint16) (VerdictKey, Verdict, bool) {
	if w, ok := p.Within.Get(WithinKey{peer}); ok && !p.speaksOf(policy, d, peer) {
		peer = w.Class
	}
	for likes := 0; likes <= MaxLikes; {
		// Ranges are disjoint, so that the last which begins at or before the
		// port is the only one that can hold it.
		k := VerdictKey{Policy: policy, Direction: d, Peer: peer, Protocol: protocol, Ports: PortRange{port, AllPorts.Last}}
		if found, v, ok := p.Verdicts.Floor(k); ok && found.Ports.Contains(port) {
			k.Ports = found.Ports
			if k == found && v.Like == 0 {
				return found, v, true
			}
		}
		k.Protocol, k.Ports = AnyProtocol, AllPorts
		switch v, ok := p.Verdicts.Get(k); {
		case ok && v.Like != 0:
			peer = v.Like
			likes++
		case ok:
			return k, v, true
		case peer == AnyPeer:
			return VerdictKey{}, Verdict{}, false
		default:
			peer = AnyPeer
		}
	}
	return VerdictKey{}, Verdict{}, false
}

// around returns the entry with the longest prefix that contains all of another, in a
// table whose keys order by prefix once all else in them is equal. It costs
// O(log n) for each prefix nested around that, rather than for each length.
func around[K TableKey[K], V TableValue[V]](t Table[K, V], within netip.Prefix,
	key func(netip.Prefix) K, prefix func(K) (netip.Prefix, bool), holds func(V) bool) (K, V, bool) {

	var noKey K
	var noValue V
	a := within.Addr()
	for length := within.Bits(); length >= 0; {
		want, err := a.Prefix(length)
		if err != nil {
			break // an address with a zone is in no prefix
		}
		k, v, ok := t.Floor(key(want))
		if !ok {
			break
		}
		p, same := prefix(k)
		if !same || !sameFamily(p.Addr(), a) {
			break
		}
		if p.Contains(a) {
			if holds(v) {
				return k, v, true
			}
			length = p.Bits() - 1
			continue
		}
		// Every prefix around a lies before p and so around p's first
		// address as well: it is no longer than what the two have in common.
		length = min(length-1, commonBits(p.Addr(), a))
	}
	return noKey, noValue, false
}

func commonBits(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if d := x[i] ^ y[i]; d != 0 {
			return i*8 + bits.LeadingZeros8(d)
		}
	}
	return len(x) * 8
}

// Owns reports whether a is an address of the node itself in a network.
func (p *Plan) Owns(network string, a netip.Addr) bool { return p.Local.Owns(network, a) }

// Owns reports whether a is an address of the node itself in a network.
func (l Local) Owns(network string, a netip.Addr) bool {
	if network == DefaultNetwork && slices.Contains(l.Addresses, a) {
		return true
	}
	return slices.ContainsFunc(l.Pools, func(pool Pool) bool {
		return pool.Network == network && (pool.Gateway == a || pool.TunnelAddress() == a)
	})
}

// PoolOf returns the pool of a network that contains a, if there is one.
func (p *Plan) PoolOf(network string, a netip.Addr) (Pool, bool) {
	for _, pool := range p.Local.Pools {
		if pool.Network == network && pool.Prefix.Contains(a) {
			return pool, true
		}
	}
	return Pool{}, false
}

// has reports whether a is the node's own, in one of its pools, or an
// endpoint's.
func (p *Plan) has(network string, a netip.Addr) bool {
	if _, ok := p.PoolOf(network, a); ok || p.Owns(network, a) {
		return true
	}
	_, _, ok := p.endpointOf(network, a)
	return ok
}

// endpointOf returns the endpoint that has an address.
func (p *Plan) endpointOf(network string, a netip.Addr) (EndpointKey, Endpoint, bool) {
	// The route to it says which; an endpoint may be without one.
	if _, r, ok := p.Route(network, a, true); ok && r.Way == ToEndpoint {
		k := EndpointKey{r.Interface}
		if e, ok := p.Endpoints.Get(k); ok && e.Network == network && slices.Contains(e.Addresses, a) {
			return k, e, true
		}
	}
	for k, e := range p.Endpoints.All() {
		if e.Network == network && slices.Contains(e.Addresses, a) {
			return k, e, true
		}
	}
	return EndpointKey{}, Endpoint{}, false
}

// underlayAddress returns the node's first address of a's family.
func (p *Plan) underlayAddress(a netip.Addr) netip.Addr {
	for _, own := range p.Local.Addresses {
		if sameFamily(own, a) {
			return own
		}
	}
	return netip.Addr{}
}

// gatewayAddress returns the gateway of the pool that contains a or, else, of
// the network's first pool of a's family.
func (p *Plan) gatewayAddress(network string, a netip.Addr) netip.Addr {
	if pool, ok := p.PoolOf(network, a); ok {
		return pool.Gateway
	}
	for _, pool := range p.Local.Pools {
		if pool.Network == network && sameFamily(pool.Gateway, a) {
			return pool.Gateway
		}
	}
	return netip.Addr{}
}

// peerAt returns the peer whose end of a tunnel has a VTEP.
func (p *Plan) peerAt(tunnel string, vtep netip.Addr) (Peer, bool) {
	for _, peer := range p.Peers.All() {
		if end, ok := peer.End(tunnel); ok && end.VTEP == vtep {
			return peer, true
		}
	}
	return Peer{}, false
}
