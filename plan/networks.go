package plan

import "strings"

// MaxVNI is the largest VXLAN network identifier (RFC 7348, section 5).
const MaxVNI = 1<<24 - 1

// NetworkKey names a network: addresses mean something in one network only.
type NetworkKey struct {
	Name string
}

// Compare orders by name.
func (k NetworkKey) Compare(o NetworkKey) int { return strings.Compare(k.Name, o.Name) }

// Network says what packets of a network look like in the tunnel.
type Network struct {
	// FirstVNI and LastVNI are the VXLAN network identifiers of the network, 0 to
	// MaxVNI, which no other network of the plan has: what endpoints with tag t send
	// has the identifier FirstVNI+t. Where that is beyond LastVNI, or who sends
	// carries no tags, it is FirstVNI, as of tag 0.
	FirstVNI, LastVNI uint32
	// Origin says where the entry comes from, as "Kind name", for people.
	Origin string
}

// Equal reports whether both are the same in every field.
func (n Network) Equal(o Network) bool { return n == o }

// Encode returns the VXLAN network identifier of what an endpoint with a tag sends
// in a network; false where the plan does not say what the network is.
func (p *Plan) Encode(network string, t Tag) (vni uint32, ok bool) {
	n, ok := p.Networks.Get(NetworkKey{network})
	if !ok {
		return 0, false
	}
	if uint32(t) > n.LastVNI-n.FirstVNI {
		t = 0
	}
	return n.FirstVNI + uint32(t), true
}

// Decode returns the network and the tag that a VXLAN network identifier stands
// for; false where it is that of no network.
func (p *Plan) Decode(vni uint32) (network string, t Tag, ok bool) {
	for k, n := range p.Networks.All() {
		if n.FirstVNI <= vni && vni <= n.LastVNI {
			return k.Name, Tag(vni - n.FirstVNI), true
		}
	}
	return "", 0, false
}
