package datapath

import (
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// Between returns the plan to go through on the way from one plan to the next, for a
// data plane that changes policies in one step and routes and egress rules after them,
// one by one. It has the policies of p, and of next's routes and egress rules those
// that keep packets from passing. So what these forbid is forbidden before next's
// policies allow it. What both plans let pass it lets pass. It is pure. Where it need not
// be gone through it is p itself.
//
// Egress rules are looked at scope by scope, those of an endpoint, of a tag and of a
// network. Where a change lets those of one scope hide less of another's, or gives an
// endpoint another tag, what the other scope drops is not seen to; nor is it where
// packets may come from.
//
// Both must be valid, and what is returned is.
func Between(p, next *plan.Plan) *plan.Plan {
	if p == nil || next == nil {
		return p
	}
	changes := p.Diff(next)
	if len(changes.Endpoints)+len(changes.Tags)+len(changes.Classes)+len(changes.Within)+len(changes.Verdicts) == 0 ||
		len(changes.Routes)+len(changes.Egress) == 0 {
		return p
	}
	b := &between{plan: *p, from: p, next: next}
	b.routes(changes.Routes)
	b.egress(changes.Egress)
	if !b.changed {
		return p
	}
	return &b.plan
}

type between struct {
	plan       plan.Plan
	from, next *plan.Plan
	changed    bool
}

func (b *between) routes(changes []plan.Change[plan.RouteKey, plan.Route]) {
	var closed []plan.RouteKey
	set := func(k plan.RouteKey, r plan.Route) { b.plan.Routes, b.changed = b.plan.Routes.Set(k, r), true }
	for _, c := range changes {
		switch {
		case c.New == nil:
			// What a shorter prefix says then.
			if c.Old.Way != plan.ToDrop && dropped(b.next, c.Key.Network, c.Key.Prefix.Addr(), c.Old.EndpointsOnly) {
				b.plan.Routes, b.changed = b.plan.Routes.Delete(c.Key), true
				closed = append(closed, c.Key)
			}
		case c.New.Way == plan.ToDrop:
			set(c.Key, *c.New)
			closed = append(closed, c.Key)
		}
	}
	// What goes on within prefixes that are dropped as a whole from now on.
	for _, c := range changes {
		if c.New == nil || c.Old != nil || c.New.Way == plan.ToDrop || !b.refersWell(*c.New) {
			continue
		}
		open := !dropped(b.from, c.Key.Network, c.Key.Prefix.Addr(), true)
		for _, k := range closed {
			if open && k.Network == c.Key.Network && within(c.Key.Prefix, k.Prefix) {
				set(c.Key, *c.New)
			}
		}
	}
}

// dropped reports whether a plan's routes lead nowhere for an address: what is in a
// pool, and has no route there, is nowhere.
func dropped(p *plan.Plan, network string, a netip.Addr, fromEndpoint bool) bool {
	k, r, ok := p.Route(network, a, fromEndpoint)
	return !ok || r.Way == plan.ToDrop || slices.ContainsFunc(p.Local.Pools, func(pool plan.Pool) bool {
		return pool.Network == network && pool.Prefix.Contains(a) && k.Prefix.Bits() < pool.Prefix.Bits()
	})
}

// refersWell reports whether all that a route speaks of is in the plan.
func (b *between) refersWell(r plan.Route) bool {
	for _, name := range r.Peers {
		if _, ok := b.from.Peers.Get(plan.PeerKey{Name: name}); !ok {
			return false
		}
	}
	_, ok := b.from.Endpoints.Get(plan.EndpointKey{Interface: r.Interface})
	return ok || r.Way != plan.ToEndpoint
}

func (b *between) egress(changes []plan.Change[plan.EgressKey, plan.Egress]) {
	var closed []plan.EgressKey
	set := func(k plan.EgressKey, e plan.Egress) { b.plan.Egress, b.changed = b.plan.Egress.Set(k, e), true }
	of := func(p *plan.Plan, k plan.EgressKey) (plan.Egress, bool) {
		tag := k.Tag
		if e, ok := p.Endpoints.Get(plan.EndpointKey{Interface: k.Interface}); ok {
			tag = e.Tag
		}
		_, e, ok := p.EgressOf(k.Network, k.Interface, tag, k.Destination.Addr())
		return e, ok
	}
	known := func(k plan.EgressKey) bool {
		_, ok := b.from.Endpoints.Get(plan.EndpointKey{Interface: k.Interface})
		return ok || k.Interface == ""
	}
	for _, c := range changes {
		switch {
		case c.New == nil:
			if e, ok := of(b.next, c.Key); c.Old.Action != plan.Discard && ok && e.Action == plan.Discard {
				b.plan.Egress, b.changed = b.plan.Egress.Delete(c.Key), true
				closed = append(closed, c.Key)
			}
		case c.New.Action == plan.Discard && known(c.Key):
			set(c.Key, *c.New)
			closed = append(closed, c.Key)
		}
	}
	for _, c := range changes {
		if c.New == nil || c.Old != nil || c.New.Action == plan.Discard || c.New.Action == plan.ViaNode || !known(c.Key) {
			continue
		}
		for _, k := range closed {
			scope := k
			scope.Destination = c.Key.Destination
			if scope == c.Key && !b.drops(c.Key) && within(c.Key.Destination, k.Destination) {
				set(c.Key, *c.New)
			}
		}
	}
}

// drops reports whether p drops some of what a new rule would let pass: by what holds
// for its destination in its own scope, or by any rule of another scope.
func (b *between) drops(k plan.EgressKey) bool {
	longest, dropped := -1, false
	for other, e := range b.from.Egress.All() {
		bits := other.Destination.Bits()
		scope := other
		scope.Destination = k.Destination
		switch {
		case other.Network != k.Network || !other.Destination.Overlaps(k.Destination):
		case scope != k:
			if e.Action == plan.Discard {
				return true
			}
		case bits > longest && bits <= k.Destination.Bits():
			longest, dropped = bits, e.Action == plan.Discard
		}
	}
	return dropped
}

// within reports whether a prefix is a longer one of another.
func within(p, of netip.Prefix) bool { return p.Bits() > of.Bits() && of.Contains(p.Addr()) }
