package linux

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/datapath/profile"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// TestTorn judges packets while the elements change between any two of their lookups.
// What both plans say of them holds at each moment.
func TestTorn(t *testing.T) {
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		first := plantest.Policed(plantest.Shapes()).Draw(t, "first")
		second := first
		other := plantest.Policed(rapid.Just(first)).Draw(t, "second")
		second.Tags, second.Classes, second.Verdicts, second.Within, second.Policed = other.Tags, other.Classes, other.Verdicts, other.Within, other.Policed
		p, q := first.Plans()["node1"], second.Plans()["node1"]
		if p == nil || q == nil || !profile.Policed(p) || !profile.Policed(q) {
			return
		}
		var interfaces []string
		var addresses []netip.Addr
		for _, of := range []*plan.Plan{p, q} {
			for k, e := range of.Endpoints.All() {
				interfaces, addresses = append(interfaces, k.Interface), append(addresses, e.Addresses...)
			}
			for k := range of.AllClasses() {
				addresses = append(addresses, k.Prefix.Addr())
			}
		}
		var v4 []netip.Addr
		for _, a := range addresses {
			if a.Is4() {
				v4 = append(v4, a)
			}
		}
		if len(v4) == 0 {
			return
		}
		for range 8 { // so that each outcome is among a hundred cases
			tear(t, p, q, tornPacket{
				in: rapid.SampledFrom(append(interfaces, "eth0")).Draw(t, "in"), out: rapid.SampledFrom(append(interfaces, "eth0")).Draw(t, "out"),
				from: rapid.SampledFrom(v4).Draw(t, "from"), to: rapid.SampledFrom(v4).Draw(t, "to"),
				protocol: rapid.SampledFrom([]plan.Protocol{plan.TCP, plan.UDP}).Draw(t, "protocol"), port: rapid.SampledFrom([]uint16{80, 8080, 8081, 8082}).Draw(t, "port"),
			}, outcomes)
		}
	})
	for _, o := range []string{"false false false", "true true true", "false true true", "true false false"} {
		if outcomes[o] == 0 {
			t.Errorf("outcomes of the old plan, the next and between: %v; expected some %s", outcomes, o)
		}
	}
}

// TestTornByHand has changes of which each is torn in another place.
func TestTornByHand(t *testing.T) {
	const node = `node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint a network default addresses 10.1.1.2 egress-policy e
endpoint b network default addresses 10.1.1.3 ingress-policy i
verdict i ingress from any any allow
class default 10.1.1.3/32 c7
`
	for _, c := range []struct{ what, old, next string }{
		{"a class and a verdict", "class default 10.1.2.2/32 c0\nverdict e egress to c1 any allow\n", "class default 10.1.2.2/32 c1\nverdict e egress to c0 any allow\n"},
		{"the class of a prefix and a verdict", "class default 10.1.2.0/24 c0\nverdict e egress to c1 any allow\n", "class default 10.1.2.0/24 c1\nverdict e egress to c0 any allow\n"},
		{"what is denied of a class, of all that is allowed", "class default 10.1.2.2/32 c0\nverdict e egress to any any allow\nverdict e egress to c0 udp 80 deny\n",
			"class default 10.1.2.2/32 c0\nverdict e egress to any any allow\nverdict e egress to c0 udp 80-81 deny\n"},
	} {
		outcomes := map[string]int{}
		tear(t, mustParse(t, node+c.old), mustParse(t, node+c.next),
			tornPacket{in: "a", out: "eth0", from: netip.MustParseAddr("10.1.1.2"), to: netip.MustParseAddr("10.1.2.2"), protocol: plan.UDP, port: 80}, outcomes)
		if len(outcomes) != 1 || outcomes["false false false"] == 0 {
			t.Errorf("%s: the outcomes are %v; expected that neither plan allows it", c.what, outcomes)
		}
	}
	// Who sends by the one plan, and who gets by the other.
	outcomes := map[string]int{}
	tear(t, mustParse(t, node+"verdict e egress to any any allow\nverdict i ingress from c9 any deny\nclass default 10.1.1.2/32 c9\n"), mustParse(t, node),
		tornPacket{in: "a", out: "b", from: netip.MustParseAddr("10.1.1.2"), to: netip.MustParseAddr("10.1.1.3"), protocol: plan.UDP, port: 80}, outcomes)
	if len(outcomes) != 1 || outcomes["false false false"] == 0 {
		t.Errorf("both directions: the outcomes are %v; expected that neither plan allows it", outcomes)
	}
}

