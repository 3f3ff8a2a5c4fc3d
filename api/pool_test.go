package api_test

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
)

// anyAddress draws addresses, with many zeros, as those are what is written in short.
func anyAddress(t *rapid.T, label string) netip.Addr {
	n := rapid.SampledFrom([]int{4, 16}).Draw(t, label+" length")
	a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.OneOf(rapid.Just(byte(0)), rapid.Byte()), n, n).Draw(t, label))
	return a.Unmap()
}

// The name of an AddressGrant is one that Kubernetes takes, and says which address it is of.
func TestGrantNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := anyAddress(t, "address")
		g := &api.AddressGrant{Spec: api.AddressGrantSpec{Namespace: "default", Name: "web", UID: "u", Pool: "public"}}
		g.Name = api.GrantName(a)
		if err := api.AddressGrantKind.Validate(g); err != nil || g.Address() != a {
			t.Fatalf("%s is named %s, which is %v: %v", a, g.Name, g.Address(), err)
		}
	})
	for _, name := range []string{"web", "192.0.2.07", "2001-db8-0-0-0-0-0-7", "--1", "fe80--1%eth0", "--ffff-192.0.2.7", "2001-DB8--7"} {
		g := &api.AddressGrant{}
		if g.Name = name; g.Address().IsValid() {
			t.Errorf("a grant named %s is one of %s", name, g.Address())
		}
	}
}

// A range has as many addresses as there are from its first to its last.
func TestRangesAreAsLongAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := anyAddress(t, "address")
		n := rapid.Int64Range(0, 2000).Draw(t, "beyond")
		b := a
		for range n {
			if next := b.Next(); next.IsValid() {
				b = next
			} else {
				n = 0
				b = a
				break
			}
		}
		r := api.AddressRange{First: a, Last: b}
		if r.Len() != n+1 || !r.Contains(a) || !r.Contains(b) || b.Next().IsValid() && r.Contains(b.Next()) {
			t.Fatalf("%s has %d addresses, and not %d", r, r.Len(), n+1)
		}
	})
	for text, want := range map[string]int64{"192.0.2.0/24": 256, "0.0.0.0/0": 1 << 32, "2001:db8::/75": 1 << 53 >> 0, "2001:db8::/64": api.MaxPoolTotal, "::/0": api.MaxPoolTotal, "2001:db8::/120": 256, "192.0.2.7/32": 1} {
		want = min(want, api.MaxPoolTotal)
		p := netip.MustParsePrefix(text)
		if r := api.RangeOf(p); r.Len() != want || r.First != p.Addr() || !p.Contains(r.Last) || r.Last.Next().IsValid() && p.Contains(r.Last.Next()) {
			t.Errorf("%s is %s with %d addresses", text, r, r.Len())
		}
	}
}

// What of a pool cannot be read is left out, as an API server may have let it in.
func TestUnreadableRangesOfPools(t *testing.T) {
	p := &api.AddressPool{Spec: api.AddressPoolSpec{Addresses: []string{"192.0.2.0/30", "x", "fe80::/64", "2001:db8::1 - 2001:db8::3"}}}
	var got []string
	for _, r := range p.Ranges() {
		got = append(got, r.String())
	}
	if want := []string{"192.0.2.0-192.0.2.3", "2001:db8::1-2001:db8::3"}; !slices.Equal(got, want) {
		t.Errorf("its ranges are %v", got)
	}
}
