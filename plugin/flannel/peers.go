package flannel

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// peer is the node that holds another lease.
type peer struct {
	*lease
	// addresses are PublicIP and PublicIPv6, as far as they are believed to be the
	// node's own. What else its Node lists is not among them: packets for such an
	// address would go to the end of a tunnel that is elsewhere, so that a node could
	// draw those for any machine by listing its address. Pods reach it as they reach
	// machines outside of the cluster.
	addresses []netip.Addr
}

func (c *compiler) peer(l *lease) peer {
	p := peer{lease: l}
	for _, f := range []struct {
		address          netip.Addr
		field, byAnAdmin string
	}{{l.PublicIP, c.words.publicIP, nodePublicIPAnnotation}, {l.PublicIPv6, c.words.publicIPv6, nodePublicIPv6Annotation}} {
		switch ok, known := c.reached(l, f.address); {
		case !known:
		case !ok:
			c.problem(l, "%s %s is in none of its status.addresses: its pods are reached there, but pods reach that address itself as one outside of the cluster; add annotation %s: %s, which agents may not write",
				f.field, f.address, f.byAnAdmin, f.address)
		default:
			p.addresses = append(p.addresses, f.address)
		}
	}
	return p
}

// reached reports whether pods of other nodes reach the node of a lease at one of its addresses
// by the way to its pods; known is false where the address is not the lease's.
func (c *compiler) reached(l *lease, a netip.Addr) (ok, known bool) {
	holder := c.addresses[a]
	if !a.IsValid() || holder.lease != l {
		return false, false
	}
	return !c.nodesAreLeases || holder.grade <= vouched, true
}

// putReached states at which of its addresses the node is reached so. Behind flanneld pods
// answer another way than they are asked.
func (c *compiler) putReached() {
	if c.own == nil || slices.ContainsFunc(c.leases, func(l *lease) bool { return l != c.own && l.BackendType != "" && !l.isWefts() }) {
		return
	}
	for _, a := range []netip.Addr{c.own.PublicIP, c.own.PublicIPv6} {
		if ok, _ := c.reached(c.own, a); ok && slices.Contains(c.b.Local.Addresses, a) {
			c.b.Local.ReachedAt = append(c.b.Local.ReachedAt, a)
		}
	}
}

// putPeer states how to get to the pods of another lease, and to its node.
func (c *compiler) putPeer(l *lease) {
	switch {
	case l.err != nil:
		c.problem(l, "%v", l.err)
		return
	case l.BackendType == "":
		return // a reservation whose node has not come up yet
	case l.heldBy(c.in.Node.Addresses):
		c.problem(l, "its %s or %s is an address of node %s; delete the one that is gone, else give each an address of its own",
			c.words.publicIP, c.words.publicIPv6, c.in.Node.Name)
		return
	case l.disowned():
		c.problem(l, "its %s or %s is not that of the node that it is reserved for, %s at %s; restart the agent there, or make the reservation anew",
			c.words.publicIP, c.words.publicIPv6, l.reserved.Node, l.reserved)
		return
	case l.BackendType != c.settings.Backend:
		c.outdated(l, "its %s is %s, but that of the cluster is %s", c.words.backendType, l.BackendType, c.settings.Backend)
		return
	case c.own != nil && l.subnet.Overlaps(c.own.subnet):
		return // putLocal has said so
	}
	p := c.peer(l)
	c.putNodeDirect(p.addresses, c.origin(l))
	for _, prefix := range l.subnet.Prefixes() {
		if !c.uses(prefix) {
			continue
		}
		if clash := slices.IndexFunc(c.near(), prefix.Overlaps); clash >= 0 {
			if near := c.near()[clash]; near.IsSingleIP() && c.inNetwork(prefix) {
				// The lease is where it is to be, and the address is not.
				c.problemAt(reference{api.Node, registry.Key{Name: c.in.Node.Name}}, "its address %s is in the subnet %s of %s, where pods' addresses are; give the node an address of the nodes' network", near.Addr(), prefix, l.at)
			} else {
				c.problem(l, "%s overlaps with %s, which node %s is in; %s", prefix, near, c.in.Node.Name, c.words.otherSubnet)
			}
			continue
		}
		if who, ok := c.elsewhere(l, prefix); ok {
			c.problem(l, "%s holds addresses that %s has by another plug-in of the cluster; %s", prefix, who, c.words.otherSubnet)
			continue
		}
		if !c.holds(l, prefix) {
			c.problem(l, "%s; %s", c.whyNot(prefix), c.words.otherSubnet)
			continue
		}
		r, ok := c.route(p, prefix)
		if !ok {
			continue
		}
		c.b.PutRoute(key(prefix), r)
		if !c.settings.V4.holds(prefix) && !c.settings.V6.holds(prefix) {
			plugin.PutDirect(c.b, prefix, c.origin(l))
			c.sayIfNobodys(l, prefix)
		}
		if r.Way == plan.ToTunnel {
			c.putPeerAddresses(p, prefix.Addr().Is6(), r)
		}
	}
}

// sayIfNobodys says of a lease outside of the network that it is of no node, and does not end:
// nobody else tells of it. A node's own agent tells of that node's. All nodes do what it says.
func (c *compiler) sayIfNobodys(l *lease, p netip.Prefix) {
	if c.nodesAreLeases || c.unconfigured || l.Expires || l.nodeName() != "" || c.claims.nodes[l] != nil {
		return
	}
	var networks []string
	for _, r := range []Range{c.settings.V4, c.settings.V6} {
		if !r.IsZero() {
			networks = append(networks, r.Network.String())
		}
	}
	c.problem(l, "%s is outside of the network %s, and of no Node: give the machine that has it a subnet of the network, or delete the lease", p, strings.Join(networks, ", "))
	c.problems[len(c.problems)-1].Told = true
}

