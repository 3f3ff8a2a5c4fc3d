package linux

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/plan"
)

// advance compiles the changes that lead from the compiler's plan to p, and
// returns a compiler for p that asks for the same as one that compiled all of
// p would. index finds an interface that is new, 0 for none. An endpoint whose
// interface was missing gets what it needs where it is among the changes; see
// withArrived. Where more than the changed entries must be looked at it returns
// false; neither compiler can be used then.
func (c *compiler) advance(p *plan.Plan, changes plan.Diff, index func(name string) int) (*compiler, bool) {
	if changes.Local || len(changes.Networks) > 0 || c.exceptional || len(c.problems) > 0 {
		return nil, false
	}
	moved := false
	for _, change := range changes.Peers {
		switch {
		case change.Old == nil || change.New == nil:
			moved = true
		case !c.alike(*change.Old, *change.New):
			return nil, false // routes that speak of it may be as they were
		case !slices.Equal(change.Old.Plain, change.New.Plain):
			moved = true
		}
	}
	for _, r := range changes.Routes {
		if r.Old != nil && !c.alone(r.Key, *r.Old) || r.New != nil && !c.alone(r.Key, *r.New) ||
			frontendIn(c.plan, r.Key.Prefix) || frontendIn(p, r.Key.Prefix) {
			return nil, false
		}
	}
	if len(changes.Endpoints) > 0 && !slices.Equal(allSources(c.plan), allSources(p)) {
		return nil, false
	}
	next := *c
	next.plan = p
	if moved {
		next.sources = nil
	}
	for _, r := range changes.Routes {
		if r.Old != nil && matters(p, r.Key, *r.Old) || r.New != nil && matters(p, r.Key, *r.New) {
			next.sources = nil
		}
	}
	if movesHere(changes) {
		next.sources = nil
	}
	if only := c.endpointsOnlyAfter(changes.Routes); !slices.Equal(only, c.endpointsOnly) {
		next.erase = true
		next.compileRules()
		next.erase, next.endpointsOnly = false, only
		next.compileRules()
	}
	next.erase = true
	for _, e := range changes.Endpoints {
		if e.Old != nil {
			next.endpoint(e.Key, *e.Old)
		}
	}
	for _, r := range changes.Routes {
		if r.Old != nil {
			next.route(r.Key, *r.Old)
		}
	}
	for _, s := range changes.Services {
		if s.Old != nil {
			next.frontend(s.Key, *s.Old)
		}
	}
	next.erase, next.peers = false, p.Peers
	for _, e := range changes.Endpoints {
		delete(next.missing, e.Key.Interface)
		if e.New == nil {
			delete(next.node.Links, e.Key.Interface)
			continue
		}
		i := index(e.Key.Interface)
		if old, ok := next.node.Links[e.Key.Interface]; ok && old != i {
			return nil, false // it is gone, or another interface has the name
		}
		if i != 0 {
			next.node.Links[e.Key.Interface] = i
		}
		next.endpoint(e.Key, *e.New)
	}
	for _, r := range changes.Routes {
		if r.New != nil {
			next.route(r.Key, *r.New)
		}
	}
	for _, s := range changes.Services {
		if s.New != nil {
			next.frontend(s.Key, *s.New)
		}
	}
	return &next, next.conflict == nil && !next.exceptional
}

// withArrived returns the changes that lead to p, and with them the endpoints that were
// missing and whose interface is there now, and the routes to these. An entry that is the
// same in both plans is among the changes as one of which Old and New are equal.
func (c *compiler) withArrived(p *plan.Plan, changes plan.Diff, index func(name string) int) plan.Diff {
	arrived := map[string]bool{}
	for name := range c.missing {
		if _, stays := p.Endpoints.Get(plan.EndpointKey{Interface: name}); stays && index(name) != 0 {
			arrived[name] = true
		}
	}
	if len(arrived) > 0 {
		changes.Endpoints = withSame(changes.Endpoints, p.Endpoints.All(), func(k plan.EndpointKey, _ plan.Endpoint) bool { return arrived[k.Interface] })
		changes.Routes = withSame(changes.Routes, p.Routes.All(), func(_ plan.RouteKey, r plan.Route) bool { return arrived[r.Interface] })
	}
	return changes
}

// withSame returns changes, and with them the selected entries that are not among these.
func withSame[K comparable, V any](changes []plan.Change[K, V], entries iter.Seq2[K, V], selected func(K, V) bool) []plan.Change[K, V] {
	all, known := slices.Clone(changes), make(map[K]bool, len(changes))
	for _, c := range changes {
		known[c.Key] = true
	}
	for k, v := range entries {
		if selected(k, v) && !known[k] {
			all = append(all, plan.Change[K, V]{Key: k, Old: &v, New: &v})
		}
	}
	return all
}

// alike reports whether packets are handed to two peers, and taken from them, alike.
func (c *compiler) alike(a, b plan.Peer) bool {
	return slices.Equal(a.Ends, b.Ends) && !slices.ContainsFunc(interval.Families, func(is4 bool) bool {
		any := interval.Everything(is4).Addr()
		return a.NextHop(any) != b.NextHop(any)
	})
}

// alone reports whether a route can be compiled, or taken back, without
// looking at the rest of the plan.
func (c *compiler) alone(k plan.RouteKey, r plan.Route) bool {
	isPool := func(p plan.Pool) bool { return p.Prefix == k.Prefix }
	return r.Way != plan.ToGateway && r.Way != plan.ToHost && k.Prefix.Bits() > 0 &&
		(!r.EndpointsOnly || k.Prefix.IsSingleIP()) && // covers no other route
		!slices.ContainsFunc(c.plan.Local.Pools, isPool) &&
		(r.Way != plan.ToEndpoint || k.Prefix.IsSingleIP()) &&
		!slices.ContainsFunc(c.gateways, func(g netip.Prefix) bool { return interval.Covers(k.Prefix, g) }) &&
		!slices.ContainsFunc(c.endpointsOnly, func(o netip.Prefix) bool { return interval.Covers(o, k.Prefix) })
}

// endpointsOnlyAfter returns the prefixes of the routes that are only endpoints',
// after changes of routes: those that stay, then those that are new.
func (c *compiler) endpointsOnlyAfter(changes []plan.Change[plan.RouteKey, plan.Route]) []netip.Prefix {
	gone := map[netip.Prefix]bool{}
	var added []netip.Prefix
	for _, r := range changes {
		if r.Old != nil && r.Old.EndpointsOnly {
			gone[r.Key.Prefix] = true
		}
		if r.New != nil && r.New.EndpointsOnly {
			added = append(added, r.Key.Prefix)
		}
	}
	if len(gone)+len(added) == 0 {
		return c.endpointsOnly
	}
	stay := slices.DeleteFunc(slices.Clone(c.endpointsOnly), func(p netip.Prefix) bool { return gone[p] })
	return append(stay, added...)
}

// allSources are the prefixes of both families that rules may exist for.
func allSources(p *plan.Plan) []netip.Prefix {
	return slices.Concat(endpointSources(p, true), endpointSources(p, false))
}
