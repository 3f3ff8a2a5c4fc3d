// Package judge says which connections a plan forbids, as a data plane must end those
// that are open when its policies change.
//
// A Jury judges single connections: by policies, and by egress rules that drop. MayForbid
// and MayDrop say, from the changes alone, whether there can be any to judge: most changes
// forbid nothing, and to look at all connections takes long. It is pure.
package judge

import (
	"net/netip"
	"slices"

	"github.com/weftnet/weft/datapath/profile"
	"github.com/weftnet/weft/plan"
)

// Jury judges connections as a data plane does their first packets.
type Jury struct {
	plan *plan.Plan
	// endpoints are those of the plan by address, own the node's addresses beside what
	// the plan says.
	endpoints map[plan.Address]plan.Endpoint
	own       map[plan.Address]bool
	// interfaces are those of the endpoints, where egress rules drop something.
	interfaces map[plan.Address]string
	// chosen says which sets, of those that somebody asked for, have somebody who gets connections.
	chosen map[family]bool
	belief *Belief // nil before anybody had a tag
	// sets are those that the frontends of an object name, perhaps several times, nil before
	// anybody asked. backends are who is in these, of objects that somebody asked for.
	sets     map[object][]string
	backends map[object]map[netip.AddrPort]bool
}

// object is whose frontends of a network are, by the origin that they have.
type object struct{ network, origin string }

// family is what a set has of one family.
type family struct {
	network, set string
	is4          bool
}

// hasChosen reports whether somebody of it gets connections. It looks at all of the set.
func (f family) hasChosen(p *plan.Plan) bool {
	for k, b := range p.BackendsOf(f.network, f.set) {
		if b.Weight > 0 && k.Address.Is4() == f.is4 {
			return true
		}
	}
	return false
}

// Connection is what is judged.
type Connection struct {
	// Network is the one in which its addresses mean something.
	Network  string
	Protocol plan.Protocol
	// Source and Destination are who began it and who got it, behind the translation
	// of Services. Ports are 0 for protocols without.
	Source, Destination netip.AddrPort
	// Dialled is what who began it calls the destination, before that translation, and
	// Served says that a Service made it.
	Dialled netip.AddrPort
	Served  bool
	// Tag is the one that came with its first packet through a tunnel, and Tagged
	// says whether one did.
	Tag    plan.Tag
	Tagged bool
	// Unanswered says that nothing came back yet: each packet is judged as the first.
	Unanswered bool
	// Over says that both sides have parted with it, and only late packets are waited for.
	Over bool
}

// NewJury returns a jury for a plan, on a node that has those addresses beside
// what the plan says.
func NewJury(p *plan.Plan, addresses []plan.Address) *Jury {
	j := &Jury{plan: p, endpoints: map[plan.Address]plan.Endpoint{}, own: map[plan.Address]bool{}}
	if Drops(p) {
		j.interfaces = map[plan.Address]string{}
	}
	for k, e := range p.Endpoints.All() {
		for _, ip := range e.Addresses {
			a := plan.Address{Network: e.Network, IP: ip}
			if j.endpoints[a] = e; j.interfaces != nil {
				j.interfaces[a] = k.Interface
			}
		}
	}
	for _, a := range addresses {
		j.own[a] = true
	}
	return j
}

// owns reports whether an address is the node's own.
func (j *Jury) owns(a plan.Address) bool { return j.own[a] || j.plan.Owns(a.Network, a.IP) }

// Needed reports whether a plan may forbid connections: an endpoint has a policy, or an
// egress rule drops something.
func Needed(p *plan.Plan) bool { return profile.Policed(p) || Drops(p) }

// Drops reports whether an egress rule of a plan drops something.
func Drops(p *plan.Plan) bool {
	for _, e := range p.Egress.All() {
		if e.Action == plan.Discard {
			return true
		}
	}
	return false
}

// Forbids reports whether a policy denies a connection now, or an egress rule drops what
// began it.
func (j *Jury) Forbids(c Connection) bool {
	source, destination := c.source(), plan.Address{Network: c.Network, IP: c.Destination.Addr()}
	from, sends := j.endpoints[source]
	to, gets := j.endpoints[destination]
	if sends && slices.Contains(from.Addresses, destination.IP) {
		return false // to itself
	}
	denies := func(policy string, d plan.Direction, other plan.Class) bool {
		_, v, ok := j.plan.Verdict(policy, d, other, c.Protocol, c.Destination.Port())
		return !ok || !v.Allow
	}
	return sends && from.EgressPolicy != "" && denies(from.EgressPolicy, plan.Outgoing, j.classOf(destination)) ||
		gets && !j.owns(source) && to.IngressPolicy != "" && (j.lacksTag(c) || denies(to.IngressPolicy, plan.Incoming, j.sourceClass(c))) ||
		sends && !gets && !j.owns(destination) && j.drops(source, from, destination.IP)
}

