package plan_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weftnet/weft/plan"
)

// What the text form cannot say, and a program can, is found as well.
func TestValidateWhatTextCannotSay(t *testing.T) {
	good := netip.MustParsePrefix("10.1.0.0/16")
	unmasked := netip.MustParsePrefix("10.1.2.3/16")
	mapped := netip.MustParsePrefix("::ffff:10.1.0.0/112")
	for _, test := range []struct {
		want  string
		state func(b *plan.Builder, p *plan.Plan)
	}{
		{`route default "invalid Prefix" drop: prefix is missing or invalid`, func(b *plan.Builder, _ *plan.Plan) {
			b.PutRoute(plan.RouteKey{Network: "default"}, plan.Route{Way: plan.ToDrop})
		}},
		{"route default ::ffff:10.1.0.0/112 drop: prefix ::ffff:10.1.0.0/112 is an IPv4-mapped IPv6 prefix", func(b *plan.Builder, _ *plan.Plan) {
			b.PutRoute(plan.RouteKey{Network: "default", Prefix: mapped}, plan.Route{Way: plan.ToDrop})
		}},
		{"route default 10.1.2.3/16 drop: prefix 10.1.2.3/16 has bits set after its length: use 10.1.0.0/16", func(_ *plan.Builder, p *plan.Plan) {
			p.Routes = p.Routes.Set(plan.RouteKey{Network: "default", Prefix: unmasked}, plan.Route{Way: plan.ToDrop})
		}},
		{`route default 10.1.0.0/16 fly: way "fly" is none of those there are`, func(b *plan.Builder, _ *plan.Plan) {
			b.PutRoute(plan.RouteKey{Network: "default", Prefix: good}, plan.Route{Way: "fly"})
		}},
		{`egress default any 10.1.0.0/16 hide: action "hide" is none of those there are`, func(b *plan.Builder, _ *plan.Plan) {
			b.PutEgress(plan.EgressKey{Network: "default", Destination: good}, plan.Egress{Action: "hide"})
		}},
		{"egress default any 10.1.0.0/16 direct: tag 5 is set but does not select", func(b *plan.Builder, _ *plan.Plan) {
			b.PutEgress(plan.EgressKey{Network: "default", Destination: good, Tag: 5}, plan.Egress{Action: plan.Direct})
		}},
		{"egress default endpoint weft1 10.1.0.0/16 direct: both an endpoint and a tag select the sources", func(b *plan.Builder, _ *plan.Plan) {
			b.PutEndpoint(plan.EndpointKey{Interface: "weft1"}, plan.Endpoint{Network: "default", Addresses: []netip.Addr{good.Addr().Next()}})
			b.PutEgress(plan.EgressKey{Network: "default", Destination: good, Interface: "weft1", Tagged: true}, plan.Egress{Action: plan.Direct})
		}},
		{`verdict p sideways otherwise deny: direction "sideways" is neither ingress nor egress`, func(b *plan.Builder, _ *plan.Plan) {
			b.PutVerdict(plan.Otherwise("p", "sideways"), plan.Verdict{})
		}},
		{"verdict p ingress from 5 tcp 9-8 deny: port range 9-8 ends before it begins", func(b *plan.Builder, _ *plan.Plan) {
			b.PutVerdict(plan.VerdictKey{Policy: "p", Direction: plan.Incoming, Peer: 5, Protocol: plan.TCP, Ports: plan.PortRange{First: 9, Last: 8}}, plan.Verdict{})
		}},
	} {
		b := plan.NewBuilder(nil)
		b.Local.Node = "node1"
		overlay := &plan.Plan{}
		test.state(b, overlay)
		p := b.Build()
		for k, r := range overlay.Routes.All() {
			p.Routes = p.Routes.Set(k, r)
		}
		if err := p.Validate(); err == nil || strings.TrimSpace(err.Error()) != test.want {
			t.Errorf("got:  %v\nwant: %s", err, test.want)
		}
	}
	var none *plan.Plan
	if err := none.Validate(); err != nil {
		t.Errorf("no plan: %v", err)
	}
}
