// Package service compiles Services and what is behind them, as Kubernetes has both, to
// the tables Services, Backends and Sources of a node's plan. It is pure, and knows neither
// who loads the tables nor what else is in the plan.
//
// Of each port of a Service it makes a set of backends, and frontends that name it: at the
// cluster's addresses, at ports of the node, and at addresses outside. Where the Service
// says that only the node's own endpoints are to be used, that is a second set. All
// endpoints that are still there are in the set; those that get no connections any more
// have weight 0 and keep the ones that they have.
//
// Start reading at Compiler; read.go has what is read of a Service, endpoints.go who may be
// chosen, frontends.go at which addresses.
package service

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// Kinds are the kinds that are read.
var Kinds = []*registry.Kind{api.Service, api.EndpointSlice, api.Node}

// Node is what is known of the node.
type Node struct {
	Name string
	// Addresses are the node's own, where ports of nodes are.
	Addresses []netip.Addr
}

// Tables are those of a plan that Services make.
type Tables struct {
	Services plan.Table[plan.ServiceKey, plan.Service]
	Backends plan.Table[plan.BackendKey, plan.Backend]
	Sources  plan.Table[plan.SourceKey, plan.Source]
}

// Problem is what of a Service cannot be done.
type Problem struct {
	Kind *registry.Kind
	Key  registry.Key
	// Message names the value and says what to do.
	Message string
}

// Compiler compiles the tables of one node, one after the other. It is not safe for
// concurrent use. The zero Compiler knows nothing yet.
type Compiler struct {
	services derived.List[*service]
	slices   derived.List[*slice]
	behind   map[registry.Key][]*slice // of each Service, in the order of their names
	node     view
	compiled map[registry.Key]*compiled
	claims   map[plan.ServiceKey][]*claim
	// contested are the claims that several Services have, troubled the Services of which,
	// or of whose endpoints, something cannot be done.
	contested map[plan.ServiceKey]bool
	troubled  map[registry.Key]bool
	tables    Tables
}

// view is the node as the frontends see it.
type view struct {
	Node
	zone string
}

func (v view) equal(o view) bool {
	return v.Name == o.Name && v.zone == o.zone && slices.Equal(v.Addresses, o.Addresses)
}

