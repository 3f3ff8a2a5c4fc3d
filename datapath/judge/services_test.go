package judge

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// TestMayUnserve has Services change. What loses its backend by it, or goes past a frontend,
// is expected by who looks at the changes alone.
func TestMayUnserve(t *testing.T) {
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		cluster := plantest.Cluster().Filter(func(p map[string]*plan.Plan) bool { return p["node1"] != nil }).Draw(t, "cluster")
		draw := func(what string) *plan.Plan { return plantest.Served(cluster).Draw(t, what)["node1"] }
		p, q := draw("before"), draw("after")
		if rapid.Bool().Draw(t, "most stay") {
			q = mostly(t, p, q)
		}
		expected := MayUnserve(p, q, p.Diff(q))
		before, after := NewJury(p, nil), NewJury(q, nil)
		for _, c := range servedConnections(p, q) {
			if before.Unserved(c) {
				continue // it would have ended before
			}
			unserved := after.Unserved(c)
			if unserved && !expected {
				t.Fatalf("%+v has no backend any more, or goes past a frontend, which the changes do not tell from:\n%s\nto:\n%s", c, p, q)
			}
			outcomes[map[bool]string{true: "ends", false: "stays"}[unserved]]++
		}
		if !expected {
			outcomes["none expected"]++
		}
	})
	for _, o := range []string{"ends", "stays", "none expected"} {
		if outcomes[o] == 0 {
			t.Errorf("of connections %v; expected some of: %s", outcomes, o)
		}
	}
}

// mostly returns p with one entry of q's tables of Services in place of its own, where that is a
// plan.
func mostly(t *rapid.T, p, q *plan.Plan) *plan.Plan {
	next := *p
	changes := p.Diff(q)
	if len(changes.Backends) > 0 && rapid.Bool().Draw(t, "a backend") {
		if c := rapid.SampledFrom(changes.Backends).Draw(t, "which"); c.New == nil {
			next.Backends = next.Backends.Delete(c.Key)
		} else {
			next.Backends = next.Backends.Set(c.Key, *c.New)
		}
	} else if len(changes.Services) > 0 {
		if c := rapid.SampledFrom(changes.Services).Draw(t, "which"); c.New == nil {
			next.Services = next.Services.Delete(c.Key)
		} else {
			next.Services = next.Services.Set(c.Key, *c.New)
		}
	}
	if next.Validate() != nil {
		return q // one of another side may not be beside it
	}
	return &next
}

