package datapath

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

const dualPlan = `node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1
pool default fd00:1::/64 gateway fd00:1::1
endpoint weftaaa name default/web network default addresses 10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02 anti-spoof # Pod default/web
route default 0.0.0.0/0 gateway
route default 10.1.1.0/24 drop # HostSubnet node1
route default 10.1.1.2/32 endpoint weftaaa
route default ::/0 gateway
route default fd00:1::/64 drop # HostSubnet node1
route default fd00:1::2/128 endpoint weftaaa
peer node2 addresses 172.30.0.3,fd00:9::3
route default fd00:2::/64 nexthop node2
egress default any 0.0.0.0/0 masquerade
egress default any ::/0 masquerade
`

// everything is what a data plane can do that lacks nothing.
func everything() Capabilities {
	return Capabilities{IPv6: true, Tunnels: true, Multipath: true, EndpointsOnlyHere: true, OverlappingNetworks: true, Tags: true,
		Verdicts: true, Services: true, AnswersHere: true, SCTP: true, Bandwidth: true, AntiSpoof: true,
		EgressActions: []plan.EgressAction{plan.Masquerade, plan.SourceNAT, plan.ViaNode}}
}

func TestPossible(t *testing.T) {
	all := everything()
	without := func(f func(*Capabilities)) Capabilities {
		c := all
		f(&c)
		return c
	}
	noIPv6 := without(func(c *Capabilities) { c.IPv6, c.NoIPv6 = false, "IPv6 is off" })
	only4 := `node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint weftaaa name default/web network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 anti-spoof # Pod default/web
route default 0.0.0.0/0 gateway
route default 10.1.1.0/24 drop # HostSubnet node1
route default 10.1.1.2/32 endpoint weftaaa
egress default any 0.0.0.0/0 masquerade
`
	const tunnel = "network default in vxlan vni 0-99 # ClusterNetwork default\ntunnel vxlan port 4789 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02"
	const peers = "peer node2 addresses 172.30.0.3,fd00:9::3\n"
	for _, c := range []struct {
		name       string
		able       Capabilities
		text, want string
		refusals   []Refusal
	}{
		{"all is possible", all, dualPlan, dualPlan, nil},
		{"no IPv6, and a subnet of it", noIPv6, dualPlan, only4 + peers, []Refusal{
			{Origin: "HostSubnet node1", Message: "pods get no address of fd00:1::/64 on this node: IPv6 is off"},
			{Origin: "Pod default/web", Message: "pod default/web is not reached under its IPv6 address: IPv6 is off"}}},
		{"no IPv6, and nobody asked for it", noIPv6, only4 + "route default ::/0 gateway\negress default any ::/0 masquerade\n", only4, nil},
		{"no IPv6, and a pod that has nothing else", noIPv6,
			only4 + "endpoint weftbbb name default/six network default addresses fd00:1::3 mac 0a:58:0a:01:01:03 # Pod default/six\n" +
				"route default fd00:1::3/128 endpoint weftbbb\nroute default 10.1.9.9/32 endpoint weftbbb # Route x\negress default endpoint weftbbb 0.0.0.0/0 direct\n",
			only4 + "route default 10.1.9.9/32 drop # Route x\n",
			[]Refusal{{Origin: "Pod default/six", Message: "pod default/six is cut off: it has no address but of IPv6, and IPv6 is off"}}},
		{"no IPv6 and no bandwidth", without(func(c *Capabilities) { c.IPv6, c.NoIPv6, c.Bandwidth = false, "IPv6 is off", false }),
			strings.Replace(only4, "10.1.1.2 mac 0a:58:0a:01:01:02 anti-spoof", "10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02 anti-spoof ingress-rate 1000", 1), only4, []Refusal{
				{Origin: "Pod default/web", Message: "pod default/web is not reached under its IPv6 address: IPv6 is off"},
				{Origin: "Pod default/web", Message: "this data plane limits no bandwidth: pod default/web has no limit"}}},
		{"no way through another node", without(func(c *Capabilities) { c.EgressActions = c.EgressActions[:2] }),
			only4 + "egress default any 203.0.113.0/24 via node2 # EgressIP x\n", only4 + "egress default any 203.0.113.0/24 drop # EgressIP x\n",
			[]Refusal{{Origin: "EgressIP x", Message: "this data plane cannot do egress default any 203.0.113.0/24 via node2 # EgressIP x: what it is about is dropped"}}},
		{"no services", without(func(c *Capabilities) { c.Services = false }),
			only4 + "service default 10.3.0.1 tcp 80 to web sources web # Service default/web\nbackend default web 10.1.2.2:8080\nsource default web 192.0.2.0/24\n", only4,
			[]Refusal{{Origin: "Service default/web", Message: "this data plane does no Services: service default 10.3.0.1 tcp 80 to web sources web # Service default/web is not there on this node"}}},
		{"no answers of the node's own", without(func(c *Capabilities) { c.AnswersHere = false }),
			only4 + "service default 10.3.0.1 udp 53 from inside here # Service kube-system/kube-dns\nservice default 10.3.0.1 any # Service kube-system/kube-dns\n",
			only4 + "service default 10.3.0.1 any # Service kube-system/kube-dns\n",
			[]Refusal{{Origin: "Service kube-system/kube-dns", Message: "this data plane does not have the node itself answer: service default 10.3.0.1 udp 53 from inside here # Service kube-system/kube-dns is not there on this node"}}},
		{"no networks", without(func(c *Capabilities) { c.OverlappingNetworks = false }),
			only4 + "endpoint other name blue/x network blue addresses 10.1.1.2 mac 0a:58:0a:01:01:02\negress blue endpoint other 0.0.0.0/0 drop\n", only4,
			[]Refusal{{Message: "pod blue/x is cut off: this data plane knows no network of its own as blue"}}},
		{"one peer alone", without(func(c *Capabilities) { c.Multipath = false }),
			only4 + peers + "route default 10.1.2.0/24 nexthop node2,node3 # Lease a\n", only4 + peers + "route default 10.1.2.0/24 nexthop node2 # Lease a\n",
			[]Refusal{{Origin: "Lease a", Message: "this data plane shares nothing among peers: all for 10.1.2.0/24 goes by way of node2"}}},
		{"no tags in the tunnel", without(func(c *Capabilities) { c.Tags = false }),
			only4 + tunnel + " carries-tags\npeer node3 ends vxlan@172.30.0.4@0a:58:ac:1e:00:04 carries-tags\n", only4 + tunnel + "\npeer node3 ends vxlan@172.30.0.4@0a:58:ac:1e:00:04\ntag default 172.30.0.4/32 16777215\n",
			[]Refusal{{Origin: "ClusterNetwork default", Message: "this data plane sends no tags through the tunnel: other nodes know those of this one's pods by their addresses"},
				{Message: "this data plane takes no tags from the tunnel: who is known by nothing else is of tag 16777215 here, which no policy allows anything"}}},
		{"no tunnels", without(func(c *Capabilities) { c.Tunnels = false }),
			strings.Replace(only4, "gateway 10.1.1.1", "gateway 10.1.1.1 tunnel vxlan", 1) + tunnel + "\npeer node3 addresses 172.30.0.4 ends vxlan@172.30.0.4@0a:58:ac:1e:00:04\n" +
				"route default 10.1.3.0/24 tunnel node3 # HostSubnet node3\nroute default 172.30.0.4/32 tunnel node3 endpoints-only # Node node3\n",
			only4 + "network default in vxlan vni 0-99 # ClusterNetwork default\npeer node3 addresses 172.30.0.4 ends vxlan@172.30.0.4@0a:58:ac:1e:00:04\n" +
				"route default 10.1.3.0/24 drop # HostSubnet node3\nroute default 172.30.0.4/32 drop endpoints-only # Node node3\n", []Refusal{
				{Origin: "HostSubnet node3", Message: "this data plane makes no tunnels: what is for 10.1.3.0/24, by way of node3, is dropped"},
				{Origin: "Node node3", Message: "this data plane makes no tunnels: what is for 172.30.0.4/32, by way of node3, is dropped"}}},
		{"no IPv6, and a tunnel over it", noIPv6,
			only4 + strings.ReplaceAll(tunnel, "172.30.0.2", "fd00:9::2") + "\npeer node3 ends vxlan@fd00:9::4@0a:58:ac:1e:00:04\nroute default 10.1.3.0/24 tunnel node3 # HostSubnet node3\n",
			only4 + "network default in vxlan vni 0-99 # ClusterNetwork default\npeer node3 ends vxlan@fd00:9::4@0a:58:ac:1e:00:04\nroute default 10.1.3.0/24 drop # HostSubnet node3\n",
			[]Refusal{{Origin: "HostSubnet node3", Message: "tunnel vxlan is over IPv6, and IPv6 is off: what is for 10.1.3.0/24, by way of node3, is dropped"}}},
		{"no policies", without(func(c *Capabilities) { c.Verdicts = false }),
			only4 + "endpoint weftbbb name default/db network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03 ingress-policy p # Pod default/db\n" +
				"route default 10.1.1.3/32 endpoint weftbbb # Pod default/db\nverdict p ingress from 5 tcp 80 allow\nclass default 10.1.2.0/24 c1\nwithin c1 c2\ntag default 10.1.3.0/24 5\n",
			only4 + "route default 10.1.1.3/32 drop # Pod default/db\n",
			[]Refusal{{Origin: "Pod default/db", Message: "pod default/db is cut off: this data plane enforces no policies, and it is under one"}}},
		{"no check of sources", without(func(c *Capabilities) { c.AntiSpoof = false }), only4,
			"node node1 addresses 172.30.0.2 mtu 1450\npool default 10.1.1.0/24 gateway 10.1.1.1\nroute default 0.0.0.0/0 gateway\n" +
				"route default 10.1.1.0/24 drop # HostSubnet node1\nroute default 10.1.1.2/32 drop\negress default any 0.0.0.0/0 masquerade\n",
			[]Refusal{{Origin: "Pod default/web", Message: "pod default/web is cut off: this data plane cannot keep it from sending with others' addresses"}}},
		{"no ways here for endpoints only", without(func(c *Capabilities) { c.EndpointsOnlyHere = false }),
			only4 + "route default 10.7.0.0/16 gateway endpoints-only # Route a\nroute default 10.8.0.0/16 drop endpoints-only\nroute default 10.9.9.9/32 endpoint weftaaa endpoints-only # Route b\n",
			only4 + "route default 10.7.0.0/16 drop endpoints-only # Route a\nroute default 10.8.0.0/16 drop endpoints-only\nroute default 10.9.9.9/32 drop # Route b\n", []Refusal{
				{Origin: "Route a", Message: "this data plane has no way of its own for pods that leads to gateway: what pods send to 10.7.0.0/16 is dropped"},
				{Origin: "Route b", Message: "this data plane has no way of its own for pods that leads to endpoint: what pods send to 10.9.9.9/32 is dropped"}}},
		{"no bandwidth", without(func(c *Capabilities) { c.Bandwidth = false }),
			strings.Replace(only4, " anti-spoof", " anti-spoof ingress-rate 1000", 1), only4,
			[]Refusal{{Origin: "Pod default/web", Message: "this data plane limits no bandwidth: pod default/web has no limit"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := plan.Parse(c.text)
			if err != nil {
				t.Fatal(err)
			}
			want, err := plan.Parse(c.want)
			if err != nil {
				t.Fatal(err)
			}
			got, refusals := Possible(p, c.able)
			if diff := cmp.Diff(want.String(), got.String()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.refusals, refusals); diff != "" {
				t.Error(diff)
			}
			if err := got.Validate(); err != nil {
				t.Error(err)
			}
			if c.text == c.want && got != p {
				t.Error("a plan of which all is possible is not the same")
			}
			if again, _ := Possible(got, c.able); again != got {
				t.Error("what is possible is not possible")
			}
		})
	}
}

// TestPossibleWithoutTags has a node that takes no tags from the tunnel: nothing gets to
// its endpoints that does not with tags, and what is known without them does.
func TestPossibleWithoutTags(t *testing.T) {
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		plans := plantest.Tagged().Draw(t, "shape").Plans()
		without := maps.Clone(plans)
		able := everything()
		able.Tags = false
		p, _ := Possible(plans["node1"], able)
		without["node1"] = p
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		for range 300 {
			f := plantest.Flows(plans).Draw(t, "flow")
			with, is := plan.Explain(plans, f), plan.Explain(without, f)
			if is.Node != "node1" && with.Node != "node1" || with.Steps[0].Node == "node1" {
				continue // where others are asked, they go by what this node sends
			}
			if outcomes[fmt.Sprint(with.Allowed, is.Allowed)]++; is.Allowed && !with.Allowed {
				t.Fatalf("%s passes where no tag is known:\n%s\n%s", f, is, p)
			}
		}
	})
	for _, o := range []string{"true true", "true false"} {
		if outcomes[o] == 0 {
			t.Errorf("with tags and without them it passes: %v; expected some %s", outcomes, o)
		}
	}
}

