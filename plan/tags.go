package plan

import (
	"net/netip"
	"strings"
)

// TagKey is a set of addresses in a network. Prefix is masked.
type TagKey struct {
	Network string
	Prefix  netip.Prefix
}

// Compare orders by network, then family, then address, then length.
func (k TagKey) Compare(o TagKey) int {
	if c := strings.Compare(k.Network, o.Network); c != 0 {
		return c
	}
	return comparePrefix(k.Prefix, o.Prefix)
}

// Tagging says which tag the addresses of a prefix wear. The longest prefix wins,
// whichever way the Routes table sends packets; it wins over a tag that came with
// the packet, too. So an entry for a whole prefix holds for all who are in it,
// whatever they send: that of a peer without tags, to be denied as such; see
// Peer.CarriesTags.
type Tagging struct {
	Tag Tag
	// Origin says where the entry comes from, as "NodePods node2", for people.
	Origin string
}

// Equal reports whether both are the same in every field.
func (t Tagging) Equal(o Tagging) bool { return t == o }

// TagAround returns the longest of a network's tagged prefixes that contains all of
// another.
func (p *Plan) TagAround(network string, all netip.Prefix) (TagKey, Tagging, bool) {
	return around(p.Tags, all,
		func(prefix netip.Prefix) TagKey { return TagKey{network, prefix} },
		func(k TagKey) (netip.Prefix, bool) { return k.Prefix, k.Network == network },
		func(Tagging) bool { return true })
}
