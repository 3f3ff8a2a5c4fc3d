package openshift

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/subnet"
)

// What VXLAN adds to each packet, in bytes: an Ethernet header within, VXLAN's
// and UDP's, and the outer IP header (RFC 7348, section 5).
const (
	overheadIPv4 = 14 + 8 + 8 + 20
	overheadIPv6 = 14 + 8 + 8 + 40
)

// Compile implements plugin.Plugin.
//
// Pods reach pods and nodes, these at one address of each family, under their own
// addresses, through tunnels; all else they reach behind the address of their node. A
// packet to an address of the service network is meant for kube-proxy, which replaces the
// destination before this plan is asked; one that it does not know keeps its source, so
// that it never looks like the node's own.
//
// The host address of a ghost gets no tunnel: it is an appliance's own, which
// pods reach as they reach any machine outside the cluster.
func (Subnet) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	c := compilation{
		in:      in,
		b:       plan.NewBuilder(in.Previous),
		network: networkOf(in.Objects),
	}
	c.elsewhere, c.whose = in.Node.Elsewhere()
	c.hosts = readHosts(c.network, in.Objects.All(api.HostSubnet))
	for _, p := range c.network.problems {
		c.report(api.ClusterNetwork, api.DefaultName, "%s", p.message)
	}
	for _, h := range c.hosts {
		c.problems = append(c.problems, h.pluginProblems()...)
	}

	plugin.PutNode(c.b, in.Node)
	if len(in.Node.Addresses) > 0 {
		vtep := in.Node.Addresses[0]
		c.b.Local.Tunnels = []plan.Tunnel{{Name: tunnelName, VTEP: vtep, MAC: plan.MACOf(vtep), Port: c.port()}}
		c.b.PutNetwork(plan.NetworkKey{Name: plan.DefaultNetwork, Tunnel: tunnelName}, plan.Network{Origin: api.ClusterNetwork.Kind + " " + api.DefaultName})
	}
	c.putPools()
	c.b.Local.MTU = c.mtu()
	c.problems = append(c.problems, plugin.PutEndpoints(c.b, in.Node)...)
	for _, h := range c.hosts {
		if h.name != in.Node.Name {
			c.leaveOut(h)
			c.putPeer(h)
		}
	}
	c.putCluster()

	slices.SortStableFunc(c.problems, func(a, b plugin.Problem) int {
		return cmp.Or(cmp.Compare(kindOf(a), kindOf(b)), a.Key.Compare(b.Key))
	})
	return c.b.Build(), c.problems
}

// tunnelName is what plans call the overlay.
const tunnelName = "vxlan"

type compilation struct {
	in       plugin.Input
	b        *plan.Builder
	network  network
	hosts    []*host
	problems []plugin.Problem
	// elsewhere and whose are plugin.Node.Elsewhere.
	elsewhere *subnet.Set
	whose     func(netip.Prefix) string
}

func kindOf(p plugin.Problem) string {
	if p.Kind == nil {
		return ""
	}
	return p.Kind.Kind
}

func (c *compilation) report(k *registry.Kind, name, format string, args ...any) {
	c.problems = append(c.problems, plugin.Problem{Kind: k, Key: registry.Key{Name: name}, Message: fmt.Sprintf(format, args...)})
}

// putPools states the node's own subnets.
func (c *compilation) putPools() {
	node := c.in.Node
	i := slices.IndexFunc(c.hosts, func(h *host) bool { return h.name == node.Name })
	if i < 0 {
		c.report(api.HostSubnet, node.Name, "there is none yet; a controller with plug-in %s makes it for each Node", Name)
		return
	}
	h := c.hosts[i]
	if h.waits() {
		c.report(api.HostSubnet, h.name, "it has no subnet yet; a controller with plug-in %s gives it one", Name)
	}
	if len(h.addresses) > 0 && len(node.Addresses) > 0 && h.addresses[0] != node.Addresses[0] {
		c.report(api.HostSubnet, h.name, "hostIP is %s, but the node's address is %s; the controller takes it from the Node's first InternalIP", h.addresses[0], node.Addresses[0])
	}
	c.putReached(h)
	tunnel, _ := c.b.Local.Tunnel(tunnelName)
	for _, p := range h.subnets {
		plugin.PutPool(c.b, p, tunnel.Name, h.origin())
		c.putPods(p, h.origin())
	}
}

