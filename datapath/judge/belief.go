package judge

import (
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// Belief is whose tags a plan believes, address by address: those that come through a
// tunnel from what is behind a peer that carries them.
type Belief struct {
	plan *plan.Plan
	// tunnels are those that carry tags to the node.
	tunnels []string
	// vteps are the believed peers' own.
	vteps map[netip.Addr]bool
}

// BeliefOf returns that of a plan.
func BeliefOf(p *plan.Plan) *Belief {
	b := &Belief{plan: p, vteps: map[netip.Addr]bool{}}
	for _, t := range p.Local.Tunnels {
		if n, _ := p.Networks.Get(plan.NetworkKey{Name: plan.DefaultNetwork, Tunnel: t.Name}); n.LastVNI > n.FirstVNI {
			b.tunnels = append(b.tunnels, t.Name)
		}
	}
	if len(b.tunnels) == 0 {
		return b
	}
	for _, peer := range p.Peers.All() {
		for _, end := range peer.Ends {
			if peer.CarriesTags && slices.Contains(b.tunnels, end.Tunnel) {
				b.vteps[end.VTEP] = true
			}
		}
	}
	return b
}

// InNobody reports whether no tag is believed.
func (b *Belief) InNobody() bool { return len(b.vteps) == 0 }

// In reports whether the tag is believed of what comes through a tunnel from an
// address.
func (b *Belief) In(at plan.Address) bool {
	a := at.IP
	if b.InNobody() {
		return false
	}
	_, r, ok := b.plan.Route(at.Network, a, true)
	if !ok || b.vteps[a] {
		return b.vteps[a]
	}
	return slices.ContainsFunc(b.plan.Peer(r.Peer()).Ends, func(e plan.TunnelEnd) bool {
		return slices.Contains(b.tunnels, e.Tunnel) && b.vteps[e.VTEP]
	})
}
