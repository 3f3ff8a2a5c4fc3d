package networkpolicy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
)

// placed holds what other nodes say of their pods, without what they cannot
// know: a node speaks for the addresses to which the base plan's routes lead by
// way of it. So nobody who has got hold of one node can give its pods' rights to
// others' addresses, or take theirs.
type placed struct {
	routes plan.Table[plan.RouteKey, plan.Route]
	nodes  map[string]place
	// list are the nodes in the order of their names. It is never changed, but
	// replaced.
	list []*policy.Node
}

// place is what was made of a node's word.
type place struct {
	said     *policy.Node
	prefixes []netip.Prefix
	kept     *policy.Node
	problem  error
}

// update follows what nodes say, in the order of their names, and the routes. A
// network without routes to nodes is flat, and there is no telling.
func (p *placed) update(said []*node, routes plan.Table[plan.RouteKey, plan.Route], changed bool) {
	if !changed && p.nodes != nil && len(p.routes.Diff(routes)) == 0 {
		return
	}
	p.routes = routes
	prefixes := map[string][]netip.Prefix{}
	for k, r := range routes.All() {
		if r.Node != "" && !r.EndpointsOnly && k.Network == plan.DefaultNetwork {
			prefixes[r.Node] = append(prefixes[r.Node], k.Prefix)
		}
	}
	nodes := make(map[string]place, len(said))
	list := make([]*policy.Node, 0, len(said))
	for _, n := range said {
		at, known := p.nodes[n.Name]
		if own := prefixes[n.Name]; !known || at.said != n.Node || !slices.Equal(at.prefixes, own) {
			at = place{said: n.Node, prefixes: own, kept: n.Node}
			if len(prefixes) > 0 {
				at.keep()
			}
		}
		nodes[n.Name] = at
		list = append(list, at.kept)
	}
	p.nodes = nodes
	if !slices.Equal(p.list, list) {
		p.list = list
	}
}

// keep leaves out what is not in the node's prefixes.
func (p *place) keep() {
	own := func(a netip.Addr) bool {
		return slices.ContainsFunc(p.prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
	}
	kept := *p.said
	kept.Pods = make([]policy.TaggedAddresses, 0, len(p.said.Pods))
	for _, t := range p.said.Pods {
		if i := slices.IndexFunc(t.Addresses, func(a netip.Addr) bool { return !own(a) }); i >= 0 {
			p.problem = fmt.Errorf("address %s is in no prefix that is routed to node %s, and is no pod's of that node for policies", t.Addresses[i], p.said.Name)
			t.Addresses = slices.DeleteFunc(slices.Clone(t.Addresses), func(a netip.Addr) bool { return !own(a) })
		}
		kept.Pods = append(kept.Pods, t)
	}
	if p.problem != nil {
		p.kept = &kept
	}
}
