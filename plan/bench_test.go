package plan_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weftnet/weft/plan"
)

const manyPeers = 100_000

// manyRoutes is the plan of a node with very many peers.
func manyRoutes(previous *plan.Plan, tag plan.Tag) *plan.Plan {
	b := plan.NewBuilder(previous)
	vtep := netip.MustParseAddr("172.16.0.1")
	b.Local = plan.Local{Node: "node0", Addresses: []netip.Addr{vtep}, Tunnels: []plan.Tunnel{{Name: "vxlan", VTEP: vtep, MAC: plan.MACOf(vtep), Port: 4789}}}
	b.Local.Pools = []plan.Pool{{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("11.0.0.0/24"), Gateway: netip.MustParseAddr("11.0.0.1"), Tunnel: "vxlan"}}
	b.PutEndpoint(plan.EndpointKey{Interface: "weft0"}, plan.Endpoint{Network: plan.DefaultNetwork, Addresses: []netip.Addr{netip.MustParseAddr("11.0.0.2")}})
	for i := range manyPeers {
		via := netip.AddrFrom4([4]byte{172, byte(17 + i>>16), byte(i >> 8), byte(i)})
		peer := fmt.Sprint("node", i+1)
		b.PutPeer(plan.PeerKey{Name: peer}, plan.Peer{Addresses: []netip.Addr{via}, Ends: []plan.TunnelEnd{{Tunnel: "vxlan", VTEP: via, MAC: plan.MACOf(via)}}, Origin: "HostSubnet"})
		b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(12 + i>>16), byte(i >> 8), byte(i), 0}), 24)},
			plan.Route{Way: plan.ToTunnel, Peers: []string{peer}, Origin: "HostSubnet"})
	}
	b.PutTag(plan.TagKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("12.0.0.0/24")}, plan.Tagging{Tag: tag})
	return b.Build()
}

func BenchmarkBuildFromNothing(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		manyRoutes(nil, 0)
	}
}

func BenchmarkBuildOneChange(b *testing.B) {
	previous := manyRoutes(nil, 0)
	b.ReportAllocs()
	for b.Loop() {
		manyRoutes(previous, 1)
	}
}

func BenchmarkDiffOneChange(b *testing.B) {
	previous := manyRoutes(nil, 0)
	next := manyRoutes(previous, 1)
	b.ReportAllocs()
	for b.Loop() {
		if previous.Diff(next).Len() != 1 {
			b.Fatal("not one change")
		}
	}
}

func BenchmarkValidate(b *testing.B) {
	p := manyRoutes(nil, 0)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Validate(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidateAfterOneChange(b *testing.B) {
	previous := manyRoutes(nil, 0)
	next := manyRoutes(previous, 1)
	b.ReportAllocs()
	for b.Loop() {
		if err := next.ValidateAfter(previous); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkString(b *testing.B) {
	p := manyRoutes(nil, 0)
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(p.String())))
	}
}

func BenchmarkParse(b *testing.B) {
	text := manyRoutes(nil, 0).String()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := plan.Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExplain(b *testing.B) {
	plans := map[string]*plan.Plan{"node0": manyRoutes(nil, 0)}
	f := plan.Flow{Source: netip.MustParseAddr("11.0.0.2"), Destination: netip.MustParseAddr("12.200.7.9"), Protocol: plan.TCP, Port: 80}
	b.ReportAllocs()
	for b.Loop() {
		if e := plan.Explain(plans, f); !e.Allowed {
			b.Fatal(e)
		}
	}
}

// BenchmarkTable makes a table of as many entries, of all at once.
func BenchmarkTable(b *testing.B) {
	var edits []plan.Edit[plan.RouteKey, plan.Route]
	for k, v := range manyRoutes(nil, 0).Routes.All() {
		edits = append(edits, plan.Edit[plan.RouteKey, plan.Route]{Key: k, Value: v})
	}
	b.ReportAllocs()
	for b.Loop() {
		plan.Table[plan.RouteKey, plan.Route]{}.With(edits)
	}
}