// servedConnections are some to each frontend of plans: with each backend that any set has,
// and past all of them.
func servedConnections(plans ...*plan.Plan) (all []Connection) {
	fronts, backends := map[plan.ServiceKey]bool{}, map[netip.AddrPort]bool{}
	sources := slices.Clone(plantest.Outside[:])
	for _, p := range plans {
		sources = append(sources, p.Local.Addresses...)
		for k := range p.Services.All() {
			if k.Protocol != plan.AnyProtocol {
				fronts[k] = true
			}
		}
		for k := range p.Backends.All() {
			backends[netip.AddrPortFrom(k.Address, k.Port)] = true
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(fronts), plan.ServiceKey.Compare) {
		for i, a := range sources {
			if a.Is4() != k.Address.Is4() {
				continue
			}
			dialled := netip.AddrPortFrom(k.Address, k.Port)
			c := Connection{Network: plan.DefaultNetwork, Protocol: k.Protocol, Source: netip.AddrPortFrom(a, uint16(40000+i)), Dialled: dialled, Destination: dialled}
			for _, c.Unanswered = range []bool{true, false} {
				all = append(all, c)
			}
			for to := range backends {
				if c.Served, c.Destination = true, to; to.Addr().Is4() == a.Is4() {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// A connection ends with its backend, and not before: one that is drained keeps those that
// it has. Datagrams that go past a frontend end once that has a backend.
func TestUnserved(t *testing.T) {
	const front = "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 udp 53 to dns\n"
	const streams = "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 tcp 53 to dns\n"
	at := netip.MustParseAddrPort
	served := Connection{Network: plan.DefaultNetwork, Protocol: plan.UDP, Source: at("172.30.0.2:4000"), Dialled: at("10.3.0.1:53"), Destination: at("10.1.1.2:5353"), Served: true}
	past := served
	past.Served, past.Destination = false, past.Dialled
	stream := past
	stream.Protocol = plan.TCP
	begun := stream
	begun.Unanswered = true
	others := served
	others.Served = false
	translated := others
	translated.Protocol, translated.Unanswered = plan.TCP, true
	open := served
	open.Protocol = plan.TCP
	const moved = "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 tcp 53 to new # Service a\nservice default 10.3.0.1 udp 53 to new # Service a\n" +
		"service default 10.3.0.2 tcp 53 to old # Service b\nbackend default new 10.1.1.3:5353\nbackend default old 10.1.1.2:5353\n"
	for _, c := range []struct {
		what, plan string
		connection Connection
		want       bool
	}{
		{"its backend is there", front + "backend default dns 10.1.1.2:5353\n", served, false},
		{"it is drained", front + "backend default dns 10.1.1.2:5353 weight 0\n", served, false},
		{"its port is another", front + "backend default dns 10.1.1.2:53\n", served, true},
		{"another is there", front + "backend default dns 10.1.1.3:5353\n", served, true},
		{"there is none", front, served, true},
		{"there is no frontend", "node node1 addresses 172.30.0.2\n", served, true},
		{"others do Services now", "node node1 addresses 172.30.0.2 services-left\n", served, false},
		{"others do, and the node still has the port of a pod", "node node1 addresses 172.30.0.2 services-left\nservice default 172.30.0.2 udp 53 to dns\n", served, false},
		{"others do all but that port", "node node1 addresses 172.30.0.2 services-left\nservice default 10.3.0.1 udp 53 to dns\n", served, true},
		{"the frontend is for others", "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 udp 53 from outside to dns\nbackend default dns 10.1.1.2:5353\n", served, true},
		{"its client is none of those whom it is for", "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 udp 53 to dns sources few\nsource default few 198.51.100.0/24\nbackend default dns 10.1.1.2:5353\n", served, true},
		{"its client is one of them", "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 udp 53 to dns sources few\nsource default few 172.30.0.0/24\nbackend default dns 10.1.1.2:5353\n", served, false},
		{"datagrams go past a frontend", front + "backend default dns 10.1.1.2:5353\n", past, true},
		{"and that has no backend", front + "backend default dns 10.1.1.2:5353 weight 0\n", past, false},
		{"the node itself answers now", "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 udp 53 from inside here\n", served, true},
		{"it does, and another program translated it", "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 udp 53 from inside here\n", others, true},
		{"it does, and nobody translated it", "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 udp 53 from inside here\n", past, false},
		{"a stream goes past it", streams + "backend default dns 10.1.1.2:5353\n", stream, false},
		{"a stream goes past it that nobody has answered", streams + "backend default dns 10.1.1.2:5353\n", begun, true},
		{"and it has no backend", streams + "backend default dns 10.1.1.2:5353 weight 0\n", begun, false},
		{"and the node itself answers now", "node node1 addresses 172.30.0.2\nservice default 10.3.0.1 tcp 53 from inside here\n", begun, false},
		{"and others do Services", "node node1 addresses 172.30.0.2 services-left\n", begun, false},
		{"another program translated it, to who is none", front + "backend default dns 10.1.1.3:5353\n", others, true},
		{"another program translated it, to who is one", front + "backend default dns 10.1.1.2:5353\n", others, false},
		{"another program translated it, which does Services", "node node1 addresses 172.30.0.2 services-left\n", others, false},
		{"another program translated it, where there is no frontend", "node node1 addresses 172.30.0.2\n", others, false},
		{"its stream has a backend that only another Service has", moved, open, true},
		{"its stream has one that the Service has behind another frontend", moved + "service default 10.3.0.9 tcp 53 to old # Service a\n", open, false},
		{"it has that, and no frontend any more", strings.ReplaceAll(moved, "10.3.0.1 tcp", "10.3.0.8 tcp") + "service default 10.3.0.9 tcp 53 to old # Service a\n", open, true},
		{"its datagrams have one that the Service has behind another frontend", moved + "service default 10.3.0.9 udp 53 to old # Service a\n", served, true},
		{"nobody says whose the frontends are", strings.ReplaceAll(moved, " # Service a", "") + "service default 10.3.0.9 tcp 53 to old\n", open, true},
		{"another program translated a stream", streams + "backend default dns 10.1.1.3:5353\n", translated, false},
	} {
		p, err := plan.Parse(c.plan)
		if err != nil {
			t.Fatal(err)
		}
		if got := NewJury(p, nil).Unserved(c.connection); got != c.want {
			t.Errorf("%s: it ends is %t", c.what, got)
		}
	}
}

// The first backend of one family is the first of that family, whatever others the set has.
func TestMayUnserveByFamily(t *testing.T) {
	parse := func(text string) *plan.Plan {
		p, err := plan.Parse("node node1 addresses 172.30.0.2,fd01::2\nservice default fd00:3::1 udp 53 to dns\nbackend default dns 10.1.1.2:53\n" + text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p, q := parse(""), parse("backend default dns [fd00:1::2]:53\n")
	past := netip.MustParseAddrPort("[fd00:3::1]:53")
	c := Connection{Network: plan.DefaultNetwork, Protocol: plan.UDP, Source: netip.MustParseAddrPort("[fd01::2]:4000"), Dialled: past, Destination: past}
	if NewJury(p, nil).Unserved(c) || !NewJury(q, nil).Unserved(c) || !MayUnserve(p, q, p.Diff(q)) {
		t.Error("datagrams that go past a frontend go on when it gets its first backend of their family")
	}
}

// Streams may lose their backend where another frontend comes to be another Service's.
func TestMayUnserveByOrigin(t *testing.T) {
	parse := func(whose string) *plan.Plan {
		p, err := plan.Parse("node node1 addresses 172.30.0.2\nservice default 10.3.0.1 tcp 80 to new # Service a\nservice default 10.3.0.2 tcp 80 to old # Service " + whose +
			"\nbackend default old 10.1.1.2:80\n")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p, q := parse("a"), parse("b")
	at := netip.MustParseAddrPort
	c := Connection{Network: plan.DefaultNetwork, Protocol: plan.TCP, Source: at("172.30.0.2:4000"), Dialled: at("10.3.0.1:80"), Destination: at("10.1.1.2:80"), Served: true}
	if NewJury(p, nil).Unserved(c) || !NewJury(q, nil).Unserved(c) || !MayUnserve(p, q, p.Diff(q)) {
		t.Error("a stream goes on when the frontend that had its backend, too, comes to another Service")
	}
}
