package plan

import (
	"cmp"
	"strings"
)

// MaxVNI is the largest VXLAN network identifier (RFC 7348, section 5).
const MaxVNI = 1<<24 - 1

// NetworkKey names a network, as addresses mean something in one network only, and a
// tunnel that carries it.
type NetworkKey struct {
	Name, Tunnel string
}

// Compare orders by name, then tunnel.
func (k NetworkKey) Compare(o NetworkKey) int {
	return cmp.Or(strings.Compare(k.Name, o.Name), strings.Compare(k.Tunnel, o.Tunnel))
}

// Network says what packets of a network look like in a tunnel.
type Network struct {
	// FirstVNI and LastVNI are the VXLAN network identifiers of the network, 0 to
	// MaxVNI, which no other network has in that tunnel: what endpoints with tag t send
	// has the identifier FirstVNI+t. Where that is beyond LastVNI, or who sends
	// carries no tags, it is FirstVNI, as of tag 0. A receiver takes all of these
	// identifiers from every peer, and believes the tags of some; see Peer.
	FirstVNI, LastVNI uint32
	// Origin says where the entry comes from, as "Kind name", for people.
	Origin string
}

// Equal reports whether both are the same in every field.
func (n Network) Equal(o Network) bool { return n == o }

// Encode returns the VXLAN network identifier of what an endpoint with a tag sends
// in a network through a tunnel; false where that does not carry the network.
func (p *Plan) Encode(tunnel, network string, t Tag) (vni uint32, ok bool) {
	n, ok := p.Networks.Get(NetworkKey{network, tunnel})
	if !ok {
		return 0, false
	}
	if uint32(t) > n.LastVNI-n.FirstVNI {
		t = 0
	}
	return n.FirstVNI + uint32(t), true
}

// Decode returns the network and the tag that a VXLAN network identifier stands
// for in a tunnel; false where it is that of no network.
func (p *Plan) Decode(tunnel string, vni uint32) (network string, t Tag, ok bool) {
	for k, n := range p.Networks.All() {
		if k.Tunnel == tunnel && n.FirstVNI <= vni && vni <= n.LastVNI {
			return k.Name, Tag(vni - n.FirstVNI), true
		}
	}
	return "", 0, false
}
