package openshift

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
)

// A node writes the status of its own Node, and could say there that another
// node's address is its own, or a pod's. HostSubnets are written by the controller
// alone, and are its memory of whose an address is: the node that has it in its
// HostSubnet keeps it for as long as its Node says so, and others do not get it,
// however old they are.

// settleAddresses decides which of the addresses that Nodes say they have are
// theirs, and says of each other why it is not.
func (r *reconciliation) settleAddresses() {
	r.addresses, r.disbelieved = map[string][]netip.Addr{}, map[string][]string{}
	holder := map[netip.Addr]string{} // the name of the HostSubnet
	ends := map[plan.MAC]string{}     // likewise, by what its tunnel's end has in the overlay
	for _, h := range r.ordered {
		if r.gone(h) {
			continue
		}
		n := r.nodes[h.name]
		for i, a := range written(h) {
			// A node that does not know its address for a while keeps the last.
			stands := n == nil || len(api.NodeAddresses(n)) == 0 || slices.Contains(api.NodeAddresses(n), a)
			if _, taken := holder[a]; stands && !taken {
				holder[a] = h.name
				if _, taken := ends[plan.MACOf(a)]; i == 0 && !taken {
					ends[plan.MACOf(a)] = h.name
				}
			}
		}
	}
	for _, n := range r.byAge() {
		h := r.hosts[n.Name]
		addresses, more := api.AddressesOf(n, corev1.NodeInternalIP)
		for _, a := range addresses {
			why := ""
			if h == nil || !slices.Contains(written(h), a) {
				why = r.whyNot(n, a, holder)
			}
			mac, isEnd := plan.MACOf(a), len(r.addresses[n.Name]) == 0
			if other, taken := ends[mac]; why == "" && isEnd && taken && other != n.Name {
				why = fmt.Sprintf("address %s has the MAC address %s in the overlay, which is that of HostSubnet %s; give the node another address", a, mac, other)
			}
			if why != "" {
				r.disbelieved[n.Name] = append(r.disbelieved[n.Name], why)
				continue
			}
			if _, taken := holder[a]; !taken {
				holder[a] = n.Name
			}
			if isEnd {
				ends[mac] = n.Name
			}
			r.addresses[n.Name] = append(r.addresses[n.Name], a)
		}
		if more != nil {
			r.disbelieved[n.Name] = append(r.disbelieved[n.Name], more.Error())
		}
		if h != nil {
			h.problems = append(h.problems, r.disbelieved[n.Name]...)
		}
	}
}

// written returns the addresses in a HostSubnet, whoever is right about them.
func written(h *host) []netip.Addr {
	addresses, _ := api.HostAddresses(h.object)
	return addresses
}

// byAge returns the Nodes, those first that have a HostSubnet, in the order of
// these, then the others in the order of their names.
func (r *reconciliation) byAge() []*corev1.Node {
	age := map[string]int{}
	for i, h := range r.ordered {
		age[h.name] = i + 1
	}
	var nodes []*corev1.Node
	for _, n := range r.nodes {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int {
		known := func(n *corev1.Node) int {
			if age[n.Name] == 0 {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(known(a), known(b)), cmp.Compare(age[a.Name], age[b.Name]), cmp.Compare(a.Name, b.Name))
	})
	return nodes
}

// whyNot says why an address that the HostSubnet of a Node does not have is not to
// get into it, or "".
func (r *reconciliation) whyNot(n *corev1.Node, a netip.Addr, holder map[netip.Addr]string) string {
	if other, taken := holder[a]; taken && other != n.Name {
		return fmt.Sprintf("address %s is that of HostSubnet %s, which had it first; delete the Node that is gone, else give each node an address of its own", a, other)
	}
	for _, other := range r.ordered {
		for _, p := range other.claims {
			if p.Contains(a) {
				return fmt.Sprintf("address %s is in subnet %s of HostSubnet %s, where pods' addresses are; give the node an address of the nodes' own network", a, p, other.name)
			}
		}
	}
	for _, g := range r.ledger.pending {
		if g.subnet.Contains(a) {
			return fmt.Sprintf("address %s is in subnet %s of node %s, where pods' addresses are; give the node an address of the nodes' own network", a, g.subnet, g.node)
		}
	}
	if r.network.service.IsValid() && r.network.service.Contains(a) {
		return fmt.Sprintf("address %s is in serviceNetwork %s; give the node an address of the nodes' own network", a, r.network.service)
	}
	if p, in := r.network.rangeOf(a); in {
		return inCIDR(a, p)
	}
	if i := slices.IndexFunc(r.elsewhere.Ranges, func(p netip.Prefix) bool { return p.Contains(a) }); i >= 0 {
		return inRange(a, r.elsewhere.Ranges[i])
	}
	// The first is where its tunnel ends: see compilation.leaveOut.
	if p, in := r.heldElsewhere.Overlap(netip.PrefixFrom(a, a.BitLen())); in && a != api.NodeAddresses(n)[0] {
		return inSubnet(a, p, r.elsewhere.Holdings[p])
	}
	return ""
}

// inSubnet says why an address that is a pod's by another plug-in is not a node's.
func inSubnet(a netip.Addr, p netip.Prefix, who string) string {
	return fmt.Sprintf("address %s is in subnet %s, where %s has pods' addresses by another plug-in of the cluster; give the node an address of the nodes' own network", a, p, who)
}

// inRange says why an address in a range of another plug-in is not a node's.
func inRange(a netip.Addr, r netip.Prefix) string {
	return fmt.Sprintf("address %s is in %s, from which another plug-in of the cluster gives pods theirs; give the node an address of the nodes' own network", a, r)
}

// inCIDR says why an address in one of the pods' CIDRs is not a node's. That nothing
// leaves the cluster, or comes in, under an address there which no pod has, holds on
// all nodes: what one says of itself must not end it.
func inCIDR(a netip.Addr, p netip.Prefix) string {
	return fmt.Sprintf("address %s is in CIDR %s, where pods' addresses are; give the node an address of the nodes' own network", a, p)
}