// Unserved reports whether a connection's backend is none any more of the Service that it was
// begun with, or its client none of those whom the frontend is for. A frontend may come to name another
// set of the same Service: of that, a stream goes on with a backend that is in any set of the Service, as it
// ends by itself, and its backend is still there. Datagrams, which are sent without end, go to
// the frontend's own set only. They are ended also where another
// program gave them a backend that is none of the frontend's, as kube-proxy may have that is gone,
// and where they go past a frontend that has come since and has backends: without an end they
// would do so for as long as they are sent. A stream that goes past one ends as long as nobody has answered:
// its client repeats what began it, which is given a backend once the connection is forgotten, and not
// before. Of a frontend that the node itself answers now, nothing
// that is sent belongs to a connection; what had a backend ends at once all the same, or who has
// the backend's address by then could go on sending under the frontend's.
func (j *Jury) Unserved(c Connection) bool {
	if !c.Served && c.Protocol != plan.UDP && !(c.Unanswered && c.Dialled == c.Destination) {
		return false
	}
	_, s, ok := j.plan.Service(c.Network, c.Dialled.Addr(), c.Protocol, c.Dialled.Port(), j.side(c))
	if !ok && j.plan.Local.ServicesLeft {
		return false // who does Services sees to it
	}
	if s.Here {
		return c.Dialled != c.Destination
	}
	if !ok || s.Set == "" || c.Served && !j.plan.Admits(c.Network, s.Sources, c.Source.Addr()) {
		return c.Served
	}
	if !c.Served && c.Dialled == c.Destination {
		return j.choosesIn(family{c.Network, s.Set, c.Dialled.Addr().Is4()})
	}
	_, is := j.plan.Backends.Get(plan.BackendKey{Network: c.Network, Set: s.Set, Address: c.Destination.Addr(), Port: c.Destination.Port()})
	return !is && (c.Protocol == plan.UDP || s.Origin == "" || !j.behind(object{c.Network, s.Origin})[c.Destination])
}

// behind returns who is in any set that frontends of an object name.
func (j *Jury) behind(of object) map[netip.AddrPort]bool {
	if j.sets == nil {
		j.sets, j.backends = make(map[object][]string), make(map[object]map[netip.AddrPort]bool)
		for k, s := range j.plan.Services.All() {
			if s.Set != "" {
				by := object{k.Network, s.Origin}
				j.sets[by] = append(j.sets[by], s.Set)
			}
		}
	}
	if all, known := j.backends[of]; known {
		return all
	}
	all := make(map[netip.AddrPort]bool)
	slices.Sort(j.sets[of])
	for _, set := range slices.Compact(j.sets[of]) {
		for k := range j.plan.BackendsOf(of.network, set) {
			all[netip.AddrPortFrom(k.Address, k.Port)] = true
		}
	}
	j.backends[of] = all
	return all
}

// MayUnserve reports whether changes that lead from p to q may leave connections of which
// Unserved is true.
func MayUnserve(p, q *plan.Plan, changes plan.Diff) bool {
	if slices.ContainsFunc(changes.Sources, func(c plan.Change[plan.SourceKey, plan.Source]) bool { return c.New == nil }) {
		return true
	}
	for _, c := range changes.Services {
		switch {
		case c.Old != nil && c.Old.Set != "" && (c.New == nil || c.New.Set != c.Old.Set),
			c.New != nil && c.Old != nil && c.New.Sources != "" && c.New.Sources != c.Old.Sources,
			c.New != nil && c.New.Set != "" && (c.Old == nil || c.Old.Set != c.New.Set),
			c.New != nil && c.Old != nil && c.New.Origin != c.Old.Origin,
			c.New != nil && c.New.Here && (c.Old == nil || !c.Old.Here):
			return true
		}
	}
	first := map[family]bool{}
	for _, c := range changes.Backends {
		if c.New == nil {
			return true
		}
		if c.New.Weight > 0 && (c.Old == nil || c.Old.Weight == 0) {
			first[family{c.Key.Network, c.Key.Set, c.Key.Address.Is4()}] = true
		}
	}
	for set := range first {
		if !set.hasChosen(p) {
			return true
		}
	}
	return false
}

// choosesIn is hasChosen of the plan, which looks once, as very many connections may ask.
func (j *Jury) choosesIn(of family) bool {
	is, known := j.chosen[of]
	if !known {
		if is = of.hasChosen(j.plan); j.chosen == nil {
			j.chosen = make(map[family]bool)
		}
		j.chosen[of] = is
	}
	return is
}