// tear has a packet judged while one plan becomes another before each of its lookups,
// and counts outcomes: by the old plan, by the next, and between.
func tear(t interface {
	Helper()
	Fatalf(string, ...any)
}, p, q *plan.Plan, packet tornPacket, outcomes map[string]int) {
	t.Helper()
	state, rules := compilePolicies(stamps.Default, p, false, counting{generation: generations - 1})
	start := elementsOf(rules)
	prepare, change, counts := state.counts.stages(state.advance(p, q, p.Diff(q)))
	prepared := applied(start, prepare)
	end := applied(prepared, change)
	_, after := compilePolicies(stamps.Default, q, false, counts)
	for name, s := range after.Sets {
		if len(change) > 0 && !maps.Equal(end[name], s.Elements) {
			t.Fatalf("%s is not as the whole plan has it, from:\n%s\nto:\n%s", name, p, q)
		}
	}
	verdict := func(of map[string]nft.Elements) (bool, int) {
		return judgeTorn(t, rules, packet, func(int, *nft.Set) map[string]nft.Elements { return of })
	}
	old, lookups := verdict(start)
	next, _ := verdict(end)
	check := func(what string, found func(lookup int, s *nft.Set) map[string]nft.Elements) {
		got, _ := judgeTorn(t, rules, packet, found)
		if old == next && got != old {
			t.Fatalf("%+v passes is %t when %s; by both plans it is %t:\n%s\n%s", packet, got, what, old, p, q)
		}
		outcomes[fmt.Sprint(old, next, got)]++
	}
	gone := maps.Clone(start)
	for name, s := range rules.Sets {
		if s.Verdicts || s.Data.Bytes > 0 || slices.Contains(vouching, name) {
			gone[name] = nil
		}
	}
	for at := range lookups {
		// What the table that takes its place says of the packet, no packet under way comes to know.
		if got, _ := judgeTorn(t, rules, packet, func(lookup int, _ *nft.Set) map[string]nft.Elements {
			if lookup < at {
				return start
			}
			return gone
		}); got && !old {
			t.Fatalf("%+v passes when the table is replaced before lookup %d, and did not before:\n%s", packet, at, p)
		}
		check(fmt.Sprint("what is to come is written before lookup ", at), func(lookup int, _ *nft.Set) map[string]nft.Elements {
			if lookup < at {
				return start
			}
			return prepared
		})
		for late := at; late <= 2*lookups; late++ {
			check(fmt.Sprintf("elements change before lookup %d, and intervals before %d", at, late), func(lookup int, s *nft.Set) map[string]nft.Elements {
				if lookup < at || s.Interval && lookup < late {
					return prepared
				}
				return end
			})
		}
	}
}

func elementsOf(r *ruleset) map[string]nft.Elements {
	all := map[string]nft.Elements{}
	for name, s := range r.Sets {
		all[name] = s.Elements
	}
	return all
}

// applied are elements, by set, after changes of some.
func applied(to map[string]nft.Elements, changes map[string]nft.Change) map[string]nft.Elements {
	to = maps.Clone(to)
	for name, c := range changes {
		all := maps.Clone(to[name])
		if c.Whole != nil {
			all = maps.Clone(c.Whole)
		}
		for _, e := range c.Elements {
			delete(all, e.Key)
		}
		for _, e := range c.Elements {
			if e.New != nil {
				all[e.Key] = *e.New
			}
		}
		to[name] = all
	}
	return to
}

// tornPacket is the first of a connection through the node.
type tornPacket struct {
	in, out  string
	from, to netip.Addr
	protocol plan.Protocol
	port     uint16
}

