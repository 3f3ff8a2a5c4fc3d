package linux

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/datapath/profile"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// policySets are all elements of a plan's policy table, by set, and the number
// of peers by profile.
func policySets(p *plan.Plan) (map[string]nft.Elements, policies) {
	state, r := compilePolicies(stamps.Default, p, true, counting{})
	sets := map[string]nft.Elements{}
	for name, s := range r.Sets {
		sets[name] = s.Elements
	}
	for _, name := range sided {
		sets[name] = sets[setOn(name, 0)]
		delete(sets, setOn(name, 0))
	}
	return sets, state
}

// TestAdvancePolicies checks that what a change is compiled to leads from all
// of one plan to all of the next, and touches nothing that both have.
func TestAdvancePolicies(t *testing.T) {
	took := 0
	rapid.Check(t, func(t *rapid.T) {
		first := plantest.Policed(plantest.Shapes()).Draw(t, "first")
		second := first
		other := plantest.Policed(rapid.Just(first)).Draw(t, "second")
		if rapid.Bool().Draw(t, "tags change") {
			second.Tags, second.Classes = other.Tags, other.Classes
		}
		if rapid.Bool().Draw(t, "verdicts change") {
			second.Verdicts = other.Verdicts
		}
		if rapid.Bool().Draw(t, "what is within what changes") {
			second.Within = other.Within
		}
		if rapid.Bool().Draw(t, "endpoints change") {
			second.Policed = other.Policed
		}
		if len(first.Believing) > 0 && rapid.Bool().Draw(t, "whose tags are believed changes") {
			second.Believing = first.Believing[1:]
		}
		p, q := first.Plans()["node1"], second.Plans()["node1"]
		if p == nil || q == nil || !profile.Policed(p) || !profile.Policed(q) {
			return
		}
		took++
		have, state := policySets(p)
		want, wantState := policySets(q)
		for name, c := range state.advance(p, q, p.Diff(q)) {
			if c.Whole != nil {
				have[name] = c.Whole
			}
			for _, change := range c.Elements {
				if change.Old == nil {
					continue
				}
				e, v := change.Key, *change.Old
				if old, ok := have[name][e]; !ok || old != v {
					t.Fatalf("%s: %q goes, which was not there", name, e.Key)
				}
				if next, ok := want[name][e]; ok && next == v {
					t.Fatalf("%s: %q goes, which is wanted", name, e.Key)
				}
				delete(have[name], e)
			}
			for _, change := range c.Elements {
				if change.New == nil {
					continue
				}
				e, v := change.Key, *change.New
				if _, ok := have[name][e]; ok {
					t.Fatalf("%s: %q comes, which is there", name, e.Key)
				}
				have[name][e] = v
			}
		}
		for name := range want {
			if !maps.Equal(have[name], want[name]) {
				t.Fatalf("%s differs from what the whole plan gives\nfrom:\n%s\nto:\n%s", name, p, q)
			}
		}
		if diff := cmp.Diff(wantState, state, cmp.AllowUnexported(policies{}, counting{}, reconcile.Ledger[string, struct{}]{}, reconcile.Edit[string, struct{}]{})); diff != "" {
			t.Fatalf("the state differs: %s", diff)
		}
	})
	if took == 0 {
		t.Error("no change was compiled on its own")
	}
}

