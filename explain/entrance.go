package explain

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// entrance is where something comes in from outside of the cluster that is for an address of
// a Service, its clusterIP among them, or a VirtualAddress: such an address is on no node's interface, and so the node
// is the one that answers for it.
type entrance struct {
	// nodes are those of which one gets it first, in order.
	nodes []string
	// nobody says that nobody gets it, doubt why it is not known who of several does.
	nobody, doubt string
	// perhaps says that it may be that none of nodes gets it.
	perhaps bool
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
	var all, unnaming []string // unnaming are those that answer for more than they name
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		if len(by.Nodes) == 0 && slices.Contains(otherAddresses(node), to) {
			holders = append(holders, node.Name)
		}
		if c.Agentless(node) || len(api.NodeAddresses(node)) == 0 {
			continue
		}
		all = append(all, node.Name)
		if _, more := api.Announces(node); more && !c.Lost[node.Name] {
			unnaming = append(unnaming, node.Name)
		}
	}
	switch {
	case len(holders) == 1:
		return entrance{nodes: holders}
	case len(holders) > 1:
		return entrance{nodes: holders, doubt: fmt.Sprintf("it may come in at any of %s, which all say that they have %s", printable.Few(holders, 0), to)}
	case !known:
		if !onLink {
			unnaming = all // another network may lead to any
		}
		return entrance{nodes: unnaming, perhaps: true, doubt: fmt.Sprintf("at which node it comes in is not known: nodes answer for more addresses than they name, of which %s may be one", to)}
	case onLink:
		return entrance{nobody: fmt.Sprintf("no node says that it answers for %s on the link", to)}
	}
	return entrance{nodes: all, perhaps: true, doubt: fmt.Sprintf("no node says that it answers for %s on the link, and whether the network outside leads there is not known", to)}
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

// maxEntrances is at how many nodes it is looked at most where something may come in at several. The plan of
// each is compiled, and in a large cluster that of one node may take a second.
const maxEntrances = 16

// entering returns what becomes of a flow that comes in at an entrance. Where that may be at several nodes,
// it is denied or allowed where it is so at each of them, and else that is not known. The answer is that of the
// first node at which it is not denied, or of the first of all.
func (c Cluster) entering(e entrance, a Answer, flow plan.Flow, planner *planner) Answer {
	nodes := e.nodes
	if len(nodes) == 0 {
		nodes = []string{""}
	}
	var shown *Answer
	first, at := make(map[Verdict]Answer), make(map[Verdict][]string)
	looked := nodes[:min(len(nodes), maxEntrances)]
	for _, node := range looked {
		flow.Enters = node
		one := c.follow(a, flow, planner)
		if len(at[one.Verdict]) == 0 {
			first[one.Verdict] = one
		}
		at[one.Verdict] = append(at[one.Verdict], node)
		if shown == nil || shown.Verdict == Denied && one.Verdict != Denied {
			shown = &one
		}
	}
	verdict := shown.Verdict
	switch {
	case e.doubt == "":
		return *shown
	case len(at) == 1 && len(looked) == len(nodes) && (verdict == Denied || verdict == Allowed && !e.perhaps):
		shown.Warn("", api.Problem{Message: fmt.Sprintf("%s: wherever it comes in it is %s", e.doubt, verdict)})
		return *shown
	}
	shown.Doubt(e.doubt)
	for _, other := range []Verdict{Denied, Allowed, NotKnown} {
		if other != verdict && len(at[other]) > 0 {
			shown.Doubt(fmt.Sprintf("at %s it is %s: %s", printable.Few(at[other], 0), other, first[other].Sentence()))
		}
	}
	if more := len(nodes) - len(looked); more > 0 {
		shown.Doubt(fmt.Sprintf("%d of the %d nodes where it may come in were not looked at", more, len(nodes)))
	}
	return *shown
}
