package flannel

import (
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// machines are the plan's peers. A lease is one, by the name of its node. Of leases
// that say they are of the same node, others have the names of their leases before
// that: two places to send packets to are two peers, whoever says what.
type machines struct {
	peers map[string]*plan.Peer
	// names are those of the peers of leases, and ends of those that have a VTEP.
	names map[*lease]string
	ends  map[netip.Addr]string
}

// machine returns the peer of a lease, and its name.
func (c *compiler) machine(p peer) (string, *plan.Peer) {
	if name, ok := c.names[p.lease]; ok {
		return name, c.peers[name]
	}
	if c.peers == nil {
		c.machines = machines{map[string]*plan.Peer{}, map[*lease]string{}, map[netip.Addr]string{}}
	}
	name := p.name
	for c.peers[name] != nil {
		name = c.origin(p.lease) + " as " + name
	}
	c.names[p.lease] = name
	c.peers[name] = &plan.Peer{Addresses: p.addresses, Origin: c.origin(p.lease)}
	return name, c.peers[name]
}

// nextHop returns the name of the peer that packets for a lease are handed to at
// an address.
func (c *compiler) nextHop(p peer, via netip.Addr) string {
	name, m := c.machine(p)
	if m.NextHop(via) != via {
		others := slices.DeleteFunc(slices.Clone(m.Addresses), func(a netip.Addr) bool { return a == via })
		m.Addresses = slices.Insert(others, 0, via)
	}
	return name
}

// tunnelEnd returns the name of the peer with the end of the tunnel that a lease
// speaks of. Of several leases that speak of one, it is the one that is believed to
// have the address.
func (c *compiler) tunnelEnd(p peer, end plan.TunnelEnd) string {
	if name, ok := c.ends[end.VTEP]; ok {
		return name
	}
	if holder := c.addresses[end.VTEP].lease; holder != nil && holder != p.lease {
		p = c.peer(holder)
	}
	name, m := c.machine(p)
	m.Ends = []plan.TunnelEnd{end}
	c.ends[end.VTEP] = name
	return name
}

// put states the peers.
func (m *machines) put(b *plan.Builder) {
	for name, peer := range m.peers {
		b.PutPeer(plan.PeerKey{Name: name}, *peer)
	}
}
