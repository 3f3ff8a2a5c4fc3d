package flannel

import (
	"cmp"
	"net/netip"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// machines are the plan's peers by their names. What tells them apart is the address
// that packets are handed over at, whoever says what of itself: leases at one address
// are one machine's.
type machines map[string]*plan.Peer

// nextHop returns the name of the peer that has an address, to which packets for a
// lease are handed.
func (c *compiler) nextHop(l *lease, via netip.Addr) string {
	name := c.nameAt(via)
	if p := c.machines[name]; p != nil && p.NextHop(via).IsValid() && p.NextHop(via) != via {
		name = c.plainName(via)
	}
	if p := c.machine(name, l, via); !p.NextHop(via).IsValid() {
		p.Addresses = append(p.Addresses, via)
	}
	return name
}

// tunnelEnd returns the name of the peer that has an end of the tunnel, of which a
// lease speaks. An end has one MAC address; see settleTunnels.
func (c *compiler) tunnelEnd(l *lease, end plan.TunnelEnd) string {
	name := c.nameAt(end.VTEP)
	if p := c.machines[name]; p != nil && len(p.Ends) > 0 && p.Ends[0] != end {
		name = c.plainName(end.VTEP)
	}
	c.machine(name, l, end.VTEP).Ends = []plan.TunnelEnd{end}
	return name
}

// machine returns the peer of a name, which has an address of which a lease speaks.
func (c *compiler) machine(name string, l *lease, a netip.Addr) *plan.Peer {
	if c.machines == nil {
		c.machines = machines{}
	}
	if c.machines[name] == nil {
		c.machines[name] = &plan.Peer{Origin: c.origin(cmp.Or(c.addresses[a].lease, l))}
	}
	return c.machines[name]
}

// nameAt is what the machine with an address is called: by the name of the node that
// it is proven to be, or else by the address. What a lease says of itself proves
// nothing, as names say whose pods are behind the machine.
func (c *compiler) nameAt(a netip.Addr) string {
	if holder := c.addresses[a].lease; holder != nil {
		if name := c.provenName(holder); name != "" {
			return name
		}
	}
	if n := c.listed[a]; n != nil {
		return n.Name
	}
	return c.plainName(a)
}

// provenName is the name of the node that a lease is proven to be of, or "".
func (c *compiler) provenName(l *lease) string {
	switch n := cmp.Or(l.node, c.claims.nodes[l]); {
	case n != nil:
		return n.Name
	case l.reserved != nil:
		return l.reserved.Node
	}
	return ""
}

// plainName is an address as a name, which no node has.
func (c *compiler) plainName(a netip.Addr) string {
	name := a.String()
	if c.in.Objects.Get(api.Node, registry.Key{Name: name}) != nil {
		return "machine at " + name
	}
	return name
}

// put states the peers.
func (m machines) put(b *plan.Builder) {
	for name, peer := range m {
		b.PutPeer(plan.PeerKey{Name: name}, *peer)
	}
}