// TestProfiles checks what the kernel would find against plan.Verdict.
func TestProfiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plantest.Policed(plantest.Shapes()).Draw(t, "shape").Plans()["node1"]
		if p == nil || !profile.Policed(p) {
			return
		}
		sets, _ := policySets(p)
		ranges := slices.SortedFunc(maps.Keys(sets[profileVerdicts]), func(a, b nft.Element) int { return strings.Compare(a.Key, b.Key) })
		find := func(name string, protocol plan.Protocol, port uint16) (nft.Value, bool) {
			key := name + string([]byte{byte(protocol), 0, 0, 0, byte(port >> 8), byte(port), 0, 0})
			i, exact := slices.BinarySearchFunc(ranges, key, func(e nft.Element, key string) int { return strings.Compare(e.Key, key) })
			if !exact {
				i--
			}
			if i < 0 || ranges[i].End {
				return nft.Value{}, false
			}
			return sets[profileVerdicts][ranges[i]], true
		}
		for range 50 {
			k := profile.PeerKey{PolicyKey: profile.PolicyKey{Name: rapid.SampledFrom([]string{"p1", "p2"}).Draw(t, "policy"), Direction: rapid.SampledFrom(directions).Draw(t, "direction")},
				Peer: rapid.SampledFrom([]plan.Class{0, 10, 11, plan.FirstOwnClass, plan.FirstOwnClass + 1, plan.MaxClass}).Draw(t, "peer")}
			protocol := rapid.SampledFrom([]plan.Protocol{plan.TCP, plan.UDP, plan.ICMP, plan.ICMPv6, 99, 255}).Draw(t, "protocol")
			port := rapid.OneOf(rapid.Uint16(), rapid.SampledFrom([]uint16{0, 8079, 8080, 8081, 8082, 65535})).Draw(t, "port")
			lookupPort := port
			if !protocol.HasPorts() {
				lookupPort = 0 // the other bytes must not matter
			}
			_, v, _ := p.Verdict(k.Name, k.Direction, k.Peer, protocol, lookupPort)
			got := false
			peer := k.Peer
			_, own := sets[profilesOfPeers][nft.Element{Key: k.ID()}]
			_, like := sets[profilesOfLikes][nft.Element{Key: k.ID()}]
			if wider, ok := sets[widerClasses][nft.Element{Key: widerKey(peer)}]; ok && !own && !like {
				peer = plan.Class(binary.BigEndian.Uint32([]byte(wider.Data)))
			}
			for _, ask := range []struct {
				in   string
				peer plan.Class
			}{{profilesOfPeers, peer}, {profilesOfLikes, peer}, {profilesOfPeers, plan.AnyPeer}} {
				found, ok := sets[ask.in][nft.Element{Key: profile.PeerKey{PolicyKey: k.PolicyKey, Peer: ask.peer}.ID()}]
				if !ok {
					continue
				}
				if found, ok := find(found.Data[4:], protocol, port); ok {
					got = found.Verdict == allowed
					break
				}
			}
			if got != v.Allow {
				t.Fatalf("%+v %s %d: allowed is %t; expected %t\n%s", k, protocol, port, got, v.Allow, p)
			}
		}
	})
}

// TestAttribute checks that what each element counts is counted for the
// verdict that it comes from.
func TestAttribute(t *testing.T) {
	p := mustParse(t, `endpoint weftaaa network default addresses 10.1.1.2 ingress-policy web egress-policy out
verdict other ingress from 5 any deny # rule 1
verdict web ingress from 5 tcp 80 allow
verdict web ingress from 5 any deny # rule 1
verdict web ingress from 6 tcp 80 allow
verdict web ingress from 6 any deny # rule 1
verdict web ingress from 7 tcp 80 allow
verdict web ingress from 7 any deny # rule 2
verdict web ingress from 8 tcp 90 deny # rule 3
verdict web ingress from 8 any like 7
verdict web ingress from 9 any like 8
`)
	key := func(policy string, d plan.Direction, peer plan.Class) plan.VerdictKey {
		k := plan.Otherwise(policy, d)
		k.Peer = peer
		return k
	}
	counts, want := map[nft.Element]uint64{}, map[plan.VerdictKey]uint64{}
	sets, _ := policySets(p)
	for e, v := range sets[profileVerdicts] {
		if !e.End && v.Verdict != (nft.Verdict{}) {
			counts[e] = 1
		}
	}
	// Around port 80 there are two ranges. Peers 5 and 6 of web share.
	want[key("other", plan.Incoming, 5)] = 1
	want[key("other", plan.Incoming, plan.AnyPeer)] = 1
	want[key("web", plan.Incoming, 5)] = 2
	want[key("web", plan.Incoming, 7)] = 2
	want[key("web", plan.Incoming, plan.AnyPeer)] = 1
	// Peer 9 shares with 8, and what it leaves with 7.
	want[plan.VerdictKey{Policy: "web", Direction: plan.Incoming, Peer: 8, Protocol: plan.TCP, Ports: plan.PortRange{First: 90, Last: 90}}] = 1
	want[key("out", plan.Outgoing, plan.AnyPeer)] = 1
	if diff := cmp.Diff(want, attribute(p, counts)); diff != "" {
		t.Error(diff)
	}
}

