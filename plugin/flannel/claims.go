package flannel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/subnet"
)

// A node's agent writes its own lease, or the annotations of its own Node, and
// may write there what is another node's: its address, or the MAC address of its
// tunnel end. What several say is theirs is believed of one, and that is decided
// by what a node's agent cannot write:
//
//   - A node knows its own addresses, and that they are nobody else's.
//   - An administrator's word counts before the node's: a reservation in etcd,
//     an address in a Node's status or in an annotation that agents may not write.
//   - Of the others the older one is right, by the time that the registry noted,
//     which no later write changes.
//
// Those who are not right are left out, as far as they are not, with a problem.

// grade is how much a statement about an address counts; the least counts most.
type grade int

const (
	ownAddress grade = iota
	vouched          // by an administrator, or by the kubelet
	said             // in a lease, or in annotations
	listed           // in a Node that an agent may have written
)

// claim is what is believed of an address.
type claim struct {
	grade grade
	// lease is that of the node whose the address is; nil where that has none.
	lease *lease
	at    reference
}

// claims is what is believed of all nodes.
type claims struct {
	// ordered are the leases, those that are right first.
	ordered []*lease
	// subnets are those that leases hold, each the holder's.
	subnets subnet.Set
	holders map[netip.Prefix]*lease
	// addresses are nodes' addresses that are believed.
	addresses map[netip.Addr]claim
	// vteps and macs are the tunnel ends: in a tunnel each MAC has one VTEP, and
	// each VTEP one MAC. No two tunnels have a VTEP in common, as each is over
	// another family.
	vteps map[tunnelMAC]netip.Addr
	macs  map[netip.Addr]plan.MAC
	// nodes are the Nodes of leases in etcd.
	nodes map[*lease]*corev1.Node
	// told are the problems that problemAt has said.
	told map[plugin.Problem]bool
}

// tunnelMAC is a MAC address in a tunnel.
type tunnelMAC struct {
	tunnel string
	mac    plan.MAC
}

// settle decides whose is what several say is theirs.
func (c *compiler) settle() {
	c.claims = claims{holders: map[netip.Prefix]*lease{}, addresses: map[netip.Addr]claim{},
		vteps: map[tunnelMAC]netip.Addr{}, macs: map[netip.Addr]plan.MAC{},
		nodes: map[*lease]*corev1.Node{}, told: map[plugin.Problem]bool{}}
	c.ordered = slices.Clone(c.leases)
	slices.SortFunc(c.ordered, c.compare)
	c.settleSubnets()
	for _, a := range c.in.Node.Addresses {
		c.addresses[a] = claim{ownAddress, c.own, reference{api.Node, registry.Key{Name: c.in.Node.Name}}}
	}
	for _, l := range c.ordered {
		c.claimPublic(l)
	}
	c.claimOfNodes()
	c.settleNames()
}

// compare orders leases by who is right: the node's own goes before all others.
func (c *compiler) compare(a, b *lease) int {
	switch {
	case a == b:
		return 0
	case a == c.own:
		return -1
	case b == c.own:
		return 1
	}
	return a.compare(b)
}

// settleSubnets leaves each subnet with one lease. The key of a lease in etcd is
// its subnet, which may be anything where nothing restricts who writes keys: one
// that is outside of the cluster's network must not contain an address by which
// an older lease's node is reached.
func (c *compiler) settleSubnets() {
	var older subnet.Set // by which older leases' nodes are reached
	for _, l := range c.ordered {
		for _, p := range l.subnet.Prefixes() {
			if _, overlaps := c.subnets.Overlap(p); overlaps {
				continue
			}
			if _, contains := older.Overlap(p); contains && l != c.own && !c.inNetwork(p) {
				continue
			}
			c.subnets.Add(p)
			c.holders[p] = l
		}
		for _, p := range hosts([]netip.Addr{l.PublicIP, l.PublicIPv6}) {
			older.Add(p)
		}
	}
}

// inNetwork reports whether a node's subnet is where pods' addresses are: of
// Nodes, kube-controller-manager has seen to it.
func (c *compiler) inNetwork(p netip.Prefix) bool {
	return c.nodesAreLeases || c.settings.V4.holds(p) || c.settings.V6.holds(p)
}

// holds reports whether a prefix of a lease is the lease's.
func (c *compiler) holds(l *lease, p netip.Prefix) bool { return c.holders[p] == l }

