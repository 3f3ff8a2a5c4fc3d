package plan_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"pgregory.net/rapid"
)

// Whoever asks a Service gets what he would get from each of its backends, asked by its
// own address; only the source is the node's where the Service says so.
func TestServicesLeadToTheirBackends(t *testing.T) {
	met := []string{"no service", "refused", "answered", "the node itself", "masqueraded from inside", "the node under its own address", "masqueraded from outside", "met on its way", "direct from inside", "direct from outside"}
	plantest.CheckMeeting(t, met, func(t *rapid.T, meets func(string)) {
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
				meets(what)
			}
		}
	})
}

// asked is a flow, and what becomes of it, in plans with Services; and these without.
type asked struct {
	without, plans map[string]*plan.Plan
	flow           plan.Flow
	explanation    plan.Explanation
}

// keeps reports whether the flow is from a node that keeps its address on the way to a Service:
// the one that it asks, if that is its own, or else its first.
func (a asked) keeps(p *plan.Plan, svc plan.Service) bool {
	if !p.Owns(plan.DefaultNetwork, a.flow.Source) || svc.Masquerade&plan.FromStrangers != 0 {
		return false
	}
	own := a.flow.Destination
	if !p.Owns(plan.DefaultNetwork, own) {
		i := slices.IndexFunc(p.Local.Addresses, func(a netip.Addr) bool { return a.Is4() == own.Is4() })
		own = p.Local.Addresses[i]
	}
	return slices.Contains(p.Local.ReachedAt, own)
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
	if svc.Here && e.Allowed {
		seen := e.SeenSource == f.Source || p.Owns(plan.DefaultNetwork, f.Source) && p.Owns(plan.DefaultNetwork, e.SeenSource)
		if e.Node != p.Local.Node || e.Interface != "" || e.SeenDestination != f.Destination || e.SeenPort != f.Port || !seen || !p.Admits(plan.DefaultNetwork, svc.Sources, e.SeenSource) {
			t.Fatalf("%s is not answered by %s as it is:\n%s", f, p.Local.Node, e)
		}
		return []string{"answered"}
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
		case a.keeps(p, svc):
			// They may think otherwise here, too.
			if c.Allowed && !slices.Contains(p.Local.ReachedAt, c.SeenSource) {
				t.Fatalf("%s is seen as %s:\n%s", f, c.SeenSource, e)
			}
			met = append(met, "the node under its own address")
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

// Of a Service with more backends than are followed it is known that a flow is denied,
// where it is with one that was followed, and else nothing.
func TestMoreBackendsThanAreFollowed(t *testing.T) {
	for name, c := range map[string]struct {
		backends    int
		dropped     int // number of the backend, from 1
		result      string
		notFollowed int
	}{
		"as many as are followed": {plan.MaxFollowed, 0, "allowed: each of the 1000 backends of the service at 10.3.0.1:80 may be reached", 0},
		"one more": {plan.MaxFollowed + 1, 0,
			"unknown: of the 1001 backends of the service at 10.3.0.1:80, 1000 may be reached, and of the others it is not known (1 not looked at)", 1},
		"one more, which is dropped": {plan.MaxFollowed + 1, plan.MaxFollowed + 1,
			"unknown: of the 1001 backends of the service at 10.3.0.1:80, 1000 may be reached, and of the others it is not known (1 not looked at)", 1},
		"one of those that are followed is dropped": {plan.MaxFollowed + 1, 1,
			"denied: of the 1001 backends of the service at 10.3.0.1:80, 999 may be reached, and 1 may not (1 not looked at)", 1},
	} {
		t.Run(name, func(t *testing.T) {
			plans := map[string]*plan.Plan{"node1": crowded(t, "node1", "172.30.0.2", c.backends)}
			if c.dropped > 0 {
				dropped := *plans["node1"]
				dropped.Routes = dropped.Routes.Set(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.PrefixFrom(outside(c.dropped), 32)}, plan.Route{Way: plan.ToDrop})
				plans["node1"] = &dropped
			}
			checkResult(t, plans, "10.1.1.2 to 10.3.0.1 tcp 80", c.result, c.notFollowed)
		})
	}
}

// A backend that is a Service of another node, with more backends than are followed, is
// itself not known.
func TestBackendsOfBackendsThatAreNotFollowed(t *testing.T) {
	node1 := *crowded(t, "node1", "172.30.0.2", 1)
	node1.Backends = node1.Backends.Set(plan.BackendKey{Network: plan.DefaultNetwork, Set: "web", Address: netip.MustParseAddr("203.1.0.3"), Port: 30080}, plan.Backend{Weight: 1})
	node2 := *crowded(t, "node2", "203.1.0.3", plan.MaxFollowed+2)
	node2.Services = node2.Services.Set(plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr("203.1.0.3"), Protocol: plan.TCP, Port: 30080}, plan.Service{Set: "web"})
	// Two are followed before those of node2.
	checkResult(t, map[string]*plan.Plan{"node1": &node1, "node2": &node2}, "198.51.100.7 to 10.3.0.1 tcp 80 node node1",
		"unknown: of the 2 backends of the service at 10.3.0.1:80, 1 may be reached, and of the others it is not known (4 not looked at)", 4)
}

func checkResult(t *testing.T, plans map[string]*plan.Plan, flow, want string, notFollowed int) {
	t.Helper()
	f, err := plan.ParseFlow(flow)
	if err != nil {
		t.Fatal(err)
	}
	e := plan.Explain(plans, f)
	if got, _, _ := strings.Cut(e.String(), "\n"); got != want || e.NotFollowed != notFollowed {
		t.Errorf("it is\n%s\nand %d were not followed, want\n%s\nand %d", got, e.NotFollowed, want, notFollowed)
	}
}

// outside is the address of a machine outside the cluster.
func outside(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
}

// crowded is the plan of a node with a Service all of whose backends are outside.
func crowded(t *testing.T, node, address string, backends int) *plan.Plan {
	p, err := plan.Parse("node " + node + " addresses " + address + `
endpoint weft1 network default addresses 10.1.1.2
route default 10.1.1.2/32 endpoint weft1
route default 0.0.0.0/0 gateway
service default 10.3.0.1 tcp 80 to web
`)
	if err != nil {
		t.Fatal(err)
	}
	for i := range backends {
		p.Backends = p.Backends.Set(plan.BackendKey{Network: plan.DefaultNetwork, Set: "web", Address: outside(i + 1), Port: 80}, plan.Backend{Weight: 1})
	}
	return p
}
