package linux

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// TestBelievedSources holds whose tags are believed, in the kernel and when open
// connections are judged, against whom the plan takes packets from.
func TestBelievedSources(t *testing.T) {
	outcomes := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		shape := plantest.Tagged().Draw(t, "shape")
		if shape.Plainly == nil && !shape.PerFamily {
			shape.Preferring = []bool{rapid.Bool().Draw(t, "preferring")}
		}
		p := mixedUp(t, shape.Plans()["node1"])
		sets, belief := believedSources(stamps.Default, p), judge.BeliefOf(p)
		var addresses []netip.Addr
		for k := range p.Routes.All() {
			addresses = append(addresses, k.Prefix.Addr(), k.Prefix.Addr().Next().Next())
		}
		for _, peer := range p.Peers.All() {
			for _, end := range peer.Ends {
				addresses = append(addresses, end.VTEP)
			}
		}
		for _, a := range addresses {
			any := false
			for _, tunnel := range rtnl.Overlays(stamps.Default, p) {
				want := false
				for _, peer := range p.Peers.All() {
					end, ok := peer.End(tunnel.Name)
					want = want || ok && hasTags(tunnel) && peer.CarriesTags && p.TakesFromPeer(tunnel.Name, plan.DefaultNetwork, end.VTEP, a)
				}
				got := false
				key := nft.InterfaceKey(tunnel.Device) + string(a.AsSlice())
				for e := range sets[believedPrefix+suffix(a.Is4())] {
					got = got || e.Key <= key && key <= e.Last
				}
				if got != want {
					t.Fatalf("%s through %s is believed is %t; expected %t, in:\n%s", a, tunnel.Name, got, want, p)
				}
				outcomes[got]++
				any = any || got
			}
			if got := belief.In(plan.Address{Network: plan.DefaultNetwork, IP: a}); got != any {
				t.Fatalf("%s is believed is %t, and %t when connections are judged, in:\n%s", a, any, got, p)
			}
		}
	})
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("outcomes: %v", outcomes)
	}
}

// mixedUp draws a valid plan that differs from one in which tunnels carry tags, in who is
// believed, and in that peers have the same VTEP in different tunnels.
func mixedUp(t *rapid.T, p *plan.Plan) *plan.Plan {
	var peers []plan.PeerKey
	for k := range p.Peers.All() {
		peers = append(peers, k)
	}
	for range rapid.IntRange(0, 4).Draw(t, "mix-ups") {
		next := *p
		k := rapid.SampledFrom(peers).Draw(t, "peer")
		peer, _ := p.Peers.Get(k)
		switch rapid.IntRange(0, 4).Draw(t, "mix-up") {
		case 0:
			peer.CarriesTags = !peer.CarriesTags
			next.Peers = p.Peers.Set(k, peer)
		case 1:
			tunnel := rapid.SampledFrom(p.Local.Tunnels).Draw(t, "tunnel").Name
			of := plan.NetworkKey{Name: plan.DefaultNetwork, Tunnel: tunnel}
			n, _ := p.Networks.Get(of)
			n.LastVNI = n.FirstVNI
			next.Networks = p.Networks.Set(of, n)
		default:
			other := p.Peer(rapid.SampledFrom(peers).Draw(t, "other peer").Name)
			peer.Ends = slices.Clone(peer.Ends)
			i := rapid.IntRange(0, len(peer.Ends)-1).Draw(t, "end")
			peer.Ends[i].VTEP = rapid.SampledFrom(other.Ends).Draw(t, "end of the other").VTEP
			next.Peers = p.Peers.Set(k, peer)
		}
		if next.Validate() == nil { // else somebody has the VTEP in that tunnel already
			p = &next
		}
	}
	return p
}