// putReached states at which of its addresses other nodes' pods reach the node by the tunnel.
// Of a ghost it is not known how whoever is behind it answers.
func (c *compilation) putReached(own *host) {
	if len(own.addresses) == 0 || slices.ContainsFunc(c.hosts, func(h *host) bool { return h.ghost && len(h.subnets) > 0 }) {
		return
	}
	for _, a := range own.reachedAt() {
		if slices.Contains(c.b.Local.Addresses, a) {
			c.b.Local.ReachedAt = append(c.b.Local.ReachedAt, a)
		}
	}
}

// putPods states that packets to a node's subnet keep the pod's own address,
// where that does not follow from the cluster's CIDRs.
func (c *compilation) putPods(p netip.Prefix, origin string) {
	if !c.network.covers(p) {
		plugin.PutDirect(c.b, p, origin)
	}
}

// leaveOut takes from another machine the addresses in the pods' CIDRs: to what is in
// there and no pod's, no packet gets. Where this node itself is in one, as its kernel
// says, nothing is left out of that; see putCluster. The same holds for the ranges of
// other plug-ins, which administrators configure. Nor is a machine's what is in a subnet by
// another plug-in elsewhere, but for its end of the tunnel: who says that pods are where a
// node is must not cut the node off.
func (c *compilation) leaveOut(h *host) {
	var kept []netip.Addr
	for i, a := range h.addresses {
		p, in := c.network.rangeOf(a)
		q, taken := c.elsewhere.Overlap(netip.PrefixFrom(a, a.BitLen()))
		r, ranged := c.in.Node.RangeOf(a)
		switch {
		case ranged:
			c.report(api.HostSubnet, h.name, "%s", inRange(a, r))
		case taken && i > 0:
			c.report(api.HostSubnet, h.name, "%s", inSubnet(a, q, c.whose(q)))
		case in && !c.isIn(p):
			c.report(api.HostSubnet, h.name, "%s", inCIDR(a, p))
		default:
			kept = append(kept, a)
			continue
		}
		if i == 0 {
			break // without the tunnels' end the others are of no use
		}
	}
	h.addresses = kept
}

// isIn reports whether the node itself has an address in a prefix.
func (c *compilation) isIn(p netip.Prefix) bool {
	return slices.ContainsFunc(c.in.Node.Addresses, p.Contains)
}

// putPeer states the way to another machine's pods, and to itself.
func (c *compilation) putPeer(h *host) {
	if len(h.addresses) == 0 {
		return // waiting for its address, or reported
	}
	tunnel, ok := c.b.Local.Tunnel(tunnelName)
	vtep := h.addresses[0]
	for _, a := range h.addresses {
		if slices.Contains(c.in.Node.Addresses, a) {
			c.report(api.HostSubnet, h.name, "address %s is also that of node %s; give each node an address of its own", a, c.in.Node.Name)
			return
		}
	}
	switch {
	case !ok:
		return
	case vtep.Is4() != tunnel.VTEP.Is4():
		c.report(api.HostSubnet, h.name, "hostIP %s is not of the family of %s, the address of node %s; give all nodes a first InternalIP of one family",
			vtep, tunnel.VTEP, c.in.Node.Name)
		return
	case plan.MACOf(vtep) == tunnel.MAC:
		c.report(api.HostSubnet, h.name, "hostIP %s and the address %s of node %s have the same MAC address %s in the overlay; change one",
			vtep, tunnel.VTEP, c.in.Node.Name, tunnel.MAC)
		return
	}
	if !h.ghost || len(h.subnets) > 0 { // else nothing leads there, and nothing is taken from there
		c.b.PutPeer(plan.PeerKey{Name: h.name}, plan.Peer{
			Addresses: h.addresses, Ends: []plan.TunnelEnd{{Tunnel: tunnelName, VTEP: vtep, MAC: plan.MACOf(vtep)}}, Origin: h.origin()})
	}
	route := plan.Route{Way: plan.ToTunnel, Peers: []string{h.name}, Origin: h.origin()}
	for _, p := range h.subnets {
		c.b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: p}, route)
		c.putPods(p, h.origin())
	}
	if h.ghost {
		if v := h.object.Annotations[FixedVNID]; v != "" && v != "0" {
			c.report(api.HostSubnet, h.name, "annotation %s is %q, but plug-in %s has no network identifier but 0; set it to 0", FixedVNID, v, Name)
		}
		return
	}
	route.EndpointsOnly = true
	for _, a := range h.reachedAt() {
		p := netip.PrefixFrom(a, a.BitLen())
		c.b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: p}, route)
		plugin.PutDirect(c.b, p, h.origin())
	}
}

