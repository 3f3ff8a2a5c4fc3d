package flannel

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// machines are the plan's peers by their names: of a lease that is proven to be a
// node's the node's name, of others the address that packets are handed over at. What
// a lease says of itself proves nothing, as names say whose pods are behind a peer.
// Two that are at one address are two peers there.
type machines struct {
	peers map[string]*plan.Peer
	// names are those of leases that are proven to be a node's.
	names map[*lease]string
}

// settleNames gives each node's name to the lease that is proven to be the node's, and
// to others at the very same addresses; of those at different ones the first that is
// right has it.
func (c *compiler) settleNames() {
	c.machines = machines{map[string]*plan.Peer{}, map[*lease]string{}}
	holders := map[string]*lease{}
	for _, l := range c.ordered {
		name := c.provenName(l)
		if name == "" || name == c.in.Node.Name {
			continue
		}
		first := cmp.Or(holders[name], l)
		if holders[name] = first; first.PublicIP == l.PublicIP && first.PublicIPv6 == l.PublicIPv6 {
			c.names[l] = name
		}
	}
}

// provenName is the name of the node that a lease is proven to be of, or "": it is the
// Node's itself, or an administrator says so, or the Node has each of its addresses,
// which no other node has been believed to have before.
func (c *compiler) provenName(l *lease) string {
	switch {
	case l.node != nil:
		return l.node.Name
	case l.reserved != nil:
		return l.reserved.Node
	}
	n := c.claims.nodes[l]
	if name := l.nodeName(); name != "" {
		n, _ = c.in.Objects.Get(api.Node, registry.Key{Name: name}).(*corev1.Node)
	}
	if n == nil {
		return ""
	}
	own := api.NodeAddresses(n)
	for _, a := range []netip.Addr{l.PublicIP, l.PublicIPv6} {
		if !a.IsValid() {
			continue
		}
		holder := c.addresses[a].lease
		if !slices.Contains(own, a) || holder != l && (holder == nil || holder.nodeName() != n.Name) {
			return ""
		}
	}
	return n.Name
}

// nextHop returns the name of the peer to which packets for a lease are handed at an
// address.
func (c *compiler) nextHop(l *lease, via netip.Addr) string {
	name, p := c.machine(l, via)
	if !p.NextHop(via).IsValid() {
		p.Addresses = append(p.Addresses, via)
	}
	return name
}

// tunnelEnd returns the name of the peer with an end of the tunnel that a lease speaks
// of. Leases by the same name have the same ends, each of one MAC address; see
// settleTunnel.
func (c *compiler) tunnelEnd(l *lease, end plan.TunnelEnd) string {
	name, p := c.machine(l, end.VTEP)
	if !slices.Contains(p.Ends, end) {
		p.Ends = append(p.Ends, end)
	}
	return name
}

// machine returns the peer of a lease at one of its addresses, and its name.
func (c *compiler) machine(l *lease, a netip.Addr) (string, *plan.Peer) {
	name := c.names[l]
	if name == "" {
		name = c.plainName(a)
	}
	if c.peers[name] == nil {
		c.peers[name] = &plan.Peer{Origin: c.origin(l)}
	}
	return name, c.peers[name]
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
func (m *machines) put(b *plan.Builder) {
	for name, peer := range m.peers {
		b.PutPeer(plan.PeerKey{Name: name}, *peer)
	}
}
