package datapath

import (
	"net/netip"
	"slices"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/plan"
)

// Between returns the plan to go through on the way from one plan to the next, for a
// data plane that changes policies in one step and routes and egress rules after them,
// one by one. It has the policies of p, and of next's routes and egress rules those
// that keep packets from passing. So what these forbid is forbidden before next's
// policies allow it. It lets nothing pass that p does not, and what both plans let pass
// it lets pass. It is pure. Where it need not be gone through it is p itself.
//
// A prefix is taken apart where a longer one of either plan begins, so that each part
// fares alike in all of it. Egress rules are looked at scope by scope, those of an
// endpoint, of a tag and of a network. Where those of one come or go, and those of the
// next scope drop only some of what they were about, more of it may be dropped meanwhile
// than either plan drops. What another scope drops is not seen to where an endpoint gets
// another tag; nor is where packets may come from.
//
// Nothing need be seen to for an endpoint that leaves or comes: without its policies it
// has no interface that is up. It costs in proportion to the changes and to the entries
// within changed prefixes; and where egress rules change, to those of the scopes that they
// hide.
//
// Both must be valid, and what is returned is.
func Between(p, next *plan.Plan) *plan.Plan {
	if p == nil || next == nil {
		return p
	}
	b := newBetween(p, next)
	b.through()
	if len(p.Routes.Diff(b.plan.Routes))+len(p.Egress.Diff(b.plan.Egress)) == 0 {
		return p
	}
	return &b.plan
}

// between is a plan on its way to the one between two.
type between struct {
	plan       plan.Plan
	from, next *plan.Plan
	// dropping are the destinations that a plan's egress rules of the same sources drop,
	// in order.
	dropping map[sourcesIn][]netip.Prefix
	// looked is how many entries were looked at.
	looked int
}

// sourcesIn are the sources of egress rules of a plan.
type sourcesIn struct {
	in *plan.Plan
	of plan.EgressKey
}

func newBetween(p, next *plan.Plan) *between {
	return &between{plan: *p, from: p, next: next, dropping: map[sourcesIn][]netip.Prefix{}}
}

func (b *between) through() {
	changes := b.from.Diff(b.next)
	if len(changes.Endpoints)+len(changes.Tags)+len(changes.Classes)+len(changes.Within)+len(changes.Verdicts) == 0 {
		return
	}
	b.routes(changes)
	b.egress(changes.Egress)
}

// routes closes the parts of changed prefixes that lead nowhere in the next plan.
func (b *between) routes(changes plan.Diff) {
	var all []plan.RouteKey
	for _, c := range changes.Routes {
		if !b.leaves(c) {
			all = append(all, c.Key)
		}
	}
	if changes.Local {
		all = append(all, poolsOf(b.from)...)
		all = append(all, poolsOf(b.next)...)
	}
	slices.SortFunc(all, plan.RouteKey.Compare)
	var last plan.RouteKey
	for _, k := range all {
		if k.Network == last.Network && last.Prefix.IsValid() && contains(last.Prefix, k.Prefix) {
			continue // which was taken apart whole
		}
		last = k
		for _, part := range b.partsOfRoutes(k) {
			b.looked++
			b.route(part)
		}
	}
}

// leaves reports whether a route goes with the endpoint that it leads to.
func (b *between) leaves(c plan.Change[plan.RouteKey, plan.Route]) bool {
	if c.New != nil || c.Old.Way != plan.ToEndpoint {
		return false
	}
	_, stays := b.next.Endpoints.Get(plan.EndpointKey{Interface: c.Old.Interface})
	return !stays
}

func poolsOf(p *plan.Plan) []plan.RouteKey {
	var all []plan.RouteKey
	for _, pool := range p.Local.Pools {
		all = append(all, plan.RouteKey{Network: pool.Network, Prefix: pool.Prefix})
	}
	return all
}

