package networkpolicy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
)

// placed holds what other nodes say of their pods and of themselves, without what
// they cannot know: a node speaks for the addresses to which the base plan's
// routes lead by way of it. So nobody who has got hold of one node can give its
// pods' rights, or its own, to others' addresses, or take theirs.
type placed struct {
	base  *plan.Plan
	nodes map[string]place
	// list are the nodes in the order of their names. It is never changed, but
	// replaced.
	list []*policy.Node

	// listed are the machines as their Nodes say they are, machines those with the
	// addresses that they can have and what else leads to them, unbelieved says
	// why others have less. others is what the node itself says of itself.
	listed     []*listing
	others     []netip.Addr
	machines   []*policy.Machine
	kept       map[*listing]*policy.Machine
	unbelieved map[string]error
}

// place is what was made of a node's word.
type place struct {
	said     *policy.Node
	prefixes []netip.Prefix
	flat     bool
	kept     *policy.Node
	problem  error
}

// update follows what nodes say, in the order of their names, and what the base
// plan says. A network without routes to nodes, in which the node itself has no
// subnet either, is flat, and there is no telling.
func (p *placed) update(said []*node, listed []*listing, others []netip.Addr, base *plan.Plan, changed bool) {
	moved := p.base == nil || !slices.Equal(p.others, others) || leadsElsewhere(p.base, base)
	p.base, p.others = base, others
	again := moved || !slices.Equal(p.listed, listed)
	if !again && !changed {
		return
	}
	prefixes := p.prefixes()
	if again {
		p.placeMachines(listed, prefixes, moved)
	}
	if changed || moved {
		p.placePods(said, prefixes)
	}
}

// leadsElsewhere reports whether a plan leads to nodes in another way than the one
// before. The route of a pod that comes to this node, or goes, is no such change:
// no other node can have an address of this node's pools with that route or without.
func leadsElsewhere(before, after *plan.Plan) bool {
	if !before.Local.Equal(after.Local) {
		return true
	}
	return slices.ContainsFunc(before.Routes.Diff(after.Routes), func(c plan.Change[plan.RouteKey, plan.Route]) bool {
		for _, r := range []*plan.Route{c.Old, c.New} {
			if r != nil && len(r.Peers) > 0 {
				return true
			}
		}
		// The route to one address changes who has that address, and no other.
		a := c.Key.Prefix.Addr()
		return !c.Key.Prefix.IsSingleIP() || holderOf(before, a) != holderOf(after, a)
	})
}

