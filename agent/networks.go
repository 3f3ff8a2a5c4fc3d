package agent

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// Networks implements cni.Node.
func (a *agent) Networks() []string { return networksOf(a.plan()) }

// Prefixes implements cni.Node.
func (a *agent) Prefixes(network string) []netip.Prefix { return prefixesOf(a.plan(), network) }

// networksOf returns the names of a plan's networks, in order. The default one is
// there though no plan says so. p may be nil.
func networksOf(p *plan.Plan) []string {
	names := map[string]bool{plan.DefaultNetwork: true}
	if p != nil {
		for _, pool := range p.Local.Pools {
			names[pool.Network] = true
		}
		for k := range p.Networks.All() {
			names[k.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// prefixesOf returns what a plan has routes to in a network, but for what is beyond
// the cluster. Of prefixes within one another it returns the widest alone. p may be
// nil.
func prefixesOf(p *plan.Plan, network string) []netip.Prefix {
	if p == nil {
		return nil
	}
	var all []netip.Prefix
	for _, pool := range p.Local.Pools {
		if pool.Network == network {
			all = append(all, pool.Prefix.Masked())
		}
	}
	for k, r := range p.Routes.All() {
		if k.Network == network && r.Way != plan.ToGateway && k.Prefix.Bits() > 0 {
			all = append(all, k.Prefix)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	var widest []netip.Prefix
	for _, prefix := range all {
		if n := len(widest); n == 0 || !widest[n-1].Overlaps(prefix) {
			widest = append(widest, prefix)
		}
	}
	return widest
}