// partsOfRoutes returns a prefix and all within it that either plan says something of,
// each before those within it.
func (b *between) partsOfRoutes(k plan.RouteKey) []plan.RouteKey {
	parts := []plan.RouteKey{k}
	for _, p := range []*plan.Plan{b.from, b.next} {
		for part := range p.Routes.From(k) {
			if part.Network != k.Network || !contains(k.Prefix, part.Prefix) {
				break
			}
			parts = append(parts, part)
		}
		for _, pool := range poolsOf(p) {
			if pool.Network == k.Network && contains(k.Prefix, pool.Prefix) {
				parts = append(parts, pool)
			}
		}
	}
	slices.SortFunc(parts, plan.RouteKey.Compare)
	return slices.Compact(parts)
}

// route sees to what of a prefix is in none of its parts.
func (b *between) route(k plan.RouteKey) {
	// By whether it is what endpoints send.
	var shut, closed, open [2]bool
	views := []bool{false, true}
	for i, fromEndpoint := range views {
		is, was := !nowhere(b.next, k, fromEndpoint), !nowhere(b.from, k, fromEndpoint)
		shut[i], closed[i], open[i] = was && !is, !was || !is, was && is
	}
	if shut[0] || shut[1] {
		b.plan.Routes = b.plan.Routes.Delete(k)
		// Where next has no route at all, none is left now.
		all, own := closed[0] && !nowhere(&b.plan, k, false), closed[1] && !nowhere(&b.plan, k, true)
		if all || own {
			_, r, _ := b.next.RouteAround(k.Network, k.Prefix, true)
			b.plan.Routes = b.plan.Routes.Set(k, plan.Route{Way: plan.ToDrop, EndpointsOnly: !all, Origin: r.Origin})
		}
		if open[1] && !all && nowhere(&b.plan, k, true) {
			if r, ok := b.forEndpoints(k); ok {
				b.plan.Routes = b.plan.Routes.Set(k, r)
			}
		}
		return
	}
	// What goes on within a prefix that is closed from now on goes on as it did. A route
	// that is everybody's is endpoints', too.
	for i, fromEndpoint := range views {
		if open[i] && nowhere(&b.plan, k, fromEndpoint) && !nowhere(b.from, k, true) {
			_, r, _ := b.from.RouteAround(k.Network, k.Prefix, fromEndpoint)
			b.plan.Routes = b.plan.Routes.Set(k, r)
		}
	}
}

// forEndpoints returns a route for endpoints only that leads as one of the plans does. There
// are such of peers alone.
func (b *between) forEndpoints(k plan.RouteKey) (plan.Route, bool) {
	for _, p := range []*plan.Plan{b.from, b.next} {
		_, r, _ := p.RouteAround(k.Network, k.Prefix, true)
		if len(r.Peers) > 0 && !slices.ContainsFunc(r.Peers, func(name string) bool { return !b.from.Peer(name).Equal(p.Peer(name)) }) &&
			(p == b.from || b.from.Local.Equal(p.Local) && len(b.from.Networks.Diff(p.Networks)) == 0) {
			r.EndpointsOnly = true
			return r, true
		}
	}
	return plan.Route{}, false
}

// nowhere reports whether a plan's routes lead nowhere for what of a prefix is in no
// longer one: what is in a pool, and has no route there, is nowhere.
func nowhere(p *plan.Plan, of plan.RouteKey, fromEndpoint bool) bool {
	k, r, ok := p.RouteAround(of.Network, of.Prefix, fromEndpoint)
	return !ok || r.Way == plan.ToDrop || slices.ContainsFunc(p.Local.Pools, func(pool plan.Pool) bool {
		return pool.Network == of.Network && contains(pool.Prefix, of.Prefix) && k.Prefix.Bits() < pool.Prefix.Bits()
	})
}

// egress closes the parts of changed destinations that the next plan drops. A wider
// scope's come before a narrower's, which hide them.
func (b *between) egress(changes []plan.Change[plan.EgressKey, plan.Egress]) {
	var last plan.EgressKey
	for _, c := range changes {
		if !b.stays(c.Key) || c.Key.Sources() == last.Sources() && contains(last.Destination, c.Key.Destination) {
			continue
		}
		last = c.Key
		for _, part := range b.partsOfEgress(c.Key) {
			b.looked++
			b.rule(part)
		}
	}
}

