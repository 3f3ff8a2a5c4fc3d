package plan_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"pgregory.net/rapid"
)

// Whoever asks a Service gets what he would get from each of its backends, asked by its
// own address; only the source is the node's where the Service says so.
func TestServicesLeadToTheirBackends(t *testing.T) {
	met := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		plans := plantest.Cluster().Filter(func(p map[string]*plan.Plan) bool { return len(p) > 0 }).Draw(t, "cluster")
		served := plantest.Served(plans).Draw(t, "services")
		for _, p := range served {
			if err := p.Validate(); err != nil {
				t.Fatalf("%v, in:\n%s", err, p)
			}
		}
		for range 10 {
			f := plantest.Flows(served).Draw(t, "flow")
			if rapid.Bool().Draw(t, "from outside") {
				f.Node = rapid.SampledFrom(slices.Sorted(maps.Keys(plans))).Draw(t, "comes to")
				f.Source = plantest.Outside[slices.IndexFunc(plantest.Outside, func(a netip.Addr) bool { return a.Is4() == f.Destination.Is4() })]
			}
			served := asked{plans, served, f, plan.Explain(served, f)}
			for _, what := range served.check(t) {
				met[what]++
			}
		}
	})
	for _, what := range []string{"no service", "refused", "the node itself", "masqueraded from inside", "masqueraded from outside", "met on its way", "direct from inside", "direct from outside"} {
		if met[what] == 0 {
			t.Errorf("never met: %s, among %v", what, met)
		}
	}
}

// asked is a flow, and what becomes of it, in plans with Services; and these without.
type asked struct {
	without, plans map[string]*plan.Plan
	flow           plan.Flow
	explanation    plan.Explanation
}

// check holds what becomes of the flow against what does without Services, and says what
// it has met.
func (a asked) check(t *rapid.T) (met []string) {
	f, e := a.flow, a.explanation
	i := slices.IndexFunc(e.Steps, func(s plan.Step) bool { return s.Table == "services" })
	if i < 0 {
		if got := plan.Explain(a.without, f); got.String() != e.String() {
			t.Fatalf("no Service is met by %s, which goes another way with them:\n%sand without:\n%s", f, e, got)
		}
		return []string{"no service"}
	}
	p := a.plans[e.Steps[i].Node]
	if e.Steps[0].Node != p.Local.Node {
		return []string{"met on its way"} // its source may be another by then
	}
	side, client := plan.Inside, plan.FromEndpoints
	if e.Steps[0].Table == "node" && !p.Owns(plan.DefaultNetwork, f.Source) && !p.LeadsToPeer(plan.DefaultNetwork, f.Source) {
		side, client = plan.Outside, plan.FromStrangers
	}
	key, svc, ok := p.Service(plan.DefaultNetwork, f.Destination, f.Protocol, f.Port, side)
	if !ok {
		t.Fatalf("%s meets a Service that there is not:\n%s", f, e)
	}
	var backends []netip.AddrPort
	for k, b := range p.BackendsOf(plan.DefaultNetwork, svc.Set) {
		if b.Weight > 0 && svc.Set != "" {
			backends = append(backends, netip.AddrPortFrom(k.Address, k.Port))
		}
	}
	choices := e.Backends
	switch {
	case key.Protocol == plan.AnyProtocol, !p.Admits(plan.DefaultNetwork, svc.Sources, f.Source), len(backends) == 0:
		if e.Allowed || len(choices) > 0 {
			t.Fatalf("%s has nowhere to go:\n%s", f, e)
		}
		return []string{"refused"}
	case len(backends) == 1:
		choices = []plan.Choice{{Backend: backends[0], Explanation: e}}
	}
	if len(choices) != len(backends) {
		t.Fatalf("%s has backends %s:\n%s", f, backends, e)
	}
	all := true
	for i, c := range choices {
		all = all && c.Allowed
		direct := f
		direct.Destination, direct.Port, direct.Node = c.Backend.Addr(), c.Backend.Port(), p.Local.Node
		want := plan.Explain(a.without, direct)
		switch {
		case c.Backend != backends[i]:
			t.Fatalf("%s has backends %s:\n%s", f, backends, e)
		case c.Allowed && c.Interface == "" && c.Node == p.Local.Node:
			met = append(met, "the node itself")
		case svc.Masquerade&client != 0, c.Backend.Addr() == f.Source:
			// Other nodes see the node, and may think otherwise of it.
			if c.Allowed && !slices.Contains(append(p.Local.PoolAddresses(), p.Local.Addresses...), c.SeenSource) {
				t.Fatalf("%s is seen as %s:\n%s", f, c.SeenSource, e)
			}
			met = append(met, "masqueraded from "+string(side))
		case c.Allowed != want.Allowed || c.Node != want.Node || c.Interface != want.Interface || c.SeenSource != want.SeenSource:
			t.Fatalf("%s with backend %s:\n%sand asked directly:\n%s", f, c.Backend, c, want)
		default:
			met = append(met, "direct from "+string(side))
		}
	}
	if e.Allowed != all {
		t.Fatalf("%s is allowed is %t:\n%s", f, e.Allowed, e)
	}
	return met
}