// bigPlan has many tags, in classes of ten addresses, and many verdicts, each
// of a class for one of a hundred policies.
func bigPlan(t testing.TB, tags, verdicts int) *plan.Plan {
	t.Helper()
	p := mustParse(t, strings.Replace(tunnelPlan, "anti-spoof", "ingress-policy p0 anti-spoof", 1))
	b := plan.NewBuilder(nil)
	for i := range tags {
		a := netip.AddrFrom4([4]byte{10, byte(2 + i>>16), byte(i >> 8), byte(i)})
		b.PutClass(plan.ClassKey{Network: plan.DefaultNetwork, Prefix: interval.Single(a)}, plan.Membership{Class: plan.FirstOwnClass + plan.Class(i/10)})
	}
	for i := range verdicts {
		policy := i % 100
		b.PutVerdict(plan.VerdictKey{Policy: fmt.Sprintf("p%d", policy), Direction: plan.Incoming, Peer: plan.FirstOwnClass + plan.Class(i/100),
			Protocol: plan.TCP, Ports: plan.PortRange{First: uint16(1000 + i%97), Last: uint16(1000 + i%97)}},
			plan.Verdict{Allow: i%5 != 0, Origin: fmt.Sprintf("policy p%d rule %d", policy, i%7)})
	}
	q := b.Build()
	p.Classes, p.Verdicts = q.Classes, q.Verdicts
	return p
}

// BenchmarkPolicies measures the first load of 100,000 tags and 10,000
// verdicts, another instance that finds them, and changes of a few.
func BenchmarkPolicies(b *testing.B) {
	p := bigPlan(b, 100_000, 10_000)
	b.Run("load", func(b *testing.B) {
		bench := newBench(b)
		for b.Loop() {
			bench.mustApply(p)
			b.StopTimer()
			if err := bench.Remove(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("find", func(b *testing.B) {
		bench := newBench(b)
		bench.mustApply(p)
		for b.Loop() {
			bench.nothingToRepair()
		}
	})
	change := func(name string, q *plan.Plan) {
		b.Run(name, func(b *testing.B) {
			bench := newBench(b)
			bench.mustApply(p)
			b.ResetTimer()
			for i := range b.N {
				if i%2 == 0 {
					bench.mustApply(q)
				} else {
					bench.mustApply(p)
				}
			}
		})
	}
	one := *p
	one.Verdicts = p.Verdicts.Set(plan.VerdictKey{Policy: "p0", Direction: plan.Incoming, Peer: plan.FirstOwnClass + 7, Protocol: plan.UDP, Ports: plan.AllPorts}, plan.Verdict{Allow: true})
	change("verdict", &one)
	hundred := *p
	for i := range 100 {
		hundred.Classes = hundred.Classes.Set(plan.ClassKey{Network: plan.DefaultNetwork, Prefix: interval.Single(netip.AddrFrom4([4]byte{172, 16, 0, byte(i)}))}, plan.Membership{Class: plan.FirstOwnClass})
	}
	change("hundred tags", &hundred)
}

// TestGenerations holds the chains of each generation to those of the first.
func TestGenerations(t *testing.T) {
	r := policyRules(stamps.Default, true)
	of := func(g generation) map[string][]string {
		chains := map[string][]string{}
		for name, c := range r.Chains {
			rest, ok := strings.CutPrefix(name, g.String())
			if !ok {
				continue
			}
			chains[rest] = nil
			for _, rule := range c.Rules {
				text := rule.Comment
				key := nft.Literal(1, generationKey(int(g)))[0]
				for i, e := range rule.Exprs {
					if l, ok := rule.Exprs[min(i+1, len(rule.Exprs)-1)].(*expr.Lookup); ok && l.SetName == currentGeneration && reflect.DeepEqual(e, key) {
						e = nil
					}
					text += fmt.Sprintf(" %T %+v", e, e)
				}
				chains[rest] = append(chains[rest], strings.ReplaceAll(text, g.String(), "generation"))
			}
		}
		return chains
	}
	first := of(0)
	if len(first) == 0 {
		t.Fatal("a generation has no chains")
	}
	for g := range generations {
		if diff := cmp.Diff(first, of(generation(g))); diff != "" {
			t.Errorf("%s differs from the first:\n%s", generation(g), diff)
		}
	}
}
