package explain

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

// entrance is where something comes in from outside of the cluster that is for an address of
// a Service, its clusterIP among them, or a VirtualAddress: such an address is on no node's interface, and so the node
// is the one that answers for it.
type entrance struct {
	// node is the one that gets it first; empty where that is not known, or nobody does.
	node string
	// nobody says that nobody gets it, doubt why it is not known who does.
	nobody, doubt string
}

// outside reports whether a party is a machine outside of the cluster.
func (p Party) outside() bool {
	return p.Node == "" && p.pod == nil && p.orphan == nil && p.service == nil
}

// entrance returns where what an answer is about comes in. It says nothing where it comes from
// within the cluster, or is for an address that a node or a pod has.
func (c Cluster) entrance(a Answer) entrance {
	to := a.Destination.Address
	if !a.Source.outside() || a.Destination.Node != "" || a.Destination.orphan != nil {
		return entrance{}
	}
	onLink, is := c.announceable(to)
	if !is {
		return entrance{}
	}
	by, known := c.AnnouncedBy(to)
	holders := by.Nodes
	if len(holders) == 0 {
		for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
			if slices.Contains(otherAddresses(node), to) {
				holders = append(holders, node.Name)
			}
		}
	}
	switch {
	case len(holders) == 1:
		return entrance{node: holders[0]}
	case len(holders) > 1:
		return entrance{node: holders[0], doubt: fmt.Sprintf("it may come in at any of %s, which all say that they have %s", printable.Few(holders, 0), to)}
	case !known:
		return entrance{doubt: fmt.Sprintf("at which node it comes in is not known: nodes answer for more addresses than they name, of which %s may be one", to)}
	case onLink:
		return entrance{nobody: fmt.Sprintf("no node says that it answers for %s on the link", to)}
	}
	return entrance{doubt: fmt.Sprintf("no node says that it answers for %s on the link, and whether the network outside leads there is not known", to)}
}

// announceable reports whether an address is one that is on no node's interface and may lead into
// the cluster from outside; and whether that is by a node that answers for it on the link alone. To
// an address of the cluster another network may lead, as by a static route.
func (c Cluster) announceable(a netip.Addr) (onLink, is bool) {
	for v := range registry.Each[*api.VirtualAddress](c.Objects, api.VirtualAddressKind) {
		if v.Address() == a {
			return true, true
		}
	}
	for svc := range registry.Each[*corev1.Service](c.Objects, api.Service) {
		if svc.Spec.Type != corev1.ServiceTypeExternalName && slices.Contains(api.ClusterAddresses(svc), a) {
			return false, true
		}
		if !slices.Contains(outerAddresses(svc), a) {
			continue
		}
		g := registry.GetAs[*api.AddressGrant](c.Objects, api.AddressGrantKind, registry.Key{Name: api.GrantName(a)})
		if g == nil {
			return false, true
		}
		pool := registry.GetAs[*api.AddressPool](c.Objects, api.AddressPoolKind, registry.Key{Name: g.Spec.Pool})
		return pool == nil || pool.OnLink(), true
	}
	return false, false
}

// outerAddresses are the addresses of a Service outside of the cluster, those of load balancers
// first.
func outerAddresses(svc *corev1.Service) (all []netip.Addr) {
	for _, i := range svc.Status.LoadBalancer.Ingress {
		all = append(all, parse([]string{i.IP})...)
	}
	return append(all, parse(svc.Spec.ExternalIPs)...)
}

// decide has the entrance count for an answer that was found as if the packet came in there.
func (e entrance) decide(a *Answer) {
	if e.doubt != "" && a.Verdict == Allowed {
		a.Doubt(e.doubt)
	}
}
