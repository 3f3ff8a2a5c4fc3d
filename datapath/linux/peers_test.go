package linux

import (
	"net/netip"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// TestPeersSets checks that the rules and their sets together say of every
// address what the members do, whatever the families and the lengths of the
// node's own subnets and the peers'.
func TestPeersSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		outer4, inner4 := rapid.Bool().Draw(t, "outer IPv4"), rapid.Bool().Draw(t, "inner IPv4")
		vtep := func(i int) netip.Addr {
			if outer4 {
				return netip.AddrFrom4([4]byte{172, 30, 0, byte(i)})
			}
			return netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 15: byte(i)})
		}
		address := func(label string) netip.Addr {
			a, b := byte(rapid.IntRange(0, 3).Draw(t, label)), byte(rapid.SampledFrom([]int{0, 1, 63, 64, 128, 255}).Draw(t, label))
			if inner4 {
				return netip.AddrFrom4([4]byte{10, 1, a, b})
			}
			return netip.AddrFrom16([16]byte{0: 0xfd, 14: a, 15: b})
		}
		prefix := func(label string, lengths ...int) netip.Prefix {
			a := address(label)
			return netip.PrefixFrom(a, a.BitLen()-32+rapid.SampledFrom(lengths).Draw(t, label)).Masked()
		}
		p, tunnel := &plan.Plan{}, plan.Tunnel{Name: "vxlan", VTEP: vtep(1)}
		for range rapid.IntRange(0, 2).Draw(t, "own subnets") {
			p.Local.Pools = append(p.Local.Pools, plan.Pool{Prefix: prefix("own", 24, 26, 32)})
		}
		behind := map[netip.Prefix]netip.Addr{}
		for i := range rapid.IntRange(0, 8).Draw(t, "prefixes") {
			behind[prefix("prefix", 22, 24, 26, 32)] = vtep(2 + i%3)
		}
		var s tunnelSources
		for _, i := range interval.FlattenFamily(behind, inner4) {
			s.members = append(s.members, member{i.First, i.Last, i.Value})
		}
		r := newRuleset(stamps.Default, stamps.Default.Table)
		c := r.Chain("tunnel")
		const offset = 40
		r.peers(p, tunnel, &sources{tunnels: map[string]tunnelSources{"vxlan": s}}).behind(c, "", nil, inner4, offset, nft.Accept)
		for range 20 {
			a, peer := address("address"), vtep(rapid.IntRange(2, 4).Draw(t, "peer"))
			want := false
			for _, m := range s.members {
				want = want || m.vtep == peer && !a.Less(m.first) && !m.last.Less(a)
			}
			if got := accepts(t, r, c, peer, append(make([]byte, offset), a.AsSlice()...)); got != want {
				t.Fatalf("%s behind %s: the rules say %v, the members %v", a, peer, got, want)
			}
		}
	})
}

// accepts reports whether a rule of a chain takes a packet from a source with
// what is given from its transport header on. It knows the expressions that load,
// mask and look up.
func accepts(t *rapid.T, r *ruleset, c *nft.Chain, source netip.Addr, transport []byte) bool {
	for _, rule := range c.Rules {
		var registers [80]byte
		at := func(register uint32) []byte {
			if register >= unix.NFT_REG32_00 {
				return registers[(register-unix.NFT_REG32_00)*4:]
			}
			return registers[(register-unix.NFT_REG_1)*16:]
		}
		matches := true
		for _, e := range rule.Exprs {
			switch e := e.(type) {
			case *expr.Payload:
				from := transport[min(int(e.Offset), len(transport)):]
				if e.Base == expr.PayloadBaseNetworkHeader {
					offset := uint32(12) // RFC 791, section 3.1
					if source.Is6() {
						offset = 8 // RFC 8200, section 3
					}
					if e.Offset != offset {
						t.Fatalf("byte %d of the network header is loaded, the source of %s is at %d", e.Offset, source, offset)
					}
					from = source.AsSlice()
				}
				copy(at(e.DestRegister)[:e.Len], from)
			case *expr.Bitwise:
				for i := range e.Len {
					at(e.DestRegister)[i] = at(e.SourceRegister)[i]&e.Mask[i] ^ e.Xor[i]
				}
			case *expr.Lookup:
				matches = matches && hasPair(r.Sets[e.SetName], source, at(e.SourceRegister))
			case *expr.Verdict:
				if matches {
					return e.Kind == expr.VerdictAccept
				}
			case *expr.Counter:
			case *expr.Cmp, *expr.Meta: // of the family, which is the source's
			default:
				t.Fatalf("a rule has %T, which is not known here", e)
			}
		}
	}
	return false
}

// hasPair reports whether a set of pairs of addresses has the pair that registers
// begin with, the first of which is of the source's family.
func hasPair(s *nft.Set, source netip.Addr, registers []byte) bool {
	first := source.BitLen() / 8
	for e := range s.Elements {
		key := string(registers[:len(e.Key)])
		last := e.Last
		if last == "" {
			last = e.Key
		}
		if e.Key[:first] <= key[:first] && key[:first] <= last[:first] && e.Key[first:] <= key[first:] && key[first:] <= last[first:] {
			return true
		}
	}
	return false
}