// Compile returns the tables that follow from objects, and what cannot be done, in the
// order of the Services. It costs in proportion to what changed since the last call, where
// the objects that did not change are the same pointers; only to find these it looks at all.
func (c *Compiler) Compile(objects registry.Objects, node Node) (Tables, []Problem) {
	now := view{Node: node}
	if n := registry.GetAs[*corev1.Node](objects, api.Node, registry.Key{Name: node.Name}); n != nil {
		now.zone = n.Labels[corev1.LabelTopologyZone]
	}
	changed := make(map[registry.Key]bool)
	gone, came := c.services.Update(objects.All(api.Service), readService, compareServices)
	for _, s := range slices.Concat(gone, came) {
		changed[s.key] = true
	}
	if c.behind == nil {
		c.behind, c.compiled, c.claims = make(map[registry.Key][]*slice), make(map[registry.Key]*compiled), make(map[plan.ServiceKey][]*claim)
		c.contested, c.troubled = make(map[plan.ServiceKey]bool), make(map[registry.Key]bool)
	}
	left, arrived := c.slices.Update(objects.All(api.EndpointSlice), readSlice, compareSlices)
	for _, s := range left {
		changed[s.of] = true
		c.behind[s.of] = slices.DeleteFunc(c.behind[s.of], func(o *slice) bool { return o == s })
		if len(c.behind[s.of]) == 0 {
			delete(c.behind, s.of)
		}
	}
	for _, s := range arrived {
		changed[s.of] = true
		i, _ := slices.BinarySearchFunc(c.behind[s.of], s, compareSlices)
		c.behind[s.of] = slices.Insert(c.behind[s.of], i, s)
	}
	if !now.equal(c.node) {
		c.node = now
		for _, s := range c.services.All() {
			changed[s.key] = true
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(changed), registry.Key.Compare) {
		c.replace(key)
	}
	return c.tables, c.problems()
}

// replace compiles a Service anew, or takes it out.
func (c *Compiler) replace(key registry.Key) {
	before := c.compiled[key]
	var now *compiled
	all := c.services.All()
	if i, found := slices.BinarySearchFunc(all, key, func(s *service, k registry.Key) int { return s.key.Compare(k) }); found {
		now = compile(all[i], c.behind[key], c.node)
	}
	if before != nil {
		c.withdraw(before)
		for k := range before.backends {
			if now == nil || !has(now.backends, k) {
				c.tables.Backends = c.tables.Backends.Delete(k)
			}
		}
		for k := range before.sources {
			if now == nil || !has(now.sources, k) {
				c.tables.Sources = c.tables.Sources.Delete(k)
			}
		}
		delete(c.compiled, key)
		delete(c.troubled, key)
	}
	if now == nil {
		return
	}
	c.compiled[key] = now
	if len(now.problems) > 0 || slices.ContainsFunc(c.behind[key], func(s *slice) bool { return len(s.problems) > 0 }) {
		c.troubled[key] = true
	}
	c.claim(now)
	for k, b := range now.backends {
		c.tables.Backends = c.tables.Backends.Set(k, b)
	}
	for k, s := range now.sources {
		c.tables.Sources = c.tables.Sources.Set(k, s)
	}
}

func has[K comparable, V any](m map[K]V, k K) bool {
	_, ok := m[k]
	return ok
}

func (c *Compiler) problems() (all []Problem) {
	about := maps.Clone(c.troubled)
	for key := range c.contested {
		for _, loser := range c.claims[key][1:] {
			about[loser.by.key] = true
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(about), registry.Key.Compare) {
		s := c.compiled[key]
		for _, text := range slices.Concat(s.problems, c.lost(s)) {
			all = append(all, Problem{api.Service, key, text})
		}
		for _, b := range c.behind[key] {
			for _, text := range b.problems {
				all = append(all, Problem{api.EndpointSlice, b.key, text})
			}
		}
	}
	return all
}

// compiled is what a Service makes.
type compiled struct {
	*service
	claims   []*claim
	backends map[plan.BackendKey]plan.Backend
	sources  map[plan.SourceKey]plan.Source
}

func compile(s *service, behind []*slice, node view) *compiled {
	c := &compiled{service: s, backends: make(map[plan.BackendKey]plan.Backend), sources: make(map[plan.SourceKey]plan.Source)}
	for _, p := range s.ports {
		c.port(p, endpointsOf(p, behind, node), node)
	}
	for _, a := range s.clusterIPs {
		c.add(claim{rank: rankClusterIP, key: plan.ServiceKey{Network: plan.DefaultNetwork, Address: a},
			values: map[plan.Scope]plan.Service{plan.Anywhere: {Origin: s.origin}}})
	}
	for _, p := range s.sources {
		c.sources[plan.SourceKey{Network: plan.DefaultNetwork, Name: s.name, Prefix: p}] = plan.Source{Origin: s.origin}
	}
	return c
}

// port adds what a port of the Service makes.
func (c *compiled) port(p port, all []endpoint, node view) {
	set := c.name
	if p.name != "" {
		set += ":" + p.name
	}
	everywhere, here := choose(all, node.hinted), choose(onNode(all, node.Name), every)
	c.putBackends(set, p, all, everywhere)
	if c.internalLocal || c.externalLocal {
		c.putBackends(localSet(set), p, onNode(all, node.Name), here)
	}
	for _, at := range c.frontends(p, node) {
		v := plan.Service{Set: set, Affinity: c.affinity, Origin: c.origin, Sources: at.sources}
		// Where nobody is here and somebody elsewhere, others may come to know of it.
		local := v
		local.Set = localSet(set)
		if len(familyOf(here, at.address)) == 0 && len(familyOf(everywhere, at.address)) > 0 {
			local.Otherwise = plan.Silence
		}
		values := make(map[plan.Scope]plan.Service, 2)
		switch {
		case at.rank == rankClusterIP && c.internalLocal:
			local.Masquerade = plan.FromStrangers
			values[plan.Anywhere] = local
		case at.rank == rankClusterIP:
			v.Masquerade = plan.FromStrangers
			values[plan.Anywhere] = v
		case at.address.IsLoopback():
			values[plan.Inside] = v
		case c.externalLocal:
			values[plan.Inside], values[plan.Outside] = v, local
		default:
			v.Masquerade = plan.FromAll
			values[plan.Anywhere] = v
		}
		c.add(claim{rank: at.rank, values: values,
			key: plan.ServiceKey{Network: plan.DefaultNetwork, Address: at.address, Protocol: p.protocol, Port: at.port}})
	}
}

func localSet(set string) string { return set + "/local" }

func (c *compiled) putBackends(set string, p port, all, chosen []endpoint) {
	weights := make(map[netip.AddrPort]uint16, len(chosen))
	for _, e := range chosen {
		weights[e.at] = 1
	}
	for _, e := range all {
		weight := weights[e.at]
		// Who speaks UDP cannot tell that nobody answers any more, as one of TCP can.
		if weight == 0 && p.protocol == plan.UDP && !e.serving {
			continue
		}
		c.backends[plan.BackendKey{Network: plan.DefaultNetwork, Set: set, Address: e.at.Addr(), Port: e.at.Port()}] =
			plan.Backend{Node: e.node, Weight: weight, Origin: e.origin}
	}
}

func compareServices(a, b *service) int { return a.key.Compare(b.key) }

func compareSlices(a, b *slice) int {
	return cmp.Or(a.of.Compare(b.of), a.key.Compare(b.key))
}
