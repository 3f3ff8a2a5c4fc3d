package linux

import (
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// trackedConnection is an entry of connection tracking.
type trackedConnection struct {
	protocol plan.Protocol
	// source and destination are who began it and who got it, behind the
	// translation of Services. Ports are 0 for protocols without.
	source, destination netip.AddrPort
	// dialled is what the source calls the destination, and seen what the
	// destination calls the source.
	dialled, seen netip.AddrPort
}

// leftover is what both sides have of the connection.
func (c trackedConnection) leftover() leftover {
	return leftover{c.protocol, side{c.source, c.dialled}, side{c.destination, c.seen}}
}

// jury judges connections as the policy table does their first packets.
type jury struct {
	plan *plan.Plan
	// endpoints are those of the plan by address, own the node's addresses.
	endpoints map[netip.Addr]plan.Endpoint
	own       map[netip.Addr]bool
}

// newJury returns a jury for a plan, on a node that has those addresses beside
// what the plan says.
func newJury(p *plan.Plan, addresses []netip.Addr) *jury {
	j := &jury{plan: p, endpoints: map[netip.Addr]plan.Endpoint{}, own: map[netip.Addr]bool{}}
	for _, e := range p.Endpoints.All() {
		for _, a := range e.Addresses {
			j.endpoints[a] = e
		}
	}
	for _, a := range slices.Concat(p.Local.Addresses, p.Local.PoolAddresses(), addresses) {
		j.own[a] = true
	}
	return j
}

// forbids reports whether a policy denies a connection now.
func (j *jury) forbids(c trackedConnection) bool {
	from, sends := j.endpoints[c.source.Addr()]
	to, gets := j.endpoints[c.destination.Addr()]
	if sends && slices.Contains(from.Addresses, c.destination.Addr()) {
		return false // to itself
	}
	denies := func(policy string, d plan.Direction, other netip.Addr) bool {
		if policy == "" {
			return false
		}
		_, v, ok := j.plan.Verdict(policy, d, j.classOf(other), c.protocol, c.destination.Port())
		return !ok || !v.Allow
	}
	return sends && denies(from.EgressPolicy, plan.Outgoing, c.destination.Addr()) ||
		gets && !j.own[c.source.Addr()] && denies(to.IngressPolicy, plan.Incoming, c.source.Addr())
}

// classOf is what policies see an address as.
func (j *jury) classOf(a netip.Addr) plan.Class {
	if c, ok := j.plan.ClassAt(plan.DefaultNetwork, a); ok {
		return c
	}
	return plan.ClassOf(j.endpoints[a].Tag)
}

// mayForbid reports whether there can be connections that p allows and q, to
// which the changes lead, forbids. Both describe the node itself in the same
// way. It costs in proportion to the changes and the endpoints; where it would
// cost more to be sure, it says so.
//
// The kernel looks up one map after the other, and a change can come between two
// lookups of one packet. So there can also be connections that neither p nor q
// allows: those of an address that p gives a class of which q says more, and those of
// one of which p and q say different things, and that was taken for any peer.
func mayForbid(p, q *plan.Plan, changes plan.Diff) bool {
	named := policiesNamed(q)
	if len(named) == 0 {
		return false
	}
	before, after := newJury(p, nil), newJury(q, nil)
	var addresses []netip.Addr // of which something changed
	for _, c := range changes.Endpoints {
		for _, e := range []*plan.Endpoint{c.Old, c.New} {
			if e != nil {
				addresses = append(addresses, e.Addresses...)
			}
		}
	}
	for _, a := range addresses {
		was, is := before.endpoints[a], after.endpoints[a]
		if len(policiesOf(is)) > 0 && !slices.Equal(is.Addresses, was.Addresses) ||
			is.IngressPolicy != "" && is.IngressPolicy != was.IngressPolicy ||
			is.EgressPolicy != "" && is.EgressPolicy != was.EgressPolicy {
			return true
		}
	}
	for _, c := range p.ClassChanges(q, changes) {
		if !c.Key.Prefix.IsSingleIP() {
			return true
		}
		addresses = append(addresses, c.Key.Prefix.Addr())
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
	open := map[policyKey]bool{}
	// slips reports whether a connection with one that was of a class, and is of another or the
	// same, may begin though it is forbidden if its packet was judged as of a class that
	// it was of, of one around that, or of any peer.
	slips := func(policy policyKey, was, is plan.Class) bool {
		torn := []plan.Class{was}
		for _, t := range []plan.Class{was, is} {
			if of := (peerKey{policy, t}); len(entriesOf(p, of)) > 0 && len(entriesOf(q, of)) > 0 {
				continue // that is what counts, now as before
			}
			for _, in := range []*plan.Plan{p, q} {
				if w, ok := in.Within.Get(plan.WithinKey{Class: t}); ok && !slices.Contains(torn, w.Class) {
					torn = append(torn, w.Class)
				}
			}
		}
		if _, asked := open[policy]; !asked {
			open[policy] = slices.ContainsFunc(entriesOf(q, peerKey{policy, plan.AnyPeer}), func(e verdictEntry) bool { return e.value.Allow })
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
	touched := map[peerKey]bool{}
	for _, c := range changes.Verdicts {
		touched[peerOf(c.Key)] = true
	}
	for k := range touched {
		if named[k.policyKey] && (narrows(p, q, k.policyKey, k.peer, k.peer, &left) || slips(k.policyKey, k.peer, k.peer)) {
			return true
		}
	}
	return false
}

// entriesLike returns the verdicts about a peer and about whom it is like, or,
// where there are none, about the wider class.
func entriesLike(p *plan.Plan, k peerKey) []verdictEntry {
	var all []verdictEntry
	if w, ok := p.Within.Get(plan.WithinKey{Class: k.peer}); ok && len(entriesOf(p, k)) == 0 {
		k.peer = w.Class
	}
	for range 1 + plan.MaxLikes {
		entries := entriesOf(p, k)
		all = append(all, entries...)
		v, _ := p.Verdicts.Get(plan.Rest(k.name, k.direction, k.peer))
		if k.peer = v.Like; k.peer == 0 {
			break
		}
	}
	return all
}

// mostCompared is how many verdicts mayForbid compares to be sure. Beyond that,
// judging all connections is cheaper.
const mostCompared = 4096

// narrows reports whether a policy allows something of a class in p that it
// denies of another in q. Classes that it does not name it takes for any peer. It
// takes from left what it compared, and where that is not enough, it may.
func narrows(p, q *plan.Plan, policy policyKey, was, is plan.Class, left *int) bool {
	if *left--; *left < 0 {
		return true
	}
	entries := slices.Concat(entriesLike(p, peerKey{policy, was}), entriesLike(q, peerKey{policy, is}))
	if len(entries) == 0 {
		return false // what holds for any peer is compared on its own
	}
	// That for any packet of any peer is always among them.
	anyPeer := peerKey{policy, plan.AnyPeer}
	entries = slices.Concat(entries, entriesOf(p, anyPeer), entriesOf(q, anyPeer))
	if *left -= len(entries); *left < 0 {
		return true
	}
	allows := func(in *plan.Plan, class plan.Class, k packetKind) bool {
		_, v, _ := in.Verdict(policy.name, policy.direction, class, plan.Protocol(k>>16), uint16(k))
		return v.Allow
	}
	denied := func(k packetKind) bool { return allows(p, was, k) && !allows(q, is, k) }
	// The answer changes only where an entry begins, and behind where one ends.
	return slices.ContainsFunc(entries, func(e verdictEntry) bool {
		return denied(kindOf(e.key.Protocol, e.key.Ports.First)) || denied(kindOf(e.key.Protocol, e.key.Ports.Last)+1)
	})
}