// TestMovesBelief shows which changes may take from connections what their tags
// allowed.
func TestMovesBelief(t *testing.T) {
	const text = `node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
tunnel vxlan port 4789 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 0-100
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03 carries-tags
peer node3 ends vxlan@172.30.0.4@0a:58:ac:1e:00:04
endpoint weftaaa network default addresses 10.1.1.2 ingress-policy p
route default 10.1.1.2/32 endpoint weftaaa
route default 10.1.2.0/24 tunnel node2
route default 10.1.3.0/24 tunnel node3
class default 10.1.2.9/32 c1
verdict p ingress from 5 any allow
`
	p := mustParse(t, text)
	for _, c := range []struct {
		what, replace, by string
		moves             bool
	}{
		{"a peer is believed no more", "00:03 carries-tags", "00:03", true},
		{"another peer is believed", "00:04", "00:04 carries-tags", true},
		{"what was behind a believed peer is behind another", "10.1.2.0/24 tunnel node2", "10.1.2.0/24 tunnel node3", true},
		{"a part of it is", "route default 10.1.3.0/24", "route default 10.1.2.0/25 tunnel node3\nroute default 10.1.3.0/24", true},
		{"a peer comes that is not believed", "peer node3", "peer node4 ends vxlan@172.30.0.5@0a:58:ac:1e:00:05\npeer node3", false},
		{"a pod comes", "endpoint weftaaa", "endpoint weftbbb network default addresses 10.1.1.3\nroute default 10.1.1.3/32 endpoint weftbbb\nendpoint weftaaa", false},
		{"a table knows who was known by a tag", "class default", "class default 10.1.2.8/32 c2\nclass default", true},
		{"a table knows no more", "class default 10.1.2.9/32 c1\n", "", true},
		{"a table knows another", "10.1.2.9/32 c1", "10.1.2.9/32 c2", false},
		{"a table knows who had no tag", "class default", "class default 10.1.3.8/32 c2\nclass default", false},
		{"a verdict comes", "verdict p", "verdict p ingress from 6 any allow\nverdict p", false},
	} {
		changed := strings.Replace(text, c.replace, c.by, 1)
		if changed == text {
			t.Fatalf("%s: nothing to replace", c.what)
		}
		q := mustParse(t, changed)
		if got := movesBelief(stamps.Default, p, q, p.Diff(q)); got != c.moves {
			t.Errorf("%s: it moves belief is %t; expected %t", c.what, got, c.moves)
		}
	}
}

// TestSubtractTags follows the maps by which a tag is made of a network identifier.
func TestSubtractTags(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint32Range(0, plan.MaxVNI).Draw(t, "first")
		vni := rapid.Uint32Range(first, plan.MaxVNI).Draw(t, "VNI")
		r := newRuleset(stamps.Default, stamps.Default.Table)
		r.subtract(rtnl.Overlay{Tunnel: plan.Tunnel{Name: "vxlan"}, VNI: first, LastVNI: plan.MaxVNI})
		packet := onWire(vni)
		borrowed := byte(0)
		for at := 2; at >= 0; at-- {
			name := "less-vxlan-" + string(rune('0'+at))
			v, ok := r.Sets[name].Elements[nft.Element{Key: words(packet[at], borrowed)}]
			if !ok {
				t.Fatalf("map %s has nothing for %d and %d", name, packet[at], borrowed)
			}
			packet[at], borrowed = v.Data[0], v.Data[4]
		}
		if got := binary.BigEndian.Uint32(packet) >> 8; got != vni-first || borrowed != 0 {
			t.Fatalf("%d less %d is %d, and %d borrowed", vni, first, got, borrowed)
		}
	})
}

// TestTagIn reads labels.
func TestTagIn(t *testing.T) {
	word := func(b ...byte) []byte { return labelOf(b) }
	others := word(1, 0, 0, 5)
	others[0], others[12] = 0xff, 0xff
	for _, c := range []struct {
		label  []byte
		tag    plan.Tag
		tagged bool
	}{
		{nil, 0, false},
		{word(0, 0, 0, 5), 0, false},
		{word(1, 0, 0, 5), 5, true},
		{word(1, 0, 0, 0), 0, true},
		{word(1, 0xab, 0xcd, 0xef), 0xabcdef, true},
		{others, 5, true},
	} {
		if tag, tagged := tagIn(c.label); tag != c.tag || tagged != c.tagged {
			t.Errorf("label %x has tag %d, tagged is %t; expected %d, %t", c.label, tag, tagged, c.tag, c.tagged)
		}
	}
}

// TestNoLabels has no rule about labels where the kernel has none: it would refuse the
// whole table.
func TestNoLabels(t *testing.T) {
	p := mustParse(t, "node node1 addresses 172.30.0.2\nendpoint weftaaa network default addresses 10.1.1.2 ingress-policy p\n")
	for _, tags := range []bool{true, false} {
		_, r := compilePolicies(stamps.Default, p, tags, counting{})
		asked := false
		for _, c := range r.Chains {
			for _, rule := range c.Rules {
				for _, e := range rule.Exprs {
					ct, ok := e.(*expr.Ct)
					asked = asked || ok && ct.Key == expr.CtKeyLABELS
				}
			}
		}
		if asked != tags {
			t.Errorf("rules ask for labels is %t; expected %t", asked, tags)
		}
	}
}