// capabilities generates what a data plane may be able to do: anything, most often much.
func capabilities() *rapid.Generator[Capabilities] {
	return rapid.Custom(func(t *rapid.T) Capabilities {
		can := func(what string) bool { return rapid.IntRange(0, 3).Draw(t, what) > 0 }
		c := Capabilities{IPv6: can("IPv6"), Tunnels: can("tunnels"), Multipath: can("multipath"), EndpointsOnlyHere: can("endpoints only"),
			OverlappingNetworks: can("networks"), Tags: can("tags"), Verdicts: can("verdicts"), Services: can("services"), AnswersHere: can("answers here"),
			SCTP: can("SCTP"), Bandwidth: can("bandwidth"), AntiSpoof: can("anti-spoof"), NoIPv6: "IPv6 is off"}
		for _, a := range []plan.EgressAction{plan.Masquerade, plan.Discard, plan.SourceNAT, plan.ViaNode} {
			if can(string(a)) {
				c.EgressActions = append(c.EgressActions, a)
			}
		}
		return c
	})
}

// TestPossibleForAnybody has data planes that lack anything, and plans that ask for
// everything: what is made of a plan can be done, and lets nothing pass that the plan does
// not.
func TestPossibleForAnybody(t *testing.T) {
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		plans, able := plantest.Demanding().Draw(t, "plans"), capabilities().Draw(t, "capabilities")
		p := plans["node1"]
		possible, impossible := Possible(p, able)
		got, refused := Enforceable(possible, able, nil)
		if err := got.Validate(); err != nil {
			t.Fatalf("%v\nof:\n%s\nwith %+v", err, p, able)
		}
		if lacks := Lacks(got, able); len(lacks) > 0 {
			t.Fatalf("it asks for %s, with %+v:\n%s", lacks, able, got)
		}
		if Lacks(p, able) == nil && (got != p || len(impossible)+len(refused) > 0) {
			t.Fatalf("all of it can be done, and there is refused %v %v", impossible, refused)
		}
		for _, r := range impossible {
			if r.Origin == "" && !isPool(p, r.Message) {
				t.Fatalf("%q is of no object, in:\n%s", r.Message, p)
			}
		}
		for _, r := range refused {
			if r.Verdict.Origin == "" {
				t.Fatalf("%q is of no object, in:\n%s", r.Message, p)
			}
		}
		without := maps.Clone(plans)
		without["node1"] = got
		for range 60 {
			f := flows(plans).Draw(t, "flow")
			for k, e := range p.Endpoints.All() {
				// Without the endpoint the same question would be about a stranger's packet.
				if f.Interface == "" && e.Network == f.Network && slices.Contains(e.Addresses, f.Source) {
					f.Interface = k.Interface
				}
			}
			if f.Source.Is6() && !able.IPv6 {
				continue // no such packet is on the node
			}
			if _, _, ok := p.Service(f.Network, f.Destination, f.Protocol, f.Port, plan.Inside); ok && !able.Services {
				continue // routes say what becomes of it
			}
			with, is := plan.Explain(plans, f), plan.Explain(without, f)
			if !slices.ContainsFunc(is.Steps, func(s plan.Step) bool { return s.Node == "node1" }) && is.Allowed {
				continue // it is none of the node's
			}
			if !able.Tags && is.Allowed && is.Steps[0].Node == "node1" && is.Node != "node1" {
				continue // the other node judges by the tag, which it does not get
			}
			// Where it leaves the cluster for somebody in it, it does so in both.
			passes := with.Allowed || strings.Contains(with.Reason, "lets it leave the cluster")
			if outcomes[fmt.Sprint(with.Allowed, is.Allowed)]++; is.Allowed && !passes {
				t.Fatalf("%s passes with %+v:\n%s\nand not with all:\n%s\n%s\n%s", f, able, is, with, p, got)
			}
		}
	})
	for _, o := range []string{"true true", "true false", "false false"} {
		if outcomes[o] == 0 {
			t.Errorf("as asked for and as it is made it passes: %v; expected some %s", outcomes, o)
		}
	}
}

