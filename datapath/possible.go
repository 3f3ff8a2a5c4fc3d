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
// Where the data plane takes no tags from the tunnel, who is known by nothing else may do
// what a policy allows any peer, if there is none to whom it denies something, and else
// nothing.
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

// tags leaves out that they travel. Who is known by the tag that comes with his packets
// alone is of nobody then, whom no verdict allows anything: without a tag he would be of
// tag 0, which may do what others may not.
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
	believed := map[string]bool{}
	for k, peer := range f.from.Peers.All() {
		if peer.CarriesTags {
			believed[k.Name] = true
			peer.CarriesTags = false
			f.plan.Peers, f.changed = f.plan.Peers.Set(k, peer), true
		}
	}
	if len(believed) > 0 {
		f.disown(believed)
	}
}

// disown makes nobody's what is behind peers whose tags were believed, and of which the
// tables do not know who it is. What else is within that is who it was.
func (f *possibility) disown(believed map[string]bool) {
	nobody := unknownTag(f.from)
	// What denies something of some may do so of who is known by a tag alone.
	for k, v := range f.from.Verdicts.All() {
		if !v.Allow && v.Like == 0 && k.Peer != plan.AnyPeer {
			f.plan.Verdicts = f.plan.Verdicts.Set(plan.Rest(k.Policy, k.Direction, plan.ClassOf(nobody)), plan.Verdict{Origin: v.Origin})
		}
	}
	said := map[string]bool{}
	set := func(k plan.TagKey, t plan.Tag, origin string) {
		f.plan.Tags = f.plan.Tags.Set(k, plan.Tagging{Tag: t, Origin: origin})
	}
	disown := func(network string, prefix netip.Prefix, origin string) {
		k := plan.TagKey{Network: network, Prefix: prefix}
		if _, known := f.from.ClassAround(network, prefix); known {
			return
		}
		set(k, nobody, origin)
		if !said[origin] {
			said[origin] = true
			f.refuse(origin, "this data plane takes no tags from the tunnel: who is known by nothing else is of tag %d here, which no policy allows anything", nobody)
		}
	}
	leads := func(r plan.Route) bool {
		return slices.ContainsFunc(r.Peers, func(name string) bool { return believed[name] })
	}
	for k, r := range f.from.Routes.All() {
		if leads(r) {
			disown(k.Network, k.Prefix, f.from.Peer(r.Peer()).Origin)
		}
	}
	for k, peer := range f.from.Peers.All() {
		for _, end := range peer.Ends {
			if believed[k.Name] {
				disown(plan.DefaultNetwork, netip.PrefixFrom(end.VTEP, end.VTEP.BitLen()), peer.Origin)
			}
		}
	}
	keep := func(network string, prefix netip.Prefix, t plan.Tag, origin string) {
		if _, known := f.from.ClassAround(network, prefix); known {
			return
		}
		if _, now, _ := f.plan.TagAround(network, prefix); now.Tag == nobody {
			set(plan.TagKey{Network: network, Prefix: prefix}, t, origin)
		}
	}
	for k, r := range f.from.Routes.All() {
		if !leads(r) {
			e, _ := f.from.Endpoints.Get(plan.EndpointKey{Interface: r.Interface})
			keep(k.Network, k.Prefix, e.Tag, r.Origin)
		}
	}
	for _, pool := range f.from.Local.Pools {
		keep(pool.Network, pool.Prefix, 0, "")
	}
	for _, a := range f.from.Local.Addresses {
		keep(plan.DefaultNetwork, netip.PrefixFrom(a, a.BitLen()), 0, "")
	}
}

// unknownTag returns the largest tag that a plan does not speak of. It has far fewer
// entries than there are tags.
func unknownTag(p *plan.Plan) plan.Tag {
	known := map[plan.Class]bool{}
	for k, v := range p.Verdicts.All() {
		known[k.Peer], known[v.Like] = true, true
	}
	for k := range p.Within.All() {
		known[k.Class] = true
	}
	for _, m := range p.Classes.All() {
		known[m.Class] = true
	}
	for _, t := range p.Tags.All() {
		known[plan.ClassOf(t.Tag)] = true
	}
	for _, e := range p.Endpoints.All() {
		known[plan.ClassOf(e.Tag)] = true
	}
	t := plan.MaxTag
	for known[plan.ClassOf(t)] {
		t--
	}
	return t
}

func (f *possibility) endpoints() {
	for k, e := range f.from.Endpoints.All() {
		if why := f.cuts(e); len(why) > 0 {
			for _, reason := range why {
				f.refuse(e.Origin, "pod %s is cut off: %s", e.Name, reason)
			}
			f.plan.Endpoints, f.changed = f.plan.Endpoints.Delete(k), true
			continue
		}
		able := e
		able.Addresses = slices.DeleteFunc(slices.Clone(e.Addresses), func(a netip.Addr) bool { return !f.family(a) })
		if len(able.Addresses) < len(e.Addresses) {
			f.refuse(e.Origin, "pod %s is not reached under its IPv6 address: %s", e.Name, f.able.NoIPv6)
		}
		if !f.able.Bandwidth && (e.IngressRate != 0 || e.EgressRate != 0) {
			able.IngressRate, able.EgressRate = 0, 0
			f.refuse(e.Origin, "this data plane limits no bandwidth: pod %s has no limit", e.Name)
		}
		if !able.Equal(e) {
			f.plan.Endpoints, f.changed = f.plan.Endpoints.Set(k, able), true
		}
	}
}

// cuts says why an endpoint cannot be there at all.
func (f *possibility) cuts(e plan.Endpoint) []string {
	var why []string
	if !f.network(e.Network) {
		why = append(why, "this data plane knows no network of its own as "+e.Network)
	}
	if !slices.ContainsFunc(e.Addresses, f.family) {
		why = append(why, "it has no address but of IPv6, and "+f.able.NoIPv6)
	}
	return why
}

func (f *possibility) routes() {
	for k, r := range f.from.Routes.All() {
		_, there := f.plan.Endpoints.Get(plan.EndpointKey{Interface: r.Interface})
		switch {
		case !f.network(k.Network), !f.family(k.Prefix.Addr()):
			f.plan.Routes, f.changed = f.plan.Routes.Delete(k), true
		case r.Way == plan.ToEndpoint && !there:
			// What a shorter prefix says would lead packets elsewhere, and take others'
			// packets from there.
			f.plan.Routes, f.changed = f.plan.Routes.Set(k, plan.Route{Way: plan.ToDrop, Origin: r.Origin}), true
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
