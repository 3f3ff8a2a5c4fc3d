package rtnl

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// Node is what compiling a plan needs to know of the node besides the plan.
type Node struct {
	Stamps stamps.Stamps
	// Links maps interface names to indexes.
	Links map[string]int
	// Bridge is the index of Weft's own device that has the gateways' addresses, 0
	// where the plan needs none or it cannot be had.
	Bridge int
	// Tunnels are the devices of tunnels by the tunnels' names, those that can be had.
	Tunnels map[string]Device
	// Connected are the addresses on other interfaces.
	Connected Connections
}

// Device is one of Weft's own for a tunnel.
type Device struct {
	Index int
	// MTU is in bytes.
	MTU int
}

// Tunnel returns the name of the tunnel whose device has an index.
func (n *Node) Tunnel(link int) (name string, ok bool) {
	for name, d := range n.Tunnels {
		if d.Index == link && link != 0 {
			return name, true
		}
	}
	return "", false
}

// IsTunnel reports whether a tunnel's device has an index.
func (n *Node) IsTunnel(link int) bool {
	_, ok := n.Tunnel(link)
	return ok
}

// OwnLinks are the indexes of Weft's own devices, in order.
func (n *Node) OwnLinks() []int {
	var own []int
	if n.Bridge != 0 {
		own = append(own, n.Bridge)
	}
	for _, d := range n.Tunnels {
		own = append(own, d.Index)
	}
	slices.Sort(own)
	return own
}

// Connection is an address of an interface, with the prefix that it leads to.
type Connection struct {
	Addr netip.Prefix // not masked
	Link int
}

// Connections are addresses of interfaces. There may be one for each Service, as
// kube-proxy's mode ipvs has them, and each leads to itself alone; those that lead to other
// machines are few.
type Connections struct {
	// leading are those whose prefixes have more than one address, single the others.
	leading, single []Connection
	// holding is the link that has an address.
	holding map[netip.Addr]int
}

// NewConnections makes them of all there are, which it puts in order.
func NewConnections(all []Connection) Connections {
	slices.SortFunc(all, func(a, b Connection) int { return a.Addr.Compare(b.Addr) })
	c := Connections{holding: make(map[netip.Addr]int, len(all))}
	for _, one := range all {
		if one.Addr.IsSingleIP() {
			c.single = append(c.single, one)
		} else {
			c.leading = append(c.leading, one)
		}
		if _, known := c.holding[one.Addr.Addr()]; !known {
			c.holding[one.Addr.Addr()] = one.Link
		}
	}
	return c
}

// Equal reports whether the addresses are the same, and on the same interfaces.
func (c Connections) Equal(o Connections) bool {
	return slices.Equal(c.leading, o.leading) && slices.Equal(c.single, o.single)
}

// LinkTo returns the link that leads to a next hop, and whether the kernel has
// to be told that the next hop is on it.
func (n *Node) LinkTo(via netip.Addr, own []netip.Addr) (link int, onlink bool) {
	best := -1
	for _, c := range n.Connected.leading {
		if c.Addr.Contains(via) && c.Addr.Bits() > best {
			best, link = c.Addr.Bits(), c.Link
		}
	}
	if best >= 0 {
		return link, false
	}
	for _, a := range own {
		if a.Is4() != via.Is4() {
			continue
		}
		if i := n.Holding(a); i != 0 {
			return i, true
		}
	}
	return 0, false
}

// LinkSet are the indexes of interfaces, in order and then 0.
type LinkSet [mostLinks]int

// mostLinks is more than a machine has in one network.
const mostLinks = 8

// LinksTo returns the links by which packets may come from a next hop: those
// with a prefix that has it, as its answers may take any of them, or the one
// that leads to it.
func (n *Node) LinksTo(via netip.Addr, own []netip.Addr) LinkSet {
	leads, _ := n.LinkTo(via, own)
	if leads == 0 {
		return LinkSet{}
	}
	all := []int{}
	for _, c := range n.Connected.leading {
		if c.Addr.Contains(via) && c.Link != leads {
			all = append(all, c.Link)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	all = append(all[:min(len(all), mostLinks-1)], leads)
	slices.Sort(all)
	var some LinkSet
	copy(some[:], all)
	return some
}

// LeadingTo returns the links by which packets may come to an address of the
// node from other machines: those with a prefix of one of theirs or of the
// node's, and all where one is behind a router.
func (n *Node) LeadingTo(machines iter.Seq[netip.Addr], own netip.Addr) map[int]bool {
	links := map[int]bool{}
	all := false
	for m := range machines {
		near := false
		for _, c := range n.Connected.leading {
			if c.Addr.Contains(m) {
				links[c.Link], near = true, true
			}
		}
		all = all || !near
	}
	for _, list := range [][]Connection{n.Connected.leading, n.Connected.single} {
		for _, c := range list {
			if c.Addr.Contains(own) || all && c.Addr.Addr().Is4() == own.Is4() {
				links[c.Link] = true
			}
		}
	}
	return links
}

// Own returns the name of that of Weft's own devices that has an index.
func (n *Node) Own(link int) (name string, ok bool) {
	switch {
	case link == 0:
		return "", false
	case link == n.Bridge:
		return n.Stamps.Bridge, true
	}
	name, ok = n.Tunnel(link)
	return n.Stamps.TunnelPrefix + name, ok
}

// Holding returns the link that has an address, 0 for none.
func (n *Node) Holding(a netip.Addr) int { return n.Connected.holding[a] }

// Routed says for which families the node must be a router: those in which it
// has endpoints, knows the way to those of others, or has Services, of which others are
// backends. By the way out of the cluster alone there is nobody to send.
func Routed(p *plan.Plan) (ipv4, ipv6 bool) {
	for _, pool := range p.Local.Pools {
		ipv4, ipv6 = ipv4 || pool.Prefix.Addr().Is4(), ipv6 || pool.Prefix.Addr().Is6()
	}
	for _, first := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		for k := range p.Services.From(plan.ServiceKey{Network: plan.DefaultNetwork, Address: first}) {
			ipv4, ipv6 = ipv4 || k.Address.Is4(), ipv6 || k.Address.Is6()
			break
		}
	}
	for k, r := range p.Routes.All() {
		if ipv4 && ipv6 {
			break
		}
		if r.Way == plan.ToEndpoint || r.Way == plan.ToTunnel || r.Way == plan.ToNextHop {
			ipv4, ipv6 = ipv4 || k.Prefix.Addr().Is4(), ipv6 || k.Prefix.Addr().Is6()
		}
	}
	return ipv4, ipv6
}