// source is who began the connection.
func (c Connection) source() plan.Address {
	return plan.Address{Network: c.Network, IP: c.Source.Addr()}
}

// drops reports whether what an endpoint sends to an address off the node is dropped.
func (j *Jury) drops(from plan.Address, e plan.Endpoint, to netip.Addr) bool {
	if j.interfaces == nil {
		return false
	}
	_, rule, ok := j.plan.EgressOf(e.Network, j.interfaces[from], e.Tag, to)
	return ok && rule.Action == plan.Discard
}

// lacksTag reports whether a connection began before tags were kept, and is judged by the
// tag that it has not: nothing passes until it begins anew.
func (j *Jury) lacksTag(c Connection) bool {
	if c.Tagged || !c.Unanswered || !j.believes(c.source()) {
		return false
	}
	_, known := j.plan.ClassAt(c.Network, c.Source.Addr())
	return !known
}

// believes reports whether the tag is believed of what comes from an address.
func (j *Jury) believes(a plan.Address) bool {
	if j.belief == nil {
		j.belief = BeliefOf(j.plan)
	}
	_, local := j.endpoints[a]
	return !local && j.belief.In(a)
}

// sourceClass is what policies see who began a connection as.
func (j *Jury) sourceClass(c Connection) plan.Class {
	a := c.source()
	if !c.Tagged || !j.believes(a) {
		return j.classOf(a)
	}
	if class, ok := j.plan.ClassAt(a.Network, a.IP); ok {
		return class
	}
	return plan.ClassOf(c.Tag)
}

// classOf is what policies see an address as.
func (j *Jury) classOf(a plan.Address) plan.Class {
	if c, ok := j.plan.ClassAt(a.Network, a.IP); ok {
		return c
	}
	return plan.ClassOf(j.endpoints[a].Tag)
}

// MayDrop reports whether there can be connections that p allows and q, to which the
// changes lead, forbids by egress rules. Where it would cost more than the changes to be
// sure, it says so.
func MayDrop(p, q *plan.Plan, changes plan.Diff) bool {
	loosened := false
	for _, c := range changes.Egress {
		switch {
		case c.New != nil && c.New.Action == plan.Discard && (c.Old == nil || c.Old.Action != plan.Discard):
			return true
		case c.New == nil && c.Old.Action != plan.Discard:
			loosened = true // what holds around it may drop
		}
	}
	for _, c := range changes.Endpoints {
		// Of who comes with an address there are no connections yet.
		loosened = loosened || c.Old != nil && c.New != nil && (c.Old.Tag != c.New.Tag || c.Old.Network != c.New.Network)
	}
	return loosened && Drops(q)
}