// judgeTorn follows a packet through the rules. found says by the number of a lookup, and
// the set, which elements there are then. It returns whether the packet passes, and how
// many lookups it took.
func judgeTorn(t interface{ Fatalf(string, ...any) }, rules *ruleset, p tornPacket, found func(lookup int, s *nft.Set) map[string]nft.Elements) (passes bool, lookups int) {
	var registers [64]byte
	at := func(register, length uint32) []byte {
		offset := 4 * (int(register) - unix.NFT_REG32_00)
		if register <= unix.NFT_REG_4 {
			offset = 16 * (int(register) - unix.NFT_REG_1)
		}
		return registers[offset:][:length]
	}
	load := func(register uint32, b []byte) { copy(at(register, uint32(len(b))), b) }
	lookup := func(e *expr.Lookup) (nft.Value, bool) {
		s := rules.Sets[e.SetName]
		all := found(lookups, s)[e.SetName]
		lookups++
		key := string(at(e.SourceRegister, s.Key.Bytes))
		if !s.Interval || s.Concat {
			v, ok := all[nft.Element{Key: key}]
			return v, ok
		}
		var last nft.Element
		below := false
		for k := range all {
			if k.Key <= key && (!below || last.Compare(k) < 0) {
				last, below = k, true
			}
		}
		return all[last], below && !last.End
	}
	// rule returns the verdict, or false where the rule does not match.
	rule := func(exprs []expr.Any) (nft.Verdict, bool) {
		for _, e := range exprs {
			switch e := e.(type) {
			case *expr.Immediate:
				load(e.Register, e.Data)
			case *expr.Meta:
				v := map[expr.MetaKey][]byte{
					expr.MetaKeyNFPROTO: {unix.NFPROTO_IPV4}, expr.MetaKeyL4PROTO: {byte(p.protocol)},
					expr.MetaKeyIIFNAME: []byte(nft.InterfaceKey(p.in)), expr.MetaKeyOIFNAME: []byte(nft.InterfaceKey(p.out)),
					expr.MetaKeyIIFGROUP: nft.HostEndian(0), expr.MetaKeyOIFGROUP: nft.HostEndian(0),
				}[e.Key]
				if v == nil {
					t.Fatalf("a rule asks for meta key %d", e.Key)
				}
				load(e.Register, append(v, 0, 0, 0)[:max(4, len(v))])
			case *expr.Ct: // new
				load(e.Register, nft.HostEndian(expr.CtStateBitNEW))
			case *expr.Payload:
				header := make([]byte, 40)
				if e.Base == expr.PayloadBaseNetworkHeader {
					copy(header[12:], p.from.AsSlice())
					copy(header[16:], p.to.AsSlice())
				} else {
					binary.BigEndian.PutUint16(header, 40000)
					binary.BigEndian.PutUint16(header[2:], p.port)
				}
				load(e.DestRegister, append(header[e.Offset:][:e.Len:e.Len], 0, 0, 0)[:(e.Len+3)/4*4])
			case *expr.Bitwise:
				for i, b := range at(e.SourceRegister, e.Len) {
					at(e.DestRegister, e.Len)[i] = b&e.Mask[i] ^ e.Xor[i]
				}
			case *expr.Cmp:
				if same := bytes.Equal(at(e.Register, uint32(len(e.Data))), e.Data); same != (e.Op == expr.CmpOpEq) {
					return nft.Verdict{}, false
				}
			case *expr.Lookup:
				v, ok := lookup(e)
				if ok == e.Invert {
					return nft.Verdict{}, false
				}
				switch {
				case !e.IsDestRegSet:
				case e.DestRegister != unix.NFT_REG_VERDICT:
					load(e.DestRegister, []byte(v.Data))
				case v.Verdict.Kind != expr.VerdictContinue:
					return v.Verdict, true
				}
			case *expr.Verdict:
				return nft.Verdict{Kind: e.Kind, Chain: e.Chain}, true
			case *expr.Counter, *expr.Limit, *expr.Log:
			default:
				t.Fatalf("a rule has %T", e)
			}
		}
		return nft.Verdict{}, false
	}
	// chain returns true with the end of it all.
	var chain func(name string) (passes, end bool)
	chain = func(name string) (passes, end bool) {
		for _, r := range rules.Chains[name].Rules {
			v, ok := rule(r.Exprs)
			switch {
			case !ok:
			case v.Kind == expr.VerdictAccept || v.Kind == expr.VerdictDrop:
				return v.Kind == expr.VerdictAccept, true
			case v.Kind == expr.VerdictReturn:
				return false, false
			case v.Kind == expr.VerdictGoto:
				return chain(v.Chain)
			case v.Kind == expr.VerdictJump:
				if passes, end := chain(v.Chain); end {
					return passes, true
				}
			}
		}
		return false, false
	}
	passes, end := chain(throughNode)
	return passes || !end, lookups // the hook accepts what no rule decides
}
