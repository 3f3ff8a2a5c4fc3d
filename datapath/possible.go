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
// out carries no packets, and what would go there is dropped, so that nothing passes that p
// does not let pass. Only to the address of a Service that is left out packets go as routes
// say.
//
// A pod of which a part cannot be done that keeps it, or others, from harm is cut off: it
// is no endpoint, and nothing goes to it or comes from it.
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
	f := possibility{able: able, from: p, plan: *p, missing: map[string]string{}}
	f.tunnels()
	f.addresses()
	f.tags()
	f.endpoints()
	f.routes()
	f.egress()
	f.identities()
	f.services()
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
	// missing are the tunnels that are left out, each with the reason.
	missing map[string]string
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

func (f *possibility) addresses() {
	is6 := func(a netip.Addr) bool { return !f.family(a) }
	if slices.ContainsFunc(f.from.Local.Addresses, is6) {
		f.plan.Local.Addresses, f.changed = slices.DeleteFunc(slices.Clone(f.from.Local.Addresses), is6), true
		f.plan.Local.ReachedAt = slices.DeleteFunc(slices.Clone(f.from.Local.ReachedAt), is6)
	}
	var left []plan.Pool
	for _, pool := range f.from.Local.Pools {
		_, r, _ := f.from.RouteAround(pool.Network, pool.Prefix, false)
		switch {
		case !f.network(pool.Network):
			f.refuse(r.Origin, "this data plane knows no network of its own as %s: pods get no address of %s on this node", pool.Network, pool.Prefix)
		case !f.family(pool.Prefix.Addr()):
			f.refuse(r.Origin, "pods get no address of %s on this node: %s", pool.Prefix, f.able.NoIPv6)
		default:
			if _, missing := f.missing[pool.Tunnel]; missing {
				pool.Tunnel, f.changed = "", true
			}
			left = append(left, pool)
			continue
		}
		f.changed = true
	}
	f.plan.Local.Pools = left
}

// tunnels leaves out those that cannot be. Nothing comes out of them then, and routes sees
// to what would go in.
func (f *possibility) tunnels() {
	var left []plan.Tunnel
	for _, t := range f.from.Local.Tunnels {
		switch {
		case !f.able.Tunnels:
			f.missing[t.Name] = "this data plane makes no tunnels"
		case !f.family(t.VTEP):
			f.missing[t.Name] = fmt.Sprintf("tunnel %s is over IPv6, and %s", t.Name, f.able.NoIPv6)
		default:
			left = append(left, t)
			continue
		}
		f.changed = true
	}
	f.plan.Local.Tunnels = left
}