// whyNot says why a prefix of a lease is not the lease's.
func (c *compiler) whyNot(p netip.Prefix) string {
	if other, overlaps := c.subnets.Overlap(p); overlaps {
		return fmt.Sprintf("%s overlaps with %s of %s, which is older or reserved", p, other, c.holders[other].at)
	}
	return fmt.Sprintf("%s contains the address of the node of an older lease", p)
}

// claimPublic takes note of the addresses by which a lease says that its node
// is reached.
func (c *compiler) claimPublic(l *lease) {
	for _, a := range []netip.Addr{l.PublicIP, l.PublicIPv6} {
		if !a.IsValid() || l.err != nil || l.BackendType == "" || l.disowned() {
			continue
		}
		g := said
		if l.reserved != nil && l.reserved.names([]netip.Addr{a}) || l.node != nil && l.vouchesFor(a) {
			g = vouched
		}
		c.claim(l, l.at, a, g)
	}
}

// vouchesFor reports whether a Node says of an address, where agents cannot
// write, that it is its own or leads to it.
func (l *lease) vouchesFor(a netip.Addr) bool {
	if slices.Contains(api.NodeAddresses(l.node), a) {
		return true
	}
	for _, name := range []string{publicIPOverwriteAnnotation, nodePublicIPAnnotation, publicIPv6OverwriteAnnotation, nodePublicIPv6Annotation} {
		if b, err := netip.ParseAddr(l.node.Annotations[name]); err == nil && a == b {
			return true
		}
	}
	return false
}

// claim takes note of an address that is said to be a node's, l's or that of a
// Node without a lease. What is a pod's address is no node's, be it of that node's own
// pods: the way to the node would lead through the tunnel that is to end there. That the
// node itself is in there it knows, and putCluster says so.
func (c *compiler) claim(l *lease, at reference, a netip.Addr, g grade) {
	if p, overlaps := c.subnets.Overlap(netip.PrefixFrom(a, a.BitLen())); overlaps && (l != c.own || c.holders[p] != c.own) &&
		(c.inNetwork(p) || l != nil && c.compare(c.holders[p], l) <= 0) {
		c.problemAt(at, "its address %s is in the subnet %s of %s, and is not used; give its node an address of the nodes' network", a, p, c.holders[p].at)
		return
	}
	if p, in := c.podsNetwork(a); in {
		c.problemAt(at, "its address %s is in the network %s of %s, where pods' addresses are, and is not used; give its node an address of the nodes' network", a, p, c.config)
		return
	}
	if r, in := c.in.Node.RangeOf(a); in {
		c.problemAt(at, "its address %s is in %s, from which another plug-in of the cluster gives pods theirs, and is not used; give its node an address of the nodes' network", a, r)
		return
	}
	had, known := c.addresses[a]
	switch {
	case known && had.grade <= g:
		if g != said && had.grade != ownAddress && had.at != at && had.lease != l {
			c.problemAt(at, "its address %s is that of %s, which is older or reserved, and is not used; delete the one that is gone, else give each an address of its own", a, had.at)
		}
	default:
		c.addresses[a] = claim{g, l, at}
	}
}

// podsNetwork returns the cluster's network where an address is in it, which is no
// node's then, even if no lease has it yet. Where the node itself is in there, other
// nodes may be, too.
func (c *compiler) podsNetwork(a netip.Addr) (netip.Prefix, bool) {
	for _, r := range []Range{c.settings.V4, c.settings.V6} {
		if !r.IsZero() && r.Network.Contains(a) && !slices.ContainsFunc(c.near(), r.Network.Overlaps) {
			return r.Network, true
		}
	}
	return netip.Prefix{}, false
}

// problemAt says what is wrong with an object, once.
func (c *compiler) problemAt(at reference, format string, args ...any) {
	p := plugin.Problem{Kind: at.kind, Key: at.key, Message: fmt.Sprintf(format, args...)}
	if !c.told[p] {
		c.told[p] = true
		c.problems = append(c.problems, p)
	}
}