// stays reports whether a rule is not one of an endpoint that leaves or comes.
func (b *between) stays(k plan.EgressKey) bool {
	if k.Interface == "" {
		return true
	}
	_, was := b.from.Endpoints.Get(plan.EndpointKey{Interface: k.Interface})
	_, is := b.next.Endpoints.Get(plan.EndpointKey{Interface: k.Interface})
	return was && is
}

// partsOfEgress is partsOfRoutes for the rules of the same sources.
func (b *between) partsOfEgress(k plan.EgressKey) []plan.EgressKey {
	parts := []plan.EgressKey{k}
	for _, p := range []*plan.Plan{b.from, b.next} {
		for part := range p.Egress.From(k) {
			if part.Sources() != k.Sources() || !contains(k.Destination, part.Destination) {
				break
			}
			parts = append(parts, part)
		}
	}
	slices.SortFunc(parts, plan.EgressKey.Compare)
	return slices.Compact(parts)
}

// rule sees to what of a destination is in none of its parts.
func (b *between) rule(k plan.EgressKey) {
	_, was, wasThere := b.from.EgressAround(k)
	_, is, isThere := b.next.EgressAround(k)
	set := func(e plan.Egress) { b.plan.Egress = b.plan.Egress.Set(k, e) }
	closed := func() bool {
		_, e, ok := b.plan.EgressAround(k)
		return ok && e.Action == plan.Discard
	}
	switch {
	case wasThere && was.Action == plan.Discard:
		// It stays so.
	case isThere && is.Action == plan.Discard:
		set(is)
	case isThere && wasThere:
		if closed() {
			set(was)
		}
	case wasThere:
		// What wider scopes say then, of which the plan between has what next's drop.
		if b.dropsBelow(b.next, k) {
			b.plan.Egress = b.plan.Egress.Delete(k)
		} else if closed() {
			set(was)
		}
	case !b.dropsBelow(b.from, k) && is.Action != plan.ViaNode && (closed() || b.dropsBelow(b.next, k)):
		set(is)
	}
}

// dropsBelow reports whether a plan's rules of the scopes that a rule hides drop some of
// its destination.
func (b *between) dropsBelow(p *plan.Plan, k plan.EgressKey) bool {
	var below []plan.EgressKey
	if k.Interface != "" {
		e, _ := p.Endpoints.Get(plan.EndpointKey{Interface: k.Interface})
		below = append(below, plan.EgressKey{Network: k.Network, Tagged: true, Tag: e.Tag})
	}
	if k.Interface != "" || k.Tagged {
		below = append(below, plan.EgressKey{Network: k.Network})
	}
	for _, of := range below {
		drops := b.dropped(sourcesIn{p, of})
		of.Destination = k.Destination
		_, e, ok := p.EgressAround(of)
		if ok && e.Action == plan.Discard {
			return true
		}
		i, _ := slices.BinarySearchFunc(drops, k.Destination, comparePrefixes)
		if i < len(drops) && contains(k.Destination, drops[i]) {
			return true
		}
		if ok {
			return false // and hides the next
		}
	}
	return false
}

// dropped returns the destinations that rules of the same sources drop, in order.
func (b *between) dropped(of sourcesIn) []netip.Prefix {
	all, known := b.dropping[of]
	if known {
		return all
	}
	for k, e := range of.in.Egress.From(of.of) {
		if k.Sources() != of.of {
			break
		}
		b.looked++
		if e.Action == plan.Discard {
			all = append(all, k.Destination)
		}
	}
	b.dropping[of] = all
	return all
}

// comparePrefixes is the order of destinations in a table: a prefix comes before all that
// it contains.
func comparePrefixes(a, b netip.Prefix) int {
	return plan.EgressKey{Destination: a}.Compare(plan.EgressKey{Destination: b})
}

// contains reports whether a prefix is another, or contains it.
func contains(p, o netip.Prefix) bool { return p == o || interval.Covers(p, o) }