// MayForbid reports whether there can be connections that p allows and q, to
// which the changes lead, forbids by policies, and by something other than a change of
// whose tags are believed: see Belief. Both describe the node itself in the same
// way. It costs in proportion to the changes and the endpoints; where it would
// cost more to be sure, it says so.
//
// The kernel looks up one map after the other, and a change can come between two
// lookups of one packet. So there can also be connections that neither p nor q
// allows: those of an address that p gives a class of which q says more, and those of
// one of which p and q say different things, and that was taken for any peer.
func MayForbid(p, q *plan.Plan, changes plan.Diff) bool {
	named := profile.PoliciesNamed(q)
	if len(named) == 0 {
		return false
	}
	before, after := NewJury(p, nil), NewJury(q, nil)
	var addresses []plan.Address // of which something changed
	for _, c := range changes.Endpoints {
		for _, e := range []*plan.Endpoint{c.Old, c.New} {
			if e == nil {
				continue
			}
			for _, ip := range e.Addresses {
				addresses = append(addresses, plan.Address{Network: e.Network, IP: ip})
			}
		}
	}
	for _, a := range addresses {
		was, is := before.endpoints[a], after.endpoints[a]
		if len(profile.PoliciesOf(is)) > 0 && !slices.Equal(is.Addresses, was.Addresses) ||
			is.IngressPolicy != "" && is.IngressPolicy != was.IngressPolicy ||
			is.EgressPolicy != "" && is.EgressPolicy != was.EgressPolicy {
			return true
		}
	}
	for _, c := range p.ClassChanges(q, changes) {
		if !c.Key.Prefix.IsSingleIP() {
			return true
		}
		addresses = append(addresses, plan.Address{Network: c.Key.Network, IP: c.Key.Prefix.Addr()})
	}
	type step struct{ from, to plan.Class }
	steps := map[step]bool{}
	for _, a := range addresses {
		if s := (step{before.classOf(a), after.classOf(a)}); s.from != s.to {
			steps[s] = true
		}
	}
	for _, c := range changes.Within {
		steps[step{c.Key.Class, c.Key.Class}] = true
	}
	left := mostCompared
	// open says of policies that were asked whether they allow something of any peer.
	open := map[profile.PolicyKey]bool{}
	// slips reports whether a connection with one that was of a class, and is of another or the
	// same, may begin though it is forbidden if its packet was judged as of a class that
	// it was of, of one around that, or of any peer.
	slips := func(policy profile.PolicyKey, was, is plan.Class) bool {
		torn := []plan.Class{was}
		for _, t := range []plan.Class{was, is} {
			if of := (profile.PeerKey{PolicyKey: policy, Peer: t}); len(profile.Entries(p, of)) > 0 && len(profile.Entries(q, of)) > 0 {
				continue // that is what counts, now as before
			}
			for _, in := range []*plan.Plan{p, q} {
				if w, ok := in.Within.Get(plan.WithinKey{Class: t}); ok && !slices.Contains(torn, w.Class) {
					torn = append(torn, w.Class)
				}
			}
		}
		if _, asked := open[policy]; !asked {
			open[policy] = slices.ContainsFunc(profile.Entries(q, profile.PeerKey{PolicyKey: policy, Peer: plan.AnyPeer}), func(e profile.Entry) bool { return e.Value.Allow })
		}
		if open[policy] {
			torn = append(torn, plan.AnyPeer)
		}
		return slices.ContainsFunc(torn, func(t plan.Class) bool { return t != is && narrows(q, q, policy, t, is, &left) })
	}
	for s := range steps {
		for policy := range named {
			if narrows(p, q, policy, s.from, s.to, &left) || slips(policy, s.from, s.to) {
				return true
			}
		}
	}
	// What changes for any peer, or for one that others are like, is told by that
	// alone: who has no other verdict is what it holds for.
	touched := map[profile.PeerKey]bool{}
	for _, c := range changes.Verdicts {
		touched[profile.PeerOf(c.Key)] = true
	}
	for k := range touched {
		if named[k.PolicyKey] && (narrows(p, q, k.PolicyKey, k.Peer, k.Peer, &left) || slips(k.PolicyKey, k.Peer, k.Peer)) {
			return true
		}
	}
	return false
}

// entriesLike returns the verdicts about a peer and about whom it is like, or,
// where there are none, about the wider class.
func entriesLike(p *plan.Plan, k profile.PeerKey) []profile.Entry {
	var all []profile.Entry
	if w, ok := p.Within.Get(plan.WithinKey{Class: k.Peer}); ok && len(profile.Entries(p, k)) == 0 {
		k.Peer = w.Class
	}
	for range 1 + plan.MaxLikes {
		entries := profile.Entries(p, k)
		all = append(all, entries...)
		v, _ := p.Verdicts.Get(plan.Rest(k.Name, k.Direction, k.Peer))
		if k.Peer = v.Like; k.Peer == 0 {
			break
		}
	}
	return all
}

// mostCompared is how many verdicts MayForbid compares to be sure. Beyond that,
// judging all connections is cheaper.
const mostCompared = 4096

// narrows reports whether a policy allows something of a class in p that it
// denies of another in q. Classes that it does not name it takes for any peer. It
// takes from left what it compared, and where that is not enough, it may.
func narrows(p, q *plan.Plan, policy profile.PolicyKey, was, is plan.Class, left *int) bool {
	if *left--; *left < 0 {
		return true
	}
	entries := slices.Concat(entriesLike(p, profile.PeerKey{PolicyKey: policy, Peer: was}), entriesLike(q, profile.PeerKey{PolicyKey: policy, Peer: is}))
	if len(entries) == 0 {
		return false // what holds for any peer is compared on its own
	}
	// That for any packet of any peer is always among them.
	anyPeer := profile.PeerKey{PolicyKey: policy, Peer: plan.AnyPeer}
	entries = slices.Concat(entries, profile.Entries(p, anyPeer), profile.Entries(q, anyPeer))
	if *left -= len(entries); *left < 0 {
		return true
	}
	allows := func(in *plan.Plan, class plan.Class, k profile.Kind) bool {
		_, v, _ := in.Verdict(policy.Name, policy.Direction, class, plan.Protocol(k>>16), uint16(k))
		return v.Allow
	}
	denied := func(k profile.Kind) bool { return allows(p, was, k) && !allows(q, is, k) }
	// The answer changes only where an entry begins, and behind where one ends.
	return slices.ContainsFunc(entries, func(e profile.Entry) bool {
		return denied(profile.KindOf(e.Key.Protocol, e.Key.Ports.First)) || denied(profile.KindOf(e.Key.Protocol, e.Key.Ports.Last)+1)
	})
}