// isPool reports whether a message is about a pool, which has no origin where no route is
// there for the whole of it.
func isPool(p *plan.Plan, message string) bool {
	return slices.ContainsFunc(p.Local.Pools, func(pool plan.Pool) bool {
		_, _, routed := p.RouteAround(pool.Network, pool.Prefix, false)
		return !routed && strings.Contains(message, pool.Prefix.String())
	})
}

// flows generates flows for the plans of a cluster, many of which the first node's entries
// are about.
func flows(plans map[string]*plan.Plan) *rapid.Generator[plan.Flow] {
	p := plans["node1"]
	ordinary := plantest.Flows(plans)
	return rapid.Custom(func(t *rapid.T) plan.Flow {
		f := ordinary.Draw(t, "ordinary")
		f.Network = plan.DefaultNetwork
		var keys []plan.EndpointKey
		for k := range p.Endpoints.All() {
			keys = append(keys, k)
		}
		if len(keys) > 0 && rapid.Bool().Draw(t, "from an endpoint") {
			k := rapid.SampledFrom(keys).Draw(t, "endpoint")
			e, _ := p.Endpoints.Get(k)
			f.Network, f.Interface = e.Network, k.Interface
			f.Source = rapid.SampledFrom(e.Addresses).Draw(t, "source")
			if rapid.IntRange(0, 4).Draw(t, "forges") == 0 {
				f.Source = plantest.Addr().Draw(t, "forged")
			}
		}
		var to []netip.Addr
		for k := range p.Routes.All() {
			if k.Network == f.Network && k.Prefix.Addr().Is4() == f.Source.Is4() {
				to = append(to, k.Prefix.Addr(), k.Prefix.Addr().Next())
			}
		}
		if f.Destination.Is4() != f.Source.Is4() {
			to = append(to, plantest.Outside[map[bool]int{true: 0, false: 1}[f.Source.Is4()]])
		}
		if len(to) > 0 && (rapid.Bool().Draw(t, "to a route") || f.Destination.Is4() != f.Source.Is4()) {
			f.Destination = rapid.SampledFrom(to).Draw(t, "destination")
		}
		f.Protocol = rapid.SampledFrom([]plan.Protocol{plan.TCP, plan.UDP, plan.SCTP}).Draw(t, "with")
		return f
	})
}

