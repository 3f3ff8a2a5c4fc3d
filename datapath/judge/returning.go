package judge

import (
	"slices"

	"github.com/weftnet/weft/plan"
)

// MayReturn reports whether a connection of which Unserved is true lacks nothing but its backend, and
// that may be one again in a moment: who writes EndpointSlices writes one after the other, and where he
// packs endpoints anew, one is in none of them between two writes. Datagrams are none of these, as
// nobody repeats them, nor what goes to an endpoint of the node that is gone, nor what nobody has answered
// yet, nor what is over: there is nothing to lose of it, and who comes by its port again would be sent to the
// same backend.
func (j *Jury) MayReturn(c Connection) bool {
	if !c.Served || c.Unanswered || c.Over || c.Protocol == plan.UDP {
		return false
	}
	_, s, ok := j.plan.Service(c.Network, c.Dialled.Addr(), c.Protocol, c.Dialled.Port(), j.side(c))
	return ok && !s.Here && s.Set != "" && j.plan.Admits(c.Network, s.Sources, c.Source.Addr()) &&
		!j.gone(plan.Address{Network: c.Network, IP: c.Destination.Addr()})
}

// side is that from which a connection comes to frontends.
func (j *Jury) side(c Connection) plan.Scope {
	if _, local := j.endpoints[c.source()]; local || j.owns(c.source()) || c.Source.Addr().IsLoopback() {
		return plan.Inside
	}
	return plan.Outside
}

// gone reports whether an address is one that the node gives endpoints, and none has.
func (j *Jury) gone(a plan.Address) bool {
	_, there := j.endpoints[a]
	return !there && !j.owns(a) && slices.ContainsFunc(j.plan.Local.Pools, func(p plan.Pool) bool { return p.Network == a.Network && p.Prefix.Contains(a.IP) })
}
