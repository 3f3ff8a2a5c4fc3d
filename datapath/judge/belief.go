package judge

import (
	"slices"

	"github.com/weftnet/weft/plan"
)

// Belief is whose tags a plan believes, address by address: those that come through a
// tunnel from what is behind a peer that carries them.
type Belief struct {
	plan *plan.Plan
	// ends are those of believed peers, by who has the VTEP's address in which network.
	ends map[plan.Address][]string
}

// BeliefOf returns that of a plan.
func BeliefOf(p *plan.Plan) *Belief {
	b := &Belief{plan: p, ends: map[plan.Address][]string{}}
	for k, n := range p.Networks.All() {
		if _, ok := p.Local.Tunnel(k.Tunnel); !ok || n.LastVNI == n.FirstVNI {
			continue // no tag comes out of it
		}
		for _, peer := range p.Peers.All() {
			if end, ok := peer.End(k.Tunnel); ok && peer.CarriesTags {
				a := plan.Address{Network: k.Name, IP: end.VTEP}
				b.ends[a] = append(b.ends[a], k.Tunnel)
			}
		}
	}
	return b
}

// InNobody reports whether no tag is believed.
func (b *Belief) InNobody() bool { return len(b.ends) == 0 }

// In reports whether the tag is believed of what comes through a tunnel from an
// address: it is where the plan takes that from a believed peer's end of the tunnel.
func (b *Belief) In(a plan.Address) bool {
	if b.InNobody() {
		return false
	}
	vteps := []plan.Address{a}
	if _, r, ok := b.plan.Route(a.Network, a.IP, true); ok {
		for _, name := range r.Peers {
			for _, end := range b.plan.Peer(name).Ends {
				vteps = append(vteps, plan.Address{Network: a.Network, IP: end.VTEP})
			}
		}
	}
	return slices.ContainsFunc(vteps, func(vtep plan.Address) bool {
		return slices.ContainsFunc(b.ends[vtep], func(tunnel string) bool {
			return b.plan.TakesFromPeer(tunnel, a.Network, vtep.IP, a.IP)
		})
	})
}
