package datapath

import (
	"net/netip"

	"github.com/weftnet/weft/plan"
)

// Between returns the plan to go through on the way from one plan to the next, for a
// data plane that changes policies in one step and routes and egress rules after them,
// one by one. It has the policies of p, and of next's routes and egress rules those
// that keep packets from passing. So what these forbid is forbidden before next's
// policies allow it. What both plans let pass it lets pass, but what an egress rule of
// another scope than one that comes to drop takes out of that. It is pure. Where it
// need not be gone through it is p itself.
//
// It does not see to rules that hold for an endpoint only by its next tag, nor to where
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
			if _, r, ok := b.next.Route(c.Key.Network, c.Key.Prefix.Addr(), c.Old.EndpointsOnly); !ok || r.Way == plan.ToDrop {
				b.plan.Routes, b.changed = b.plan.Routes.Delete(c.Key), true
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
		_, r, ok := b.from.Route(c.Key.Network, c.Key.Prefix.Addr(), true)
		for _, k := range closed {
			if ok && r.Way != plan.ToDrop && k.Network == c.Key.Network && within(c.Key.Prefix, k.Prefix) {
				set(c.Key, *c.New)
			}
		}
	}
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
			if e, ok := of(b.next, c.Key); ok && e.Action == plan.Discard {
				b.plan.Egress, b.changed = b.plan.Egress.Delete(c.Key), true
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
		e, ok := of(b.from, c.Key)
		for _, k := range closed {
			scope := k
			scope.Destination = c.Key.Destination
			if (!ok || e.Action != plan.Discard) && scope == c.Key && within(c.Key.Destination, k.Destination) {
				set(c.Key, *c.New)
			}
		}
	}
}

// within reports whether a prefix is a longer one of another.
func within(p, of netip.Prefix) bool { return p.Bits() > of.Bits() && of.Contains(p.Addr()) }
