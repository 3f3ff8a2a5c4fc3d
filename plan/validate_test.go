package plan_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"pgregory.net/rapid"
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

// changed draws a plan that was made of p by few changes, some of which make
// it invalid.
func changed(t *rapid.T, p *plan.Plan) *plan.Plan {
	next := *p
	network := rapid.SampledFrom([]string{plan.DefaultNetwork, plan.DefaultNetwork, ""})
	tag := rapid.SampledFrom([]plan.Tag{0, 10, plan.MaxTag, plan.MaxTag + 1})
	class := rapid.SampledFrom([]plan.Class{0, 10, plan.FirstOwnClass, plan.MaxClass, plan.AnyPeer})
	like := rapid.SampledFrom([]plan.Class{0, 0, 0, 5, 6, plan.FirstOwnClass, plan.AnyPeer})
	for range rapid.IntRange(0, 8).Draw(t, "changes") {
		switch rapid.IntRange(0, 12).Draw(t, "change") {
		case 10:
			k := plan.WithinKey{Class: class.Draw(t, "class")}
			if next.Within = next.Within.Set(k, plan.Within{Class: class.Draw(t, "wider")}); rapid.Bool().Draw(t, "gone") {
				next.Within = without(t, next.Within)
			}
		case 0, 1:
			next.Tags = next.Tags.Set(plan.TagKey{Network: network.Draw(t, "network"), Prefix: plantest.Prefix().Draw(t, "prefix")},
				plan.Tagging{Tag: tag.Draw(t, "tag")})
		case 2:
			next.Tags = without(t, next.Tags)
		case 11:
			k := plan.ClassKey{Network: network.Draw(t, "network"), Prefix: plantest.Prefix().Draw(t, "prefix")}
			if next.Classes = next.Classes.Set(k, plan.Membership{Class: class.Draw(t, "class")}); rapid.Bool().Draw(t, "gone") {
				next.Classes = without(t, next.Classes)
			}
		case 3, 4:
			k := verdictKeys().Draw(t, "verdict")
			if rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
				k.Policy = ""
			}
			next.Verdicts = next.Verdicts.Set(k, plan.Verdict{Allow: rapid.Bool().Draw(t, "allow"), Like: like.Draw(t, "like")})
		case 5:
			next.Verdicts = without(t, next.Verdicts)
		case 12:
			peer := plan.Peer{Addresses: []netip.Addr{plantest.Addr().Draw(t, "address")}}
			if rapid.Bool().Draw(t, "has an end") {
				peer.Ends = []plan.TunnelEnd{{VTEP: plantest.Addr().Draw(t, "VTEP"), MAC: plan.MACOf(plantest.Addr().Draw(t, "MAC"))}}
			}
			next.Peers = next.Peers.Set(plan.PeerKey{Name: rapid.SampledFrom([]string{"", "node2", "node9"}).Draw(t, "peer")}, peer)
			if rapid.Bool().Draw(t, "gone") {
				next.Peers = without(t, next.Peers)
			}
		case 6:
			next.Endpoints = without(t, next.Endpoints)
		case 7:
			next.Routes = without(t, next.Routes)
		case 8:
			next.Services = next.Services.Set(plan.ServiceKey{Network: network.Draw(t, "network"), Address: plantest.Addr().Draw(t, "address"), Protocol: plan.TCP, Port: 80}, plan.Service{})
			next.Egress = next.Egress.Set(plan.EgressKey{Network: plan.DefaultNetwork, Tagged: true, Tag: tag.Draw(t, "tag"), Destination: plantest.Prefix().Draw(t, "destination")},
				plan.Egress{Action: plan.Direct})
		case 9:
			next.Local.MTU = rapid.SampledFrom([]int{0, 1400, 100}).Draw(t, "MTU")
			if rapid.Bool().Draw(t, "no tunnel") {
				next.Local.Tunnels = nil
			}
		}
	}
	return &next
}

// without draws a table from which an entry is gone, if it has any.
func without[K plan.TableKey[K], V plan.TableValue[V]](t *rapid.T, table plan.Table[K, V]) plan.Table[K, V] {
	gone := rapid.IntRange(0, max(0, table.Len()-1)).Draw(t, "gone")
	for k := range table.All() {
		if gone == 0 {
			return table.Delete(k)
		}
		gone--
	}
	return table
}

// After a valid plan ValidateAfter says what Validate says, word by word.
func TestValidateAfterIsValidate(t *testing.T) {
	outcomes := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		shape := plantest.Shapes().Draw(t, "shape")
		shape.Ghost = false
		previous := shape.Plans()["node1"]
		if better := changed(t, previous); better.Validate() == nil {
			previous = better
		}
		next := changed(t, previous)
		if rapid.Bool().Draw(t, "built from nothing") {
			parsed, err := plan.Parse(next.String())
			if err != nil {
				t.Fatal(err)
			}
			next = parsed
		}
		want, got := next.Validate(), next.ValidateAfter(previous)
		outcomes[want == nil]++
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got:  %v\nwant: %v\nafter:\n%s\nof:\n%s", got, want, previous, next)
		}
		if first := next.ValidateAfter(nil); fmt.Sprint(first) != fmt.Sprint(want) {
			t.Fatalf("after no plan: %v\nwant: %v", first, want)
		}
	})
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("valid or not: %v; both are to be tried", outcomes)
	}
}

// ValidateAfter does not look at what cannot have become wrong, so that it
// does not find what was wrong before; of what differs it finds everything.
func TestValidateAfterLooksAtWhatDiffers(t *testing.T) {
	const wrong = `
node node1
route "" 10.0.0.0/8 drop
tag default 10.1.0.0/16 16777216
verdict p ingress from 5 tcp 80-89 allow
verdict p ingress from 5 tcp 85 deny
`
	parse := func(text string) *plan.Plan {
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	previous := parse(wrong)
	for _, test := range []struct{ more, want string }{
		{"", ""},
		{`
tag default 10.2.0.0/16 5
verdict p ingress from 5 udp 80-89 allow
verdict p ingress from 6 tcp 80-89 allow
verdict p egress to 5 tcp 80-89 allow
`, ""},
		{`
tag default 10.2.0.0/16 16777216
verdict p egress to 5 tcp 80-89 allow
verdict p egress to 5 tcp 85 allow
verdict p ingress from 5 udp 80-89 allow
verdict p ingress from 5 udp 85 allow
verdict p ingress from 5 udp 88-90 allow
`, `tag default 10.2.0.0/16 16777216: tag 16777216 is above 16777215
verdict p egress to 5 tcp 85 allow: it overlaps with the entry of the same peer and protocol for ports 80-89
verdict p ingress from 5 udp 85 allow: it overlaps with the entry of the same peer and protocol for ports 80-89
verdict p ingress from 5 udp 88-90 allow: it overlaps with the entry of the same peer and protocol for ports 80-89`},
	} {
		got := ""
		if err := parse(wrong + test.more).ValidateAfter(previous); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("with%sit finds:\n%s\nwant:\n%s", test.more, got, test.want)
		}
	}
	var none *plan.Plan
	if err := none.ValidateAfter(previous); err != nil {
		t.Errorf("no plan: %v", err)
	}
}
