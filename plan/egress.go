package plan

import (
	"cmp"
	"net/netip"
	"strings"
)

// EgressKey says for which sources and destinations an egress rule holds. An
// endpoint's own rules come before its tag's, and those before the network's;
// among each the longest destination prefix wins.
type EgressKey struct {
	Network string
	// Interface is the key of the endpoint, or empty.
	Interface string
	// Tagged says that Tag selects the sources; with neither Interface nor
	// Tagged the rule holds for all endpoints of the network.
	Tagged bool
	Tag    Tag
	// Destination is masked.
	Destination netip.Prefix
}

// Sources is the key without its destination: equal for all rules of the same sources.
func (k EgressKey) Sources() EgressKey {
	k.Destination = netip.Prefix{}
	return k
}

// Compare orders keys.
func (k EgressKey) Compare(o EgressKey) int {
	tagged := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return cmp.Or(strings.Compare(k.Network, o.Network), strings.Compare(k.Interface, o.Interface),
		cmp.Compare(tagged(k.Tagged), tagged(o.Tagged)), cmp.Compare(k.Tag, o.Tag), comparePrefix(k.Destination, o.Destination))
}

// EgressAction is what happens to the source address of what leaves.
type EgressAction string

// The actions.
const (
	// Direct leaves the source as it is.
	Direct EgressAction = "direct"
	// Masquerade makes the node's address the source.
	Masquerade EgressAction = "masquerade"
	// SourceNAT makes Egress.Source the source.
	SourceNAT EgressAction = "snat"
	// ViaNode hands the packet to Egress.Node, which is where it leaves.
	ViaNode EgressAction = "via"
	// Discard drops it.
	Discard EgressAction = "drop"
)

// Egress says how endpoints' packets leave. It holds for what the Routes table
// sends off the node (a tunnel, a next hop, a gateway), whichever way that is,
// so a plug-in states Direct for the destinations that must see the endpoint's
// own address. No entry means Direct.
type Egress struct {
	Action EgressAction
	// Source is the address of SourceNAT.
	Source netip.Addr
	// Node is the gateway node of ViaNode.
	Node string
	// Origin says where the entry comes from, as "ClusterNetwork default".
	Origin string
}

// Equal reports whether both are the same in every field.
func (e Egress) Equal(o Egress) bool { return e == o }