// claimOfNodes takes note of the addresses that Nodes say they have. Of a Node
// that is a lease itself, they are the kubelet's word.
func (c *compiler) claimOfNodes() {
	byNode := map[registry.Key]*lease{}
	for _, l := range c.leases {
		if l.node != nil {
			byNode[l.at.key] = l
		}
	}
	var nodes []*corev1.Node
	for n := range registry.Each[*corev1.Node](c.in.Objects, api.Node) {
		nodes = append(nodes, n)
	}
	if c.nodesAreLeases {
		slices.SortStableFunc(nodes, func(a, b *corev1.Node) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	} else {
		c.matchNodes(nodes, byNode)
	}
	for _, n := range nodes {
		l, at := byNode[registry.KeyOf(n)], reference{api.Node, registry.KeyOf(n)}
		g := listed
		if c.nodesAreLeases {
			g = vouched
		}
		addresses, more := api.AddressesOf(n, corev1.NodeInternalIP)
		if more != nil {
			c.problemAt(at, "%v", more)
		}
		for _, a := range addresses {
			switch {
			case !slices.Contains(c.in.Node.Addresses, a):
				c.claim(l, at, a, g)
			case n.Name != c.in.Node.Name:
				c.problemAt(at, "it has address %s of node %s; delete the one that is gone, else give each an address of its own", a, c.in.Node.Name)
			}
		}
	}
}

// matchNodes finds the Nodes of leases in etcd. A lease that Weft wrote names
// its node. One of flanneld's is that of the only Node which has its address,
// unless that Node has a lease that names it.
func (c *compiler) matchNodes(nodes []*corev1.Node, byNode map[registry.Key]*lease) {
	at := map[netip.Addr][]*corev1.Node{}
	for _, n := range nodes {
		for _, a := range api.NodeAddresses(n) {
			at[a] = append(at[a], n)
		}
	}
	match := func(l *lease, n *corev1.Node) {
		if byNode[registry.KeyOf(n)] == nil {
			byNode[registry.KeyOf(n)], c.claims.nodes[l] = l, n
		}
	}
	having := func(l *lease) []*corev1.Node { return append(slices.Clone(at[l.PublicIP]), at[l.PublicIPv6]...) }
	for _, l := range c.ordered {
		if l.nodeName() == "" {
			continue
		}
		for _, n := range having(l) {
			if n.Name == l.nodeName() {
				match(l, n)
			}
		}
	}
	for _, l := range c.ordered {
		if l.nodeName() != "" || c.addresses[l.PublicIP].lease != l && c.addresses[l.PublicIPv6].lease != l {
			continue
		}
		found := having(l)
		slices.SortFunc(found, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
		if found = slices.Compact(found); len(found) == 1 {
			match(l, found[0])
		}
	}
}

// nodeName is the name of the node that has a lease, or "" where nobody says it.
func (l *lease) nodeName() string {
	switch {
	case l.node != nil:
		return l.node.Name
	case l.reserved != nil:
		return l.reserved.Node
	case l.Weft != nil:
		return l.Weft.Node
	}
	return ""
}

// disowned reports whether a lease says that its node has another address than
// an administrator said it has.
func (l *lease) disowned() bool {
	return l.reserved != nil && (l.PublicIP != l.reserved.PublicIP && l.PublicIP.IsValid() && l.reserved.PublicIP.IsValid() ||
		l.PublicIPv6 != l.reserved.PublicIPv6 && l.PublicIPv6.IsValid() && l.reserved.PublicIPv6.IsValid())
}

// settleTunnel leaves each end of a tunnel with one lease, beside the node's own. By
// what a lease says of its end in one tunnel it neither gains nor loses in another.
func (c *compiler) settleTunnel(o overlay, own plan.Tunnel) {
	c.vteps[tunnelMAC{o.name, own.MAC}], c.macs[own.VTEP] = own.VTEP, own.MAC
	for weight := range weights {
		for _, l := range c.ordered {
			vtep, end := l.end(o)
			if end == nil || l.BackendType != c.settings.Backend || c.addresses[vtep].lease != l || c.weigh(l, vtep, end.MAC) != weight {
				continue
			}
			at := tunnelMAC{o.name, end.MAC}
			if _, known := c.vteps[at]; !known && c.macs[vtep].IsZero() {
				c.vteps[at], c.macs[vtep] = vtep, end.MAC
			}
		}
	}
}

// weights is how many weights weigh knows.
const weights = 3

// weigh returns how much it counts that a lease, at a VTEP which is believed to be its
// own, says that a MAC address is its own; the least counts most. One that is made of
// an IPv4 address can be nobody else's. For one that is made of an IPv6 address others
// can look for an address that leads to it, too: it proves something at an address
// that the node's agent cannot choose.
func (c *compiler) weigh(l *lease, vtep netip.Addr, mac plan.MAC) int {
	made, known := mac == plan.MACOf(vtep), c.addresses[vtep].grade <= vouched
	switch {
	case c.addresses[l.PublicIP].lease == l && mac == plan.MACOf(l.PublicIP), made && known:
		return 0
	case known:
		return 1
	}
	return 2
}
