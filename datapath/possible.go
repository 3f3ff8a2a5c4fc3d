package datapath

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// Possible returns the plan without what a data plane of such capabilities
// cannot do at all, and what of that somebody asked for, in the order of the
// tables. It is pure. Where all can be done it returns p itself. What is left
// out carries no packets, so that nothing passes that p does not let pass.
//
// Without IPv6, what merely follows from the rest, as the way out of the
// cluster, is left out in silence; it is said that the node's pods get no
// address of a pool, and which pods lose the one that they have. p must be
// valid, and what is returned is.
func Possible(p *plan.Plan, able Capabilities) (*plan.Plan, []Refusal) {
	if p == nil {
		return nil, nil
	}
	f := possibility{able: able, from: p, plan: *p}
	f.pools()
	f.tags()
	f.endpoints()
	f.routes()
	f.egress()
	if !able.OverlappingNetworks {
		for k := range p.Networks.All() {
			if k.Name != plan.DefaultNetwork {
				f.plan.Networks, f.changed = f.plan.Networks.Delete(k), true
			}
		}
		for k := range p.Tags.All() {
			if k.Network != plan.DefaultNetwork {
				f.plan.Tags, f.changed = f.plan.Tags.Delete(k), true
			}
		}
		for k := range p.Classes.All() {
			if k.Network != plan.DefaultNetwork {
				f.plan.Classes, f.changed = f.plan.Classes.Delete(k), true
			}
		}
	}
	if !able.Services {
		for k, s := range p.Services.All() {
			f.plan.Services, f.changed = f.plan.Services.Delete(k), true
			f.refuse(s.Origin, "this data plane does no Services: %s is not there on this node", k.Line(s))
		}
	}
	if !f.changed {
		return p, nil
	}
	return &f.plan, f.refusals
}

// possibility is a plan on its way to one that can be done.
type possibility struct {
	able     Capabilities
	from     *plan.Plan
	plan     plan.Plan
	changed  bool
	refusals []Refusal
}

func (f *possibility) refuse(origin, format string, args ...any) {
	f.refusals = append(f.refusals, Refusal{Origin: origin, Message: fmt.Sprintf(format, args...)})
}

// family reports whether an address' family is done.
func (f *possibility) family(a netip.Addr) bool { return a.Is4() || f.able.IPv6 }

// network reports whether a network is done.
func (f *possibility) network(name string) bool {
	return name == plan.DefaultNetwork || f.able.OverlappingNetworks
}

func (f *possibility) pools() {
	var left []plan.Pool
	for _, pool := range f.from.Local.Pools {
		r, _ := f.from.Routes.Get(plan.RouteKey{Network: pool.Network, Prefix: pool.Prefix})
		switch {
		case !f.network(pool.Network):
			f.refuse(r.Origin, "this data plane knows no network of its own as %s: pods get no address of %s on this node", pool.Network, pool.Prefix)
		case !f.family(pool.Prefix.Addr()):
			f.refuse(r.Origin, "pods get no address of %s on this node: %s", pool.Prefix, f.able.NoIPv6)
		default:
			left = append(left, pool)
			continue
		}
		f.changed = true
	}
	f.plan.Local.Pools = left
}

// tags leaves out that they travel. Where tables do not say who an address is, it
// wears tag 0 then.
func (f *possibility) tags() {
	if f.able.Tags {
		return
	}
	tunnels := slices.Clone(f.from.Local.Tunnels)
	for i := range tunnels {
		if !tunnels[i].CarriesTags {
			continue
		}
		n, _ := f.from.Networks.Get(plan.NetworkKey{Name: plan.DefaultNetwork, Tunnel: tunnels[i].Name})
		f.refuse(n.Origin, "this data plane sends no tags through the tunnel: other nodes know those of this one's pods by their addresses")
		tunnels[i].CarriesTags, f.changed = false, true
	}
	f.plan.Local.Tunnels = tunnels
	for k, peer := range f.from.Peers.All() {
		if peer.CarriesTags {
			peer.CarriesTags = false
			f.plan.Peers, f.changed = f.plan.Peers.Set(k, peer), true
		}
	}
}

func (f *possibility) endpoints() {
	for k, e := range f.from.Endpoints.All() {
		able := e
		able.Addresses = slices.DeleteFunc(slices.Clone(e.Addresses), func(a netip.Addr) bool { return !f.family(a) })
		if !f.able.Bandwidth {
			able.IngressRate, able.EgressRate = 0, 0
		}
		switch {
		case !f.network(e.Network):
			f.refuse(e.Origin, "this data plane knows no network of its own as %s: pod %s is cut off", e.Network, e.Name)
			f.plan.Endpoints, f.changed = f.plan.Endpoints.Delete(k), true
			continue
		case len(able.Addresses) < len(e.Addresses):
			f.refuse(e.Origin, "pod %s is not reached under its IPv6 address: %s", e.Name, f.able.NoIPv6)
		case able.IngressRate != e.IngressRate || able.EgressRate != e.EgressRate:
			f.refuse(e.Origin, "this data plane limits no bandwidth: pod %s has no limit", e.Name)
		default:
			continue
		}
		f.plan.Endpoints, f.changed = f.plan.Endpoints.Set(k, able), true
	}
}

func (f *possibility) routes() {
	for k, r := range f.from.Routes.All() {
		switch {
		case !f.network(k.Network), !f.family(k.Prefix.Addr()):
			f.plan.Routes, f.changed = f.plan.Routes.Delete(k), true
		case len(r.Peers) > 1 && !f.able.Multipath:
			f.refuse(r.Origin, "this data plane shares nothing among peers: all for %s goes by way of %s", k.Prefix, r.Peer())
			r.Peers = r.Peers[:1]
			f.plan.Routes, f.changed = f.plan.Routes.Set(k, r), true
		}
	}
}

func (f *possibility) egress() {
	for k, e := range f.from.Egress.All() {
		_, there := f.plan.Endpoints.Get(plan.EndpointKey{Interface: k.Interface})
		switch {
		case !f.network(k.Network), !f.family(k.Destination.Addr()), k.Interface != "" && !there:
			f.plan.Egress, f.changed = f.plan.Egress.Delete(k), true
		case e.Action != plan.Direct && !slices.Contains(f.able.EgressActions, e.Action):
			// What a shorter prefix says would let it out another way.
			f.refuse(e.Origin, "this data plane cannot do %s: what it is about is dropped", k.Line(e))
			f.plan.Egress, f.changed = f.plan.Egress.Set(k, plan.Egress{Action: plan.Discard, Origin: e.Origin}), true
		}
	}
}
