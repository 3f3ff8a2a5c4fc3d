package datapath

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
)

// betweenPlan draws a node whose routes, egress rules of some scopes, and policies are
// a few of many.
func betweenPlan(t *rapid.T, tag string, scopes []string) *plan.Plan {
	var b strings.Builder
	b.WriteString(`node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
tunnel vxlan port 8472 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 1
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 0.0.0.0/0 gateway
route default 10.1.1.3/32 endpoint near
egress default any 0.0.0.0/0 masquerade
`)
	one := func(of ...string) string { return rapid.SampledFrom(of).Draw(t, "of") }
	fmt.Fprintf(&b, "endpoint near network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03%s%s\n", tag, one("", " egress-policy e"))
	if one("", "there") != "" {
		fmt.Fprintf(&b, "endpoint server network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02%s\n", one("", " ingress-policy p"))
		if r := one("", "endpoint server", "drop"); r != "" {
			fmt.Fprintf(&b, "route default 10.1.1.2/32 %s\n", r)
		}
	}
	// Some begin with the same address: what holds for the first of a prefix need not
	// for the rest.
	for _, prefix := range []string{"10.1.2.0/24", "10.1.2.0/25", "10.1.0.0/16", "203.0.113.0/24", "203.0.113.0/30", "203.0.113.7/32", "203.0.112.0/20"} {
		if r := one("", "", "tunnel node2", "drop", "gateway"); r != "" && !(r == "gateway" && strings.HasPrefix(prefix, "10.")) {
			fmt.Fprintf(&b, "route default %s %s%s\n", prefix, r, one("", "", map[bool]string{true: " endpoints-only"}[r != "gateway"]))
		}
	}
	for _, scope := range scopes {
		for _, prefix := range []string{"203.0.113.0/24", "203.0.113.0/30", "203.0.113.7/32", "203.0.112.0/20"} {
			if e := one("", "", "direct", "drop", "masquerade"); e != "" {
				fmt.Fprintf(&b, "egress default %s %s %s\n", scope, prefix, e)
			}
		}
	}
	for _, v := range []string{"e egress to any any", "p ingress from any any"} {
		if one("", "allow") != "" {
			fmt.Fprintf(&b, "verdict %s allow\n", v)
		}
	}
	p, err := plan.Parse(b.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if p.Validate() != nil {
		t.Skip("not valid")
	}
	return p
}

// TestBetween checks that the plan between two is valid and lets nothing pass that the
// first does not, nor, by the next one's policies, what neither does. Where egress rules
// are of one scope it lets pass, by the first one's policies, what both let pass.
func TestBetween(t *testing.T) {
	gone := 0
	rapid.Check(t, func(t *rapid.T) {
		tag := rapid.SampledFrom([]string{"", " tag 5"}).Draw(t, "tag")
		scopes := rapid.SampledFrom([][]string{{"any"}, {"tag 5"}, {"endpoint near"}, {"any", "tag 5", "endpoint near"}}).Draw(t, "scopes")
		p, next := betweenPlan(t, tag, scopes), betweenPlan(t, tag, scopes)
		between := Between(p, next)
		if err := between.Validate(); err != nil {
			t.Fatalf("%v\nfrom\n%s\nto\n%s\nbetween\n%s", err, p, next, between)
		}
		if between != p {
			gone++
		}
		// With the policies of the next one, and its routes and rules still to come. What
		// is about endpoints that the one plan does not have goes and comes with them.
		then := *next
		then.Routes, then.Egress = between.Routes, between.Egress
		for _, to := range []string{"10.1.1.2", "10.1.2.9", "10.1.2.200", "10.1.7.7", "203.0.113.1", "203.0.113.7", "203.0.113.8", "203.0.112.9", "198.51.100.7", "from outside"} {
			f := plan.Flow{Source: netip.MustParseAddr("10.1.1.3"), Protocol: plan.UDP, Port: 7000}
			if f.Destination, _ = netip.ParseAddr(to); to == "from outside" {
				f.Source, f.Destination = netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("10.1.1.2")
			}
			passes := func(p *plan.Plan) bool { return plan.Explain(map[string]*plan.Plan{"node1": p}, f).Allowed }
			is := [...]bool{passes(p), passes(between), passes(next)}
			if is[1] && !is[0] || is[0] && is[2] && !is[1] && len(scopes) == 1 {
				t.Errorf("%s passes by the first, the one between and the last: %v\nfrom\n%s\nto\n%s\nbetween\n%s", f, is, p, next, between)
			}
			if then.Validate() == nil && passes(&then) && !is[0] && !is[2] {
				t.Errorf("%s passes in between, though neither plan allows it\nfrom\n%s\nto\n%s\nbetween\n%s", f, p, next, between)
			}
		}
	})
	if gone == 0 {
		t.Error("there was never anything to go through")
	}
}

func TestBetweenIsFree(t *testing.T) {
	p, err := plan.Parse("route default 10.1.0.0/16 drop\nclass default 10.1.1.3/32 c0\n")
	if err != nil {
		t.Fatal(err)
	}
	policies, routes := *p, *p
	policies.Classes = plan.Table[plan.ClassKey, plan.Membership]{}
	routes.Routes = plan.Table[plan.RouteKey, plan.Route]{}
	for what, next := range map[string]*plan.Plan{"nothing": p, "policies": &policies, "routes": &routes} {
		if Between(p, next) != p {
			t.Errorf("where %s changes alone there is a plan between", what)
		}
	}
}

// TestBetweenCosts counts the entries that are looked at: they grow with the changes and
// with what is within changed prefixes, and not with the square of either.
func TestBetweenCosts(t *testing.T) {
	const tags, each = 30, 100
	build := func(policies, action string, wide bool) *plan.Plan {
		var text strings.Builder
		text.WriteString("node node1 addresses 172.30.0.2\nendpoint near network default addresses 10.1.1.3\n" + policies)
		for i := range each {
			fmt.Fprintf(&text, "egress default any 198.18.%d.0/24 direct\nroute default 198.18.%d.0/24 gateway\n", i, i)
			for tag := range tags {
				fmt.Fprintf(&text, "egress default tag %d 198.18.%d.0/24 %s\n", tag, i, action)
			}
		}
		if wide {
			text.WriteString("route default 198.18.0.0/15 drop\negress default any 198.18.0.0/15 drop\n")
		}
		return mustParse(t, text.String())
	}
	const policies = "class default 10.1.1.3/32 c0\n"
	p := build("", "direct", false)
	entries := p.Routes.Len() + p.Egress.Len()
	for _, c := range []struct {
		what string
		next *plan.Plan
		most int
	}{
		{"all that tags may do", build(policies, "drop", false), 2 * entries},
		{"what is around all", build(policies, "direct", true), 2 * entries},
		{"an endpoint that leaves", mustParse(t, strings.Replace(p.String(), "endpoint near network default addresses 10.1.1.3\n", "", 1)), 0},
	} {
		b := newBetween(p, c.next)
		if b.through(); b.looked > c.most {
			t.Errorf("%s: of %d entries %d were looked at; expected at most %d", c.what, entries, b.looked, c.most)
		}
	}
}

// TestBetweenEndpoints has endpoints leave and come with all that is theirs: there is
// nothing to go through, as nothing is sent to them or by them without their policies.
func TestBetweenEndpoints(t *testing.T) {
	const node = `node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint a network default addresses 10.1.1.2 egress-policy e
route default 10.1.1.2/32 endpoint a
`
	const other = `endpoint b network default addresses 10.1.1.3 ingress-policy i
route default 10.1.1.3/32 endpoint b
egress default endpoint b 0.0.0.0/0 masquerade
class default 10.1.1.3/32 c0
verdict i ingress otherwise allow
`
	p, q := mustParse(t, node), mustParse(t, node+other)
	if between := Between(q, p); between != q {
		t.Errorf("an endpoint leaves, and there is a plan between:\n%s", between)
	}
	if between := Between(p, q); between != p {
		t.Errorf("an endpoint comes, and there is a plan between:\n%s", between)
	}
}

func mustParse(t *testing.T, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
