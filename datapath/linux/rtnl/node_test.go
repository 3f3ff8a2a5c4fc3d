package rtnl

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestLinksOfConnections asks for links where any interfaces have any addresses: next hops
// are on those with a prefix that has them, of which the longest leads there, and an
// address alone leads nowhere, but is held.
func TestLinksOfConnections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		address := rapid.Custom(func(t *rapid.T) netip.Addr {
			low := byte(rapid.IntRange(0, 15).Draw(t, "low"))
			if rapid.Bool().Draw(t, "IPv6") {
				return netip.AddrFrom16([16]byte{0: 0xfd, 15: low})
			}
			return netip.AddrFrom4([4]byte{10, 0, 0, low})
		})
		var all []Connection
		// An interface of each is enough to tell which was found.
		for i := range rapid.IntRange(0, 6).Draw(t, "addresses") {
			a := address.Draw(t, "address")
			p := netip.PrefixFrom(a, a.BitLen()-rapid.IntRange(0, 4).Draw(t, "host bits"))
			if !slices.ContainsFunc(all, func(c Connection) bool { return c.Addr.Masked() == p.Masked() || c.Addr.Addr() == a }) {
				all = append(all, Connection{p, i + 1})
			}
		}
		n := &Node{Connected: NewConnections(slices.Clone(all))}
		if !n.Connected.Equal(NewConnections(slices.Clone(all))) {
			t.Fatalf("of %v what is made twice is not the same", all)
		}
		for i := range all {
			if n.Connected.Equal(NewConnections(slices.Delete(slices.Clone(all), i, i+1))) {
				t.Fatalf("of %v it does not matter whether there is %v", all, all[i])
			}
		}

		via, own := address.Draw(t, "next hop"), address.Draw(t, "own")
		best, held := Connection{}, map[netip.Addr]int{}
		leading := map[int]bool{}
		for _, c := range all {
			held[c.Addr.Addr()] = c.Link
			if c.Addr.IsSingleIP() || !c.Addr.Contains(via) {
				continue
			}
			leading[c.Link] = true
			if best.Link == 0 || c.Addr.Bits() > best.Addr.Bits() {
				best = c
			}
		}
		if got, want := n.Holding(own), held[own]; got != want {
			t.Fatalf("of %v link %d holds %s, want %d", all, got, own, want)
		}
		want, onlink := best.Link, false
		if want == 0 && own.Is4() == via.Is4() {
			want, onlink = held[own], held[own] != 0
		}
		if link, on := n.LinkTo(via, []netip.Addr{own}); link != want || on != onlink {
			t.Fatalf("of %v link %d leads to %s (onlink %t), want %d (%t)", all, link, via, on, want, onlink)
		}
		from := map[int]bool{}
		for _, link := range n.LinksTo(via, []netip.Addr{own}) {
			from[link] = true
		}
		delete(from, 0)
		back := maps.Clone(leading)
		if want != 0 {
			back[want] = true
		}
		if !maps.Equal(from, back) {
			t.Fatalf("of %v packets of %s may come from %v, want %v", all, via, from, back)
		}
		for _, c := range all {
			if c.Addr.Contains(own) || best.Link == 0 && c.Addr.Addr().Is4() == own.Is4() {
				leading[c.Link] = true
			}
		}
		if got := n.LeadingTo(slices.Values([]netip.Addr{via}), own); !maps.Equal(got, leading) {
			t.Fatalf("of %v packets of %s come to %s by %v, want %v", all, via, own, got, leading)
		}
	})
}

// TestAddressesOfServicesCostNothing has ten thousand of them on an interface, as
// kube-proxy's mode ipvs does: who looks for the way to another machine looks at none.
func TestAddressesOfServicesCostNothing(t *testing.T) {
	all := []Connection{{netip.MustParsePrefix("172.30.0.1/16"), 2}, {netip.MustParsePrefix("fd00:30::1/64"), 2}}
	for i := range 10_000 {
		all = append(all, Connection{netip.MustParsePrefix(fmt.Sprintf("10.96.%d.%d/32", i/256, i%256)), 3})
	}
	n := &Node{Connected: NewConnections(all)}
	if got := len(n.Connected.leading); got != 2 {
		t.Errorf("%d addresses are looked at for each machine, want 2", got)
	}
	if link, _ := n.LinkTo(netip.MustParseAddr("10.96.0.7"), nil); link != 0 {
		t.Errorf("link %d leads to the address of a Service", link)
	}
	if link := n.Holding(netip.MustParseAddr("10.96.0.7")); link != 3 {
		t.Errorf("link %d has the address of a Service, want 3", link)
	}
}