// route returns the way to a prefix of the peer's.
func (c *compiler) route(p peer, prefix netip.Prefix) (plan.Route, bool) {
	v6 := prefix.Addr().Is6()
	via := p.PublicIP
	if v6 {
		via = p.PublicIPv6
	}
	if via.IsValid() && (c.settings.Backend == BackendHostGW || c.settings.DirectRouting) && c.onLink(via) {
		return plan.Route{Way: plan.ToNextHop, Peers: []string{c.nextHop(p.lease, via)}, Origin: c.origin(p.lease)}, true
	}
	if c.settings.Backend == BackendVXLAN {
		return c.tunnel(p, prefix)
	}
	switch field, _ := c.words.end(v6); {
	case !via.IsValid():
		c.outdated(p.lease, "it has no %s, by which %s could be reached", field, prefix)
	default:
		c.problem(p.lease, "its address %s is not on a link of node %s, which backend host-gw needs; use backend vxlan", via, c.in.Node.Name)
	}
	return plan.Route{}, false
}

// elsewhere returns who else than the node that a lease is proven to be of has addresses
// of a prefix by another plug-in. What others say of such addresses in their leases is
// not to be believed, as the other plug-in gave them.
func (c *compiler) elsewhere(l *lease, p netip.Prefix) (who string, ok bool) {
	for q := range c.others.Within(p) {
		if who := c.whose(q); who != c.names[l] {
			return who, true
		}
	}
	return "", false
}

func (c *compiler) onLink(a netip.Addr) bool {
	return slices.ContainsFunc(c.in.Node.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// tunnel returns the way through the tunnel to a prefix of the peer's.
func (c *compiler) tunnel(p peer, prefix netip.Prefix) (plan.Route, bool) {
	o, ok := c.overlay(prefix)
	if !ok {
		return plan.Route{}, false // putTunnels has said so
	}
	vtep, end := p.end(o)
	field, data := c.words.end(o.v6)
	switch {
	case !vtep.IsValid() || end == nil:
		c.outdated(p.lease, "it has no %s or no %s for a tunnel", field, data)
		return plan.Route{}, false
	case end.VNI != c.settings.VNI:
		c.outdated(p.lease, "VNI in its %s is %d, but that of the cluster is %d", data, end.VNI, c.settings.VNI)
		return plan.Route{}, false
	case end.MAC.IsZero() || end.MAC[0]&1 != 0:
		c.outdated(p.lease, "VtepMAC %s in its %s is not the address of one machine", end.MAC, data)
		return plan.Route{}, false
	}
	switch holder := c.addresses[vtep]; {
	case holder.at.kind == nil:
		return plan.Route{}, false // claim has said so
	case holder.lease != p.lease && c.macs[vtep] != end.MAC:
		c.problem(p.lease, "%s %s is that of %s, which is older or known to have it, and has not the VtepMAC %s; delete the one that is gone, else give each node an address of its own",
			field, vtep, holder.at, end.MAC)
		return plan.Route{}, false
	}
	if other := c.vteps[tunnelMAC{o.name, end.MAC}]; other != vtep {
		c.problem(p.lease, "VtepMAC %s in its %s is that of %s, %s; give its node another", end.MAC, data, c.addresses[other].at, other)
		return plan.Route{}, false
	}
	return plan.Route{Way: plan.ToTunnel, Peers: []string{c.tunnelEnd(p.lease, plan.TunnelEnd{Tunnel: o.name, VTEP: vtep, MAC: end.MAC})}, Origin: c.origin(p.lease)}, true
}

// putPeerAddresses states that pods get to the peer's own addresses of a family by
// the tunnel, where its pods are reached so by theirs: without it the peer would see
// a pod's address come in from where it does not expect it.
func (c *compiler) putPeerAddresses(p peer, v6 bool, r plan.Route) {
	r.EndpointsOnly = true
	for _, h := range hosts(p.addresses) {
		direct := c.settings.DirectRouting && c.onLink(h.Addr())
		if h.Addr().Is6() == v6 && !direct && !slices.Contains(c.in.Node.Addresses, h.Addr()) {
			c.b.PutRoute(key(h), r)
		}
	}
}

// putStranded sees to endpoints whose addresses lead other nodes elsewhere:
// those from a lease that was lost. Behind the node's address they can still
// open connections. That others cannot connect to them plugin.PutEndpoints says.
func (c *compiler) putStranded() {
	if len(c.b.Local.Pools) == 0 {
		return
	}
	for _, e := range c.in.Node.Endpoints {
		if e.Network != plan.DefaultNetwork {
			continue
		}
		for _, a := range e.Addresses {
			if slices.ContainsFunc(c.b.Local.Pools, func(p plan.Pool) bool { return p.Prefix.Contains(a) }) || c.in.Node.Keeps(a) {
				continue
			}
			everything, _ := a.Prefix(0)
			c.b.PutEgress(plan.EgressKey{Network: plan.DefaultNetwork, Interface: e.Interface, Destination: everything},
				plan.Egress{Action: plan.Masquerade, Origin: "Pod " + e.Name()})
		}
	}
}
