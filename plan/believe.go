package plan

import (
	"fmt"
	"net/netip"
	"slices"
)

// A node believes of an address only what it would answer: it takes packets
// from an address from the machine to which it would send packets there, and from no
// other. As a rule there is one way there and back; while nodes change from one to
// another, each may prefer another of those that both have. Data planes hold to these
// functions, and Explain does.

// TakesFromPeer reports whether what comes through a tunnel from a VTEP may
// come from src: the longest route to src, as endpoints have it, must lead to a peer
// whose VTEP in that tunnel it is, be it by another tunnel or as a next hop. A peer's
// VTEP is its own in any case.
func (p *Plan) TakesFromPeer(tunnel, network string, vtep, src netip.Addr) bool {
	if t, ok := p.Local.Tunnel(tunnel); !ok || !t.Carries(src) || p.isLocal(network, src) {
		return false
	}
	if src == vtep {
		_, known := p.peerAt(tunnel, vtep)
		return known
	}
	_, r, ok := p.Route(network, src, true)
	return ok && slices.ContainsFunc(r.Peers, func(peer string) bool {
		end, ok := p.Peer(peer).End(tunnel)
		return ok && end.VTEP == vtep
	})
}

// TakesPlainly reports whether what comes neither from an endpoint nor through
// a tunnel may come from src: from what is the node's own or an endpoint's it
// may not, nor from where nothing leads, or a tunnel to who sends through tunnels alone.
// From behind a next hop, or who may send plainly, it may, on that one's link; which link
// a packet comes from a plan does not say.
func (p *Plan) TakesPlainly(network string, src netip.Addr) bool {
	if p.isLocal(network, src) {
		return false
	}
	k, r, ok := p.Route(network, src, false)
	return !ok || k.Prefix.Bits() == 0 || r.Way == ToGateway || r.Way == ToNextHop ||
		r.Way == ToTunnel && slices.ContainsFunc(r.Peers, func(peer string) bool { return p.Peer(peer).MaySendPlainly(src) })
}

// LeadsToPeer reports whether a route leads to a peer for an address. What comes
// from there plainly is forwarded only to where a route leads, too: the plan knows
// who sends, and no way for it.
func (p *Plan) LeadsToPeer(network string, a netip.Addr) bool {
	_, r, ok := p.Route(network, a, false)
	return ok && len(r.Peers) > 0
}

// isLocal reports whether an address is on this node, whatever routes say: also one at which
// the node answers. The route of all
// that has no other says of no address where it is.
func (p *Plan) isLocal(network string, a netip.Addr) bool {
	if p.Owns(network, a) || p.AnswersAt(network, a) {
		return true
	}
	pool, inPool := p.PoolOf(network, a)
	k, r, ok := p.Route(network, a, true)
	return inPool && (!ok || k.Prefix.Bits() <= pool.Prefix.Bits()) || ok && r.Way == ToEndpoint && k.Prefix.Bits() > 0
}

// plainly is the stage of a node that gets the packet from outside, or from
// another node, without a tunnel.
func (x *explainer) plainly(p *Plan) stage {
	if !p.TakesPlainly(x.network, x.src) {
		x.note(p, "routes", "%s is not answered where the packet comes from: dropped", x.src)
		return x.deny("%s takes nothing from %s that comes this way", p.Local.Node, x.src)
	}
	return x.at(p, fromOutside, EndpointKey{}, Endpoint{})
}

// throughTunnel is the stage of a node that gets the packet from a peer's VTEP.
func (x *explainer) throughTunnel(p *Plan, tunnel string, vtep netip.Addr, as sender) stage {
	if !p.TakesFromPeer(tunnel, x.network, vtep, x.src) {
		x.note(p, "routes", "%s is not behind VTEP %s: dropped", x.src, vtep)
		return x.deny("%s takes nothing from %s that comes through the tunnel from %s", p.Local.Node, x.src, vtep)
	}
	return x.at(p, as, EndpointKey{}, Endpoint{})
}

// intoTunnel says why what an endpoint sends might be taken for a tunnel
// packet, or "".
func (x *explainer) intoTunnel(p *Plan) string {
	if x.protocol != UDP || !slices.ContainsFunc(p.Local.Tunnels, func(t Tunnel) bool { return t.Port == x.port }) {
		return ""
	}
	return fmt.Sprintf("no endpoint may send to UDP port %d, which is the tunnel's", x.port)
}