func (p *placed) placePods(said []*node, prefixes map[string][]netip.Prefix) {
	flat := len(prefixes) == 0
	nodes := make(map[string]place, len(said))
	list := make([]*policy.Node, 0, len(said))
	for _, n := range said {
		at, known := p.nodes[n.Name]
		if own := prefixes[n.Name]; !known || at.said != n.Node || at.flat != flat || !slices.Equal(at.prefixes, own) {
			at = place{said: n.Node, prefixes: own, flat: flat, kept: n.Node}
			if !flat {
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

// prefixes returns from what nodes' pods have their addresses, by the nodes'
// names: the node's own pools, and what is routed to others.
func (p *placed) prefixes() map[string][]netip.Prefix {
	prefixes := map[string][]netip.Prefix{}
	for _, pool := range p.base.Local.Pools {
		if pool.Network == plan.DefaultNetwork {
			prefixes[p.base.Local.Node] = append(prefixes[p.base.Local.Node], pool.Prefix)
		}
	}
	for k, r := range p.base.Routes.All() {
		// What is behind several is known to be behind none of them.
		if len(r.Peers) == 1 && !r.EndpointsOnly && k.Network == plan.DefaultNetwork {
			prefixes[r.Peer()] = append(prefixes[r.Peer()], k.Prefix)
		}
	}
	return prefixes
}

// keep leaves out what is not in the node's prefixes.
func (p *place) keep() {
	own := func(a netip.Addr) bool {
		return slices.ContainsFunc(p.prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
	}
	kept := *p.said
	kept.Pods = make([]policy.TaggedAddresses, 0, len(p.said.Pods))
	var first netip.Addr
	strays := 0
	for _, t := range p.said.Pods {
		if slices.ContainsFunc(t.Addresses, func(a netip.Addr) bool { return !own(a) }) {
			for _, a := range t.Addresses {
				if !own(a) {
					first = cmp.Or(first, a)
					strays++
				}
			}
			t.Addresses = slices.DeleteFunc(slices.Clone(t.Addresses), func(a netip.Addr) bool { return !own(a) })
		}
		kept.Pods = append(kept.Pods, t)
	}
	switch strays {
	case 0:
	case 1:
		p.problem = fmt.Errorf("address %s is in no prefix that is routed to node %s, and is no pod's of that node for policies", first, p.said.Name)
	default:
		p.problem = fmt.Errorf("address %s and %d more are in no prefix that is routed to node %s, and are no pods' of that node for policies", first, strays-1, p.said.Name)
	}
	if strays > 0 {
		p.kept = &kept
	}
}

// placeMachines leaves out addresses that the base plan says are somebody else's:
// another node's, a pod's, or what no pod has yet. It adds what leads to a node
// besides: its addresses in the subnets of its pods, and, of the node itself,
// whatever it delivers to itself.
func (p *placed) placeMachines(listed []*listing, prefixes map[string][]netip.Prefix, moved bool) {
	before := p.kept
	p.listed, p.kept, p.unbelieved = listed, make(map[*listing]*policy.Machine, len(listed)), map[string]error{}
	machines := make([]*policy.Machine, 0, len(listed))
	for _, l := range listed {
		k := before[l]
		if k == nil || moved {
			// What means the same stays the same pointer.
			if now := p.placeMachine(l.Machine, prefixes[l.Name]); k == nil || !slices.Equal(k.Addresses, now.Addresses) || !slices.Equal(k.Prefixes, now.Prefixes) {
				k = now
			}
		}
		for _, a := range l.Addresses {
			if _, kept := slices.BinarySearchFunc(k.Addresses, a, netip.Addr.Compare); !kept {
				p.unbelieved[l.Name] = fmt.Errorf("its address %s is another's as routes have it, and is not the node's for policies; give each node an address of its own", a)
				break
			}
		}
		p.kept[l] = k
		machines = append(machines, k)
	}
	if !slices.Equal(p.machines, machines) {
		p.machines = machines
	}
}

// placeMachine returns a machine with what leads to it.
func (p *placed) placeMachine(said *policy.Machine, prefixes []netip.Prefix) *policy.Machine {
	m := *said
	m.Addresses = slices.DeleteFunc(slices.Clone(said.Addresses), func(a netip.Addr) bool { return !p.isOf(said.Name, a) })
	for _, prefix := range prefixes {
		m.Addresses = append(m.Addresses, plan.NodeAddressesIn(prefix)...)
	}
	if said.Name == p.base.Local.Node {
		m.Addresses = slices.Concat(m.Addresses, p.base.Local.Addresses, p.others)
		m.Prefixes = plan.NodeOnly
	}
	slices.SortFunc(m.Addresses, netip.Addr.Compare)
	m.Addresses = slices.Compact(m.Addresses)
	return &m
}

// isOf reports whether an address can be that of the node of a name.
func (p *placed) isOf(name string, a netip.Addr) bool {
	h := holderOf(p.base, a)
	return h.any || h.node == name
}

// holder is the node that can have an address, or any of them; the zero value is
// none of them.
type holder struct {
	node string
	any  bool
}

// holderOf returns who can have an address as a plan's routes lead to it.
func holderOf(p *plan.Plan, a netip.Addr) holder {
	_, r, routed := p.Route(plan.DefaultNetwork, a, true)
	switch {
	case !routed || r.Way == plan.ToGateway:
		return holder{any: true}
	case r.Way == plan.ToHost:
		return holder{node: p.Local.Node}
	}
	if len(r.Peers) > 1 {
		return holder{}
	}
	return holder{node: r.Peer()}
}
