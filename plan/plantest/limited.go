package plantest

import (
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
)

// Limited generates what some plans are where some endpoints are limited in what they send or
// receive, to so much that a test need not wait for it.
func Limited(plans map[string]*plan.Plan) *rapid.Generator[map[string]*plan.Plan] {
	return rapid.Custom(func(t *rapid.T) map[string]*plan.Plan {
		rate := rapid.SampledFrom([]uint64{0, 0, 1_000_000_000, 40_000_000_000})
		limited := make(map[string]*plan.Plan, len(plans))
		rapid.Bool().Draw(t, "nothing") // a cluster may have no endpoints, and a generator has to draw something
		for _, name := range slices.Sorted(maps.Keys(plans)) {
			p := *plans[name]
			for k, e := range plans[name].Endpoints.All() {
				e.IngressRate, e.EgressRate = rate.Draw(t, "ingress rate"), rate.Draw(t, "egress rate")
				p.Endpoints = p.Endpoints.Set(k, e)
			}
			limited[name] = &p
		}
		return limited
	})
}
