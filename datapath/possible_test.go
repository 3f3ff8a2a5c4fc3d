package datapath

import (
	"fmt"
	"maps"
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

func TestPossible(t *testing.T) {
	all := Capabilities{IPv6: true, Multipath: true, Tags: true, OverlappingNetworks: true, Services: true, Bandwidth: true,
		EgressActions: []plan.EgressAction{plan.Masquerade, plan.Discard, plan.SourceNAT, plan.ViaNode}}
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
		{"no way through another node", without(func(c *Capabilities) { c.EgressActions = c.EgressActions[:3] }),
			only4 + "egress default any 203.0.113.0/24 via node2 # EgressIP x\n", only4 + "egress default any 203.0.113.0/24 drop # EgressIP x\n",
			[]Refusal{{Origin: "EgressIP x", Message: "this data plane cannot do egress default any 203.0.113.0/24 via node2 # EgressIP x: what it is about is dropped"}}},
		{"no services", without(func(c *Capabilities) { c.Services = false }),
			only4 + "service default 10.3.0.1 tcp 80 to 10.1.2.2:8080\n", only4,
			[]Refusal{{Message: "this data plane does no Services: service default 10.3.0.1 tcp 80 to 10.1.2.2:8080 is not there on this node"}}},
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
		p, _ := Possible(plans["node1"], Capabilities{IPv6: true, Multipath: true, OverlappingNetworks: true, Services: true, Bandwidth: true,
			EgressActions: []plan.EgressAction{plan.Masquerade, plan.Discard, plan.SourceNAT, plan.ViaNode}})
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
