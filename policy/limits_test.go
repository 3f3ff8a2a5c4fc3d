package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weftnet/weft/plan"
)

// Rules that would make more verdicts than there may be deny everything, and say
// so; with fewer rules they are as they are written again.
func TestTooManyVerdicts(t *testing.T) {
	world := func(ports int) *World {
		w := &World{Network: plan.DefaultNetwork, Local: []*Local{{Interface: "weft1", Namespace: "a", Identity: &Identity{Namespace: "a"},
			Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.2")}}}}
		p := &Policy{Name: "NetworkPolicy a/large", Tier: Isolating, Subject: Selector{Namespace: "a"}, IsolatesIngress: true}
		for i := range ports {
			port := uint16(2 * i)
			p.Ingress = append(p.Ingress, Rule{Origin: fmt.Sprintf("%s ingress[%d]", p.Name, i),
				Ports: []Port{{Protocol: plan.TCP, Range: plan.PortRange{First: port, Last: port}}}})
		}
		w.Policies = []*Policy{p}
		return w
	}
	var c Compiler
	for _, test := range []struct {
		ports   int
		allowed bool
	}{{100, true}, {MaxVerdicts + 1, false}, {200, true}} {
		tables := c.Compile(world(test.ports))
		_, v, _ := tables.planOf().Verdict(tables.Endpoints["weft1"].Ingress, plan.Incoming, 0, plan.TCP, 2)
		if v.Allow != test.allowed || (len(tables.Costly) == 0) != test.allowed || tables.Verdicts.Len() > MaxVerdicts {
			t.Errorf("%d ports: allowed is %t, %d verdicts, costly: %+v", test.ports, v.Allow, tables.Verdicts.Len(), tables.Costly)
		}
		if IsShut(v.Origin) == test.allowed {
			t.Errorf("%d ports: the origin is %q", test.ports, v.Origin)
		}
	}
}
