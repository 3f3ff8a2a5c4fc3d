package linux

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// TestRouted checks that what routes cover, and what of that leads to peers, is what
// the plan says of each address at both ends of all prefixes and next to them. What is
// in the node's own pools is judged before.
func TestRouted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plans := plantest.Cluster().Draw(t, "plans")
		p := plans[rapid.SampledFrom(slices.Sorted(maps.Keys(plans))).Draw(t, "node")]
		s := compileSources(p, func(netip.Addr) rtnl.LinkSet { return rtnl.LinkSet{} })
		ask := slices.Clone(plantest.Outside)
		for k := range p.Routes.All() {
			first, last := k.Prefix.Addr(), interval.Last(k.Prefix)
			ask = append(ask, first, first.Prev(), last, last.Next())
		}
		for _, a := range ask {
			if !a.IsValid() || slices.ContainsFunc(p.Local.Pools, func(pool plan.Pool) bool { return pool.Prefix.Contains(a) }) {
				continue
			}
			shared := false
			for _, r := range s.shared[a.Is4()] {
				if !a.Less(r.First) && !r.Last.Less(a) {
					shared = r.Value
				}
			}
			if _, r, ok := p.Route(plan.DefaultNetwork, a, true); shared != (ok && !r.EndpointsOnly) {
				t.Fatalf("everybody's route leads to %s: %v; the plan says %v, %+v", a, shared, ok, r)
			}
			_, everywhere, _ := p.Route(plan.DefaultNetwork, interval.Everything(a.Is4()).Addr(), false)
			ranges, listed := s.routed[a.Is4()]
			if all := everywhere.Way != ""; listed == all {
				t.Fatalf("%s: the family is listed: %v; routes cover all of it: %v", a, listed, all)
			} else if all {
				continue
			}
			var covered, toPeer bool
			for _, r := range ranges {
				if !a.Less(r.First) && !r.Last.Less(a) {
					covered, toPeer = true, r.Value
				}
			}
			if _, _, want := p.Route(plan.DefaultNetwork, a, false); covered != want {
				t.Fatalf("%s is covered: %v; the plan says %v", a, covered, want)
			}
			if want := p.LeadsToPeer(plan.DefaultNetwork, a); toPeer != want {
				t.Fatalf("a route leads to a peer for %s: %v; the plan says %v", a, toPeer, want)
			}
		}
	})
}
