package plan

import (
	"net/netip"
	"slices"
	"strings"
)

// PeerKey names a peer: what is known to be a node by the name of its Node, all else
// by its address or another name that no node has.
type PeerKey struct {
	Name string
}

// Compare orders by name.
func (k PeerKey) Compare(o PeerKey) int { return strings.Compare(k.Name, o.Name) }

// Peer is another machine to which packets are handed on their way, and which
// hands over others: another node, a router, a foreign end of the tunnel.
type Peer struct {
	// Addresses are those in the underlay that lead to it, and need not be all. As a
	// next hop it is known by the first of the packet's family.
	Addresses []netip.Addr
	// Ends are its ends of tunnels, at most one of each.
	Ends []TunnelEnd
	// CarriesTags says that what it sends through the tunnel carries tags that are
	// to be believed, as of its own endpoints. Of another's packets none is: who sends
	// them wears what the Tags or Classes table says, and tag 0 where they say nothing. A
	// plug-in for which tag 0 may do something must not leave it at that. It gives the
	// prefixes of a peer whose tags it does not believe a tag that no verdict allows.
	CarriesTags bool
	// Plain are the families, IPv4 before IPv6, of which the peer may send packets of its
	// own endpoints without a tunnel as well, where a route leads to it through one: it
	// may know this node as a next hop. What a route leads to as a next hop may send them
	// in any case.
	Plain []Family
	// Origin says where the entry comes from, as "Kind name", for people.
	Origin string
}

// TunnelEnd is another machine's end of a tunnel, a VXLAN overlay (RFC 7348).
type TunnelEnd struct {
	// Tunnel is the name of the tunnel.
	Tunnel string
	// VTEP is the underlay address that tunnel packets to it are sent to, and
	// those from it come from.
	VTEP netip.Addr
	// MAC is the address of this VTEP in the overlay.
	MAC MAC
	// Key is the public key by which a tunnel that encrypts knows this end; the zero
	// value where there is none. It belongs to the end and not to the machine, which may
	// have another key in another tunnel. No plug-in gives one yet, and no data plane
	// looks at it.
	Key PublicKey
}

// Equal reports whether both are the same in every field.
func (p Peer) Equal(o Peer) bool {
	return p.CarriesTags == o.CarriesTags && p.Origin == o.Origin && slices.Equal(p.Addresses, o.Addresses) &&
		slices.Equal(p.Ends, o.Ends) && slices.Equal(p.Plain, o.Plain)
}

// NextHop returns the address by which packets of a's family are handed to the
// peer, the zero Addr where it has none.
func (p Peer) NextHop(a netip.Addr) netip.Addr {
	for _, own := range p.Addresses {
		if sameFamily(own, a) {
			return own
		}
	}
	return netip.Addr{}
}

// MaySendPlainly reports whether packets from an endpoint's address behind the peer may
// come without a tunnel, where a route leads there through one.
func (p Peer) MaySendPlainly(a netip.Addr) bool {
	return slices.Contains(p.Plain, FamilyOf(a))
}

// End returns the peer's end of the tunnel of a name.
func (p Peer) End(tunnel string) (TunnelEnd, bool) {
	i := slices.IndexFunc(p.Ends, func(e TunnelEnd) bool { return e.Tunnel == tunnel })
	if i < 0 {
		return TunnelEnd{}, false
	}
	return p.Ends[i], true
}

// EndOf returns the peer's end of the tunnel that packets of a's family take to it,
// and the node's own.
func (l Local) EndOf(p Peer, a netip.Addr) (TunnelEnd, Tunnel, bool) {
	for _, t := range l.Tunnels {
		if !t.Carries(a) {
			continue
		}
		if end, ok := p.End(t.Name); ok {
			return end, t, true
		}
	}
	return TunnelEnd{}, Tunnel{}, false
}

// Peer returns the peer of a name, an empty one where there is none.
func (p *Plan) Peer(name string) Peer {
	peer, _ := p.Peers.Get(PeerKey{name})
	return peer
}