// tags leaves out that they travel. Who is known by the tag that comes with his packets
// alone is of nobody then, whom no verdict allows anything: without a tag he would be of
// tag 0, which may do what others may not.
func (f *possibility) tags() {
	if f.able.Tags {
		return
	}
	tunnels := slices.Clone(f.plan.Local.Tunnels)
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
	if len(believed) > 0 && f.able.Verdicts {
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
	if !f.able.Verdicts && (e.IngressPolicy != "" || e.EgressPolicy != "") {
		why = append(why, "this data plane enforces no policies, and it is under one")
	}
	if !f.able.AntiSpoof && e.AntiSpoof {
		why = append(why, "this data plane cannot keep it from sending with others' addresses")
	}
	return why
}

func (f *possibility) routes() {
	for k, r := range f.from.Routes.All() {
		if !f.network(k.Network) || !f.family(k.Prefix.Addr()) {
			f.plan.Routes, f.changed = f.plan.Routes.Delete(k), true
			continue
		}
		able := f.route(k, r)
		if !able.Equal(r) {
			f.plan.Routes, f.changed = f.plan.Routes.Set(k, able), true
		}
	}
}

// route returns what can be done in the place of a route. It is there in any case: by what
// a shorter prefix says, packets would go elsewhere, and others' would be taken from there.
func (f *possibility) route(k plan.RouteKey, r plan.Route) plan.Route {
	drop := plan.Route{Way: plan.ToDrop, EndpointsOnly: r.EndpointsOnly, Origin: r.Origin}
	if r.Way == plan.ToEndpoint {
		// The address is an endpoint's for all, whoever may send there.
		drop.EndpointsOnly = false
		if _, there := f.plan.Endpoints.Get(plan.EndpointKey{Interface: r.Interface}); !there {
			return drop
		}
	}
	if r.EndpointsOnly && endsHere(r.Way) && !f.able.EndpointsOnlyHere {
		f.refuse(r.Origin, "this data plane has no way of its own for pods that leads to %s: what pods send to %s is dropped", r.Way, k.Prefix)
		return drop
	}
	if r.Way == plan.ToTunnel {
		for _, name := range r.Peers {
			_, t, _ := f.from.Local.EndOf(f.from.Peer(name), k.Prefix.Addr())
			if why, missing := f.missing[t.Name]; missing {
				f.refuse(r.Origin, "%s: what is for %s, by way of %s, is dropped", why, k.Prefix, name)
				return drop
			}
		}
	}
	if len(r.Peers) > 1 && !f.able.Multipath {
		text := fmt.Sprintf("this data plane shares nothing among peers: all for %s goes by way of %s", k.Prefix, r.Peer())
		if r.Way == plan.ToTunnel {
			// Who else may send from there is who the route leads to.
			text += ", and what the others send from there is dropped"
		}
		f.refuse(r.Origin, "%s", text)
		r.Peers = r.Peers[:1]
	}
	return r
}

func (f *possibility) egress() {
	for k, e := range f.from.Egress.All() {
		_, there := f.plan.Endpoints.Get(plan.EndpointKey{Interface: k.Interface})
		switch {
		case !f.network(k.Network), !f.family(k.Destination.Addr()), k.Interface != "" && !there:
			f.plan.Egress, f.changed = f.plan.Egress.Delete(k), true
		case !f.able.does(e.Action):
			// What a shorter prefix says would let it out another way.
			f.refuse(e.Origin, "this data plane cannot do %s: what it is about is dropped", k.Line(e))
			f.plan.Egress, f.changed = f.plan.Egress.Set(k, plan.Egress{Action: plan.Discard, Origin: e.Origin}), true
		}
	}
}

// identities leaves out what says who is who, where nobody asks.
func (f *possibility) identities() {
	if !f.able.OverlappingNetworks {
		f.plan.Networks = without(f, f.plan.Networks, func(k plan.NetworkKey) bool { return !f.network(k.Name) })
		f.plan.Tags = without(f, f.plan.Tags, func(k plan.TagKey) bool { return !f.network(k.Network) })
		f.plan.Classes = without(f, f.plan.Classes, func(k plan.ClassKey) bool { return !f.network(k.Network) })
	}
	if !f.able.Verdicts {
		f.plan.Tags = without(f, f.plan.Tags, func(plan.TagKey) bool { return true })
		f.plan.Classes = without(f, f.plan.Classes, func(plan.ClassKey) bool { return true })
		f.plan.Within = without(f, f.plan.Within, func(plan.WithinKey) bool { return true })
		f.plan.Verdicts = without(f, f.plan.Verdicts, func(plan.VerdictKey) bool { return true })
	}
}

// without returns a table without the entries of some keys.
func without[K plan.TableKey[K], V plan.TableValue[V]](f *possibility, t plan.Table[K, V], of func(K) bool) plan.Table[K, V] {
	left := t
	for k := range t.All() {
		if of(k) {
			left, f.changed = left.Delete(k), true
		}
	}
	return left
}

func (f *possibility) services() {
	if f.able.Services && f.able.AnswersHere && f.able.IPv6 && (f.able.OverlappingNetworks || f.servesDefaultAlone()) {
		return // all can be done, and there may be many
	}
	for k, s := range f.from.Services.All() {
		why := ""
		switch {
		case !f.able.Services:
			why = "this data plane does no Services"
		case !f.network(k.Network):
			why = "this data plane knows no network of its own as " + k.Network
		case !f.family(k.Address):
			why = f.able.NoIPv6
		case s.Here && !f.able.AnswersHere:
			why = "this data plane does not have the node itself answer"
		default:
			continue
		}
		f.plan.Services, f.changed = f.plan.Services.Delete(k), true
		f.refuse(s.Origin, "%s: %s is not there on this node", why, k.Line(s))
	}
	// What frontends that are left out refer to is nobody's.
	f.plan.Backends = without(f, f.plan.Backends, func(k plan.BackendKey) bool {
		return !f.able.Services || !f.network(k.Network) || !f.family(k.Address)
	})
	f.plan.Sources = without(f, f.plan.Sources, func(k plan.SourceKey) bool {
		return !f.able.Services || !f.network(k.Network) || !f.family(k.Prefix.Addr())
	})
}

// servesDefaultAlone reports whether Services are of the default network alone. It looks at few of
// them, as tables have their keys in the order of their networks.
func (f *possibility) servesDefaultAlone() bool {
	const behind = plan.DefaultNetwork + "\x00"
	return defaultAlone(f.from.Services, plan.ServiceKey{Network: behind}, func(k plan.ServiceKey) string { return k.Network }) &&
		defaultAlone(f.from.Backends, plan.BackendKey{Network: behind}, func(k plan.BackendKey) string { return k.Network }) &&
		defaultAlone(f.from.Sources, plan.SourceKey{Network: behind}, func(k plan.SourceKey) string { return k.Network })
}

// defaultAlone reports whether a table has none but the default network's keys: none is from behind
// on, and the first is one of these.
func defaultAlone[K plan.TableKey[K], V plan.TableValue[V]](t plan.Table[K, V], behind K, network func(K) string) bool {
	for range t.From(behind) {
		return false
	}
	for k := range t.All() {
		return network(k) == plan.DefaultNetwork
	}
	return true
}
