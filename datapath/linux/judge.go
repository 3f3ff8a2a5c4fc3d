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
	for _, a := range slices.Concat(p.Local.Addresses, addresses) {
		j.own[a] = true
	}
	for _, pool := range p.Local.Pools {
		j.own[pool.Gateway] = true
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
	denies := func(policy string, d plan.Direction, other netip.Addr, peer plan.Endpoint) bool {
		if policy == "" {
			return false
		}
		tag := peer.Tag
		if _, t, ok := j.plan.TagOf(plan.DefaultNetwork, other); ok {
			tag = t.Tag
		}
		_, v, ok := j.plan.Verdict(policy, d, tag, c.protocol, c.destination.Port())
		return !ok || !v.Allow
	}
	return sends && denies(from.EgressPolicy, plan.Outgoing, c.destination.Addr(), to) ||
		gets && !j.own[c.source.Addr()] && denies(to.IngressPolicy, plan.Incoming, c.source.Addr(), from)
}