// TestServicesOfOtherNetworks leaves out what a data plane that knows the default network alone
// cannot do, whether its network is the first in order or the last.
func TestServicesOfOtherNetworks(t *testing.T) {
	able := everything()
	able.OverlappingNetworks = false
	address := netip.MustParseAddr("10.96.0.1")
	own := plan.NewBuilder(nil)
	put := func(b *plan.Builder, network string) {
		b.PutService(plan.ServiceKey{Network: network, Address: address, Protocol: plan.TCP, Port: 80}, plan.Service{Set: "web", Sources: "all"})
		b.PutBackend(plan.BackendKey{Network: network, Set: "web", Address: netip.MustParseAddr("10.1.1.2"), Port: 80}, plan.Backend{Weight: 1})
		b.PutSource(plan.SourceKey{Network: network, Name: "all", Prefix: netip.MustParsePrefix("0.0.0.0/0")}, plan.Source{})
	}
	put(own, plan.DefaultNetwork)
	want := own.Build()
	if got, refused := Possible(want, able); got != want || len(refused) > 0 {
		t.Errorf("of the default network alone, %v is refused", refused)
	}
	for _, other := range []string{"a", "defaults", "z"} {
		both := plan.NewBuilder(nil)
		put(both, plan.DefaultNetwork)
		put(both, other)
		got, refused := Possible(both.Build(), able)
		if !got.Equal(want) || len(refused) != 1 {
			t.Errorf("with network %s, it is\n%sand %v is refused", other, got, refused)
		}
	}
}
