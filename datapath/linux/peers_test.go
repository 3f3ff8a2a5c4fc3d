package linux

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
)

// TestPeersSets checks that the hash of subnets and the ranges together say of
// every address what the members do, whatever the lengths of the peers' subnets.
func TestPeersSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vtep := netip.MustParseAddr("172.30.0.1")
		p := &plan.Plan{}
		p.Local.Tunnel.VTEP = vtep
		bits := rapid.SampledFrom([]int{0, 24, 26, 32}).Draw(t, "own length")
		if bits > 0 {
			p.Local.Pools = []plan.Pool{{Prefix: netip.PrefixFrom(netip.MustParseAddr("10.1.0.0"), bits)}}
		}
		address := func(label string) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 1, byte(rapid.IntRange(0, 3).Draw(t, label)), byte(rapid.SampledFrom([]int{0, 1, 63, 64, 128, 255}).Draw(t, label))})
		}
		behind := map[netip.Prefix]netip.Addr{}
		for i := range rapid.IntRange(0, 8).Draw(t, "prefixes") {
			prefix := netip.PrefixFrom(address("prefix"), rapid.SampledFrom([]int{22, 24, 26, 32}).Draw(t, "length")).Masked()
			behind[prefix] = netip.AddrFrom4([4]byte{172, 30, 0, byte(2 + i%3)})
		}
		s := &sources{}
		for _, i := range flattenFamily(behind, true) {
			s.members = append(s.members, member{i.first, i.last, i.value})
		}
		r := newRuleset(tableName)
		r.peers(p, s)
		for range 20 {
			a, peer := address("address"), netip.AddrFrom4([4]byte{172, 30, 0, byte(rapid.IntRange(2, 4).Draw(t, "peer"))})
			want, got := false, false
			for _, m := range s.members {
				want = want || m.vtep == peer && !a.Less(m.first) && !m.last.Less(a)
			}
			key := string(peer.AsSlice()) + string(a.AsSlice())
			for e := range r.sets["members-4"].elements {
				got = got || e.key[:4] == key[:4] && e.key <= key && key <= e.last
			}
			if bits > 0 {
				subnet := netip.PrefixFrom(a, bits).Masked().Addr()
				_, in := r.sets["subnets-4"].elements[element{key: string(peer.AsSlice()) + string(subnet.AsSlice())}]
				got = got || in
			}
			if got != want {
				t.Fatalf("%s behind %s: the sets say %v, the members %v", a, peer, got, want)
			}
		}
	})
}
