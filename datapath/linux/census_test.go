package linux

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weftnet/weft/plan"
)

func TestTooMany(t *testing.T) {
	const most = 1000
	a, b, c := party{endpoint: "a"}, party{endpoint: "b"}, party{address: netip.MustParseAddr("10.1.2.3")}
	for _, x := range []struct {
		what   string
		counts map[party]int
		was    map[party]bool
		want   []party
	}{
		{"none", nil, nil, nil},
		{"a quarter is not too much", map[party]int{a: 250}, nil, nil},
		{"more than that is", map[party]int{a: 251, b: 10}, nil, []party{a}},
		{"those with the most first", map[party]int{a: 300, b: 400, c: 300}, nil, []party{b, c, a}},
		{"who had too many still has", map[party]int{a: 126, b: 126}, map[party]bool{a: true}, []party{a}},
		{"until it is half of that", map[party]int{a: 125}, map[party]bool{a: true}, nil},
		{"who had too many and is gone", nil, map[party]bool{a: true}, nil},
	} {
		if got := tooMany(x.counts, x.was, most); !slices.Equal(got, x.want) {
			t.Errorf("%s: got %v, want %v", x.what, got, x.want)
		}
	}
}

// TestTally counts more addresses than are remembered, and one that has many
// connections among them.
func TestTally(t *testing.T) {
	many, others, all := netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00:2::"), 0
	counts := tally{}
	for range 20 * mostCounted {
		others = others.Next()
		counts.add(others)
		counts.add(many)
		all += 2
	}
	if len(counts) > mostCounted {
		t.Errorf("it remembers %d addresses, more than %d", len(counts), mostCounted)
	}
	if n := counts[many]; n > all/2 || n < all/2-all/mostCounted {
		t.Errorf("of %d connections, %d are told of who has half of them", all, n)
	}
}

func TestHostOf(t *testing.T) {
	p, err := plan.Parse(`node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
tunnel vxlan port 8472 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 1
endpoint near network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03
route default 0.0.0.0/0 gateway
route default 10.1.1.3/32 endpoint near
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 10.1.2.0/24 tunnel node2
route default 172.30.0.3/32 tunnel node2 endpoints-only
peer node3 addresses 172.30.0.4
route default 10.1.3.0/24 nexthop node3
`)
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"10.1.2.2":     "node2",
		"10.1.3.2":     "node3",
		"10.1.2.0":     "", // node2's tunnel
		"10.1.2.1":     "", // its gateway
		"172.30.0.3":   "", // node2 itself
		"172.30.0.4":   "",
		"10.1.1.3":     "", // an endpoint of this node
		"10.1.1.9":     "",
		"198.51.100.7": "",
	} {
		node, ok := hostOf(p, netip.MustParseAddr(address))
		if node != want || ok != (want != "") {
			t.Errorf("%s is at %q (%t), want %q", address, node, ok, want)
		}
	}
}