// putCluster states what holds for the cluster as a whole, and the way out.
func (c *compilation) putCluster() {
	origin := api.ClusterNetwork.Kind + " " + api.DefaultName
	for _, r := range c.network.ranges {
		if i := slices.IndexFunc(c.in.Node.Addresses, r.CIDR.Contains); i >= 0 {
			// To drop what no pod has would cut off the nodes. Only the node's own
			// kernel has a say in that.
			c.report(api.ClusterNetwork, api.DefaultName, "CIDR %s contains address %s of node %s, so that what no pod has in there is not dropped; use a CIDR apart from the nodes' own network",
				r.CIDR, c.in.Node.Addresses[i], c.in.Node.Name)
			plugin.PutDirect(c.b, r.CIDR, origin)
			continue
		}
		plugin.PutCluster(c.b, r.CIDR, origin)
	}
	if c.network.service.IsValid() {
		plugin.PutDirect(c.b, c.network.service, origin)
	}
	plugin.PutExit(c.b, netip.IPv4Unspecified(), origin)
	plugin.PutExit(c.b, netip.IPv6Unspecified(), origin)
}

func (c *compilation) port() uint16 {
	switch p := c.in.Config.Spec.VXLANPort; {
	case p > 0 && p <= 65535:
		return uint16(p)
	case p != 0:
		c.report(api.ClusterConfigKind, api.DefaultName, "vxlanPort %d is not between 1 and 65535", p)
	}
	return uint16(cmp.Or(c.network.port, DefaultPort))
}

// mtu returns that of pods, in bytes: what was asked for if the underlay can
// carry it, else what it can carry; 0 if neither is known.
//
// What is wrong with it is the node's own problem, as it follows from the MTU of
// the node's network, of which no object tells.
func (c *compilation) mtu() int {
	overhead := overheadIPv4
	if a := c.in.Node.Addresses; len(a) > 0 && a[0].Is6() {
		overhead = overheadIPv6
	}
	kind, asked := api.ClusterConfigKind, c.in.Config.Spec.MTU
	if asked == 0 {
		kind, asked = api.ClusterNetwork, c.network.mtu
	}
	problem := func(format string, args ...any) {
		c.problems = append(c.problems, plugin.Problem{Message: fmt.Sprintf(format, args...)})
	}
	most := 65535
	if c.in.Node.MTU > 0 {
		most = min(most, c.in.Node.MTU-overhead)
	}
	least := 576 // RFC 791, section 3.1
	if slices.ContainsFunc(c.b.Local.Pools, func(p plan.Pool) bool { return p.Prefix.Addr().Is6() }) {
		least = 1280 // RFC 8200, section 5
	}
	mtu := asked
	switch {
	case asked == 0 && c.in.Node.MTU == 0:
		return 0
	case asked == 0:
		mtu = most
	case asked > most:
		mtu = most
		problem("%s %s: mtu %d is more than node %s can carry in tunnels; its pods get %d. Raise the MTU of its network to %d or lower mtu",
			kind.Kind, api.DefaultName, asked, c.in.Node.Name, max(most, least), asked+overhead)
	}
	if mtu < least {
		problem("an mtu of %d is too small for pods on node %s, which get %d; use an MTU of at least %d in the nodes' network, and no smaller mtu in %s %s than %d",
			mtu, c.in.Node.Name, least, least+overhead, kind.Kind, api.DefaultName, least)
		mtu = least
	}
	return mtu
}
